"""The site's copies of inputs, each content once, for all jobs, as long as it may be needed again.

    SITE/stage/files/NAME         a copy; NAME is `sha256-HEX`, or `v-KEY` of the source where the digest is unknown
    SITE/stage/files/.NAME.json   `CopyRecord`: size, digest, which URLs had this content; changed at the last use
    SITE/stage/files/.NAME.sha256 the digest by which nodes exchange it (`staging`)

A job's inputs are hard links to copies: a copy with links is pinned, also through restarts, and never evicted; so is
one that a job will link soon (`hold`). What has no links goes by age, and the least recently used goes first when bytes
are needed; before that go parts that broken transfers left. Copies are not synced to disk: after a restart of the host,
or on another one, a copy is read and compared before it is used.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.batch import processes
from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import TEMPORARY, make_directories, read_bounded, short_name, write_whole
from tidemill.log import Log
from tidemill.site.data.budget import NO_ROOM, StageRoom

SOURCES_MAX = 16
"""URLs that are remembered of one content."""

KEPT_BYTES_MAX = 1 << 20
PART_AGE_S = 86400.0
"""A broken attempt that was not resumed for this time is deleted."""

TIDY_S = 60.0
_BROKEN = (TEMPORARY, ".link")
"""Endings of files that only a process that died leaves behind."""

_log = Log("datacache")


class CopyRecord(msgspec.Struct, kw_only=True):
    """What is known of a copy. `sources`: URL -> the version that had this content. `boot`: of the host that made or
    compared it."""

    size_bytes: int
    sha256: str | None
    sources: dict[str, str]
    boot: str


class CachedCopy(NamedTuple):
    """A copy, as far as the decision to delete it goes."""

    name: str
    size_bytes: int
    used_us: int
    is_pinned: bool


class CacheLimits(NamedTuple):
    """`total_bytes`: of all copies; `idle_bytes`: of those that no job needs; `age_s`: since their last use;
    `total_files`: number of all copies."""

    total_bytes: int
    idle_bytes: int
    age_s: float
    total_files: int = 1 << 62


class CacheCounts(msgspec.Struct):
    """Counts of the data cache since the agent's start."""

    hits: int = 0
    misses: int = 0
    evicted: int = 0
    evicted_bytes: int = 0


def evict(
    entries: Iterable[CachedCopy], *, now_us: int, limits: CacheLimits, wanted: StageRoom = NO_ROOM
) -> list[str]:
    """The copies to delete, so that what is wanted has room beside the others. Pure.

    Never a pinned one; the rest when they are too old, then the least recently used until the limits hold. There may be
    less room than wanted all the same: then everything that is not pinned goes.
    """
    known = list(entries)
    total = sum(entry.size_bytes for entry in known)
    idle = sorted(
        (entry for entry in known if not entry.is_pinned), key=lambda each: (each.used_us, each.name)
    )
    idle_bytes = sum(entry.size_bytes for entry in idle)
    gone: list[str] = []
    for entry in idle:
        is_old = now_us - entry.used_us > limits.age_s * 1e6
        files = len(known) - len(gone)
        has_room = total + wanted.bytes <= limits.total_bytes and files + wanted.files <= limits.total_files
        if not is_old and idle_bytes <= limits.idle_bytes and has_room:
            break
        gone.append(entry.name)
        total -= entry.size_bytes
        idle_bytes -= entry.size_bytes
    return gone


class DataCache:
    """The copies of one site. Not thread-safe by itself: `staging` holds its lock."""

    def __init__(self, directory: Path, limits: CacheLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._boot = processes.boot()
        self._kept: dict[str, CopyRecord] = {}
        self._linked: set[str] = set()  #: copies that had links when they were inspected last
        self._holders: dict[
            str, dict[int, bool]
        ] = {}  #: copy -> jobs that will link it -> it was there before them
        self._used_us: dict[str, int] = {}
        self._names: dict[str, str] = {}  #: URL -> copy
        self._next_tidy_s = 0.0
        self._is_dirty = False  #: links were removed since `refresh`
        self._bytes = 0
        self._pinned: StageRoom | None = None  #: None = it has to be added up again
        self.figures = CacheCounts()
        make_directories(directory, 0o077)
        self._scan()

    @property
    def bytes(self) -> int:
        """Bytes of all copies."""
        return self._bytes

    @property
    def files(self) -> int:
        """Number of copies."""
        return len(self._kept)

    def pinned_bytes(self) -> int:
        """Bytes of the copies that jobs need. One stat for each copy with links, after links were removed."""
        self.refresh()
        return self.pinned().bytes

    def pinned(self) -> StageRoom:
        """Bytes and number of the copies that jobs need, as far as is known without reading the disk."""
        if self._pinned is None:
            sizes = [self._kept[name].size_bytes for name in self._linked | self._holders.keys()]
            self._pinned = StageRoom(sum(sizes), len(sizes))
        return self._pinned

    def is_pinned(self, name: str) -> bool:
        """Whether a job needs the copy, as far as is known without reading the disk."""
        return name in self._linked or name in self._holders

    def path(self, name: str) -> Path:
        """Where a file of this name is, or would be."""
        return self._directory / name

    def name_of(self, url: str, version: str, sha256: str | None) -> str:
        """The name that the copy of this version of a URL has."""
        key = hashlib.sha256(f"{url}\0{version}".encode()).hexdigest()
        return f"v-{key}" if sha256 is None else f"sha256-{sha256}"

    def has(self, name: str) -> bool:
        """Whether there is such a copy."""
        return name in self._kept

    def size(self, name: str) -> int:
        """Bytes of a copy."""
        return self._kept[name].size_bytes

    def hold(self, name: str, job: int, *, hit: bool = True) -> None:
        """Keep a copy that the job will link. `hit`: it was there already."""
        if name in self._kept:
            self._holders.setdefault(name, {}).setdefault(job, hit)
            self._pinned = None

    def is_hit(self, name: str, job: int) -> bool:
        """Whether the copy was there before the job asked for it."""
        return self._holders.get(name, {}).get(job, True)

    def let_go(self, job: int) -> StageRoom:
        """The job links nothing more of what it holds; bytes and number of those copies that nothing else keeps."""
        alone: list[int] = []
        for name, jobs in list(self._holders.items()):
            if jobs.pop(job, None) is not None and not jobs:
                del self._holders[name]
                self._pinned = None
                if name not in self._linked:
                    alone.append(self._kept[name].size_bytes)
        return StageRoom(sum(alone), len(alone))

    def unlinked(self) -> None:
        """Links to copies were removed: the next to ask inspects them."""
        self._is_dirty = True

    def refresh(self) -> None:
        """Learn which copies lost their links, if any may have. One stat for each that had links."""
        self.lost_links([name for name in self.suspects() if not self.has_links(name)])

    def suspects(self) -> list[str]:
        """The copies that may have lost their links since this was asked last."""
        if not self._is_dirty:
            return []
        self._is_dirty = False
        return list(self._linked)

    def has_links(self, name: str) -> bool:
        """Whether a copy has links. Needs no lock."""
        try:
            return (self._directory / name).stat().st_nlink > 1
        except FileNotFoundError:
            return False

    def lost_links(self, names: Iterable[str]) -> None:
        """Take what `has_links` said, unless they have links again."""
        for name in names:
            if name in self._linked and not self.has_links(name):
                self._pinned = None
                self._linked.discard(name)
                if not (self._directory / name).exists():
                    self._forget(name)

    def version(self, url: str) -> str | None:
        """The version of the copy that this URL had last."""
        name = self._names.get(url)
        return None if name is None else self._kept[name].sources.get(url)

    def find(self, url: str, version: str, sha256: str | None) -> str | None:
        """The copy of this version of a URL, whole, and of this digest if one is given; None = it must be fetched."""
        name = self._names.get(url)
        if name is None or self._kept[name].sources.get(url) != version:
            return None
        if sha256 is not None and self._kept[name].sha256 != sha256:
            return None
        return name if self._is_whole(name) else None

    def find_content(self, sha256: str) -> str | None:
        """The copy with this digest, whole; None = there is none."""
        name = f"sha256-{sha256}"
        return name if name in self._kept and self._is_whole(name) else None

    def doubtful(self, url: str, sha256: str | None) -> str | None:
        """The copy that `find` or `find_content` would have to read first, because it is of another boot or host."""
        for name in (self._names.get(url), None if sha256 is None else f"sha256-{sha256}"):
            kept = None if name is None else self._kept.get(name)
            if kept is not None and kept.boot != self._boot and kept.sha256 is not None:
                return name
        return None

    def compare(self, name: str) -> bool:
        """Whether the bytes of a doubtful copy are what they were. Reads all of it; needs no lock."""
        record = self._kept.get(name)
        try:
            with (self._directory / name).open("rb") as file:
                return record is not None and hashlib.file_digest(file, "sha256").hexdigest() == record.sha256
        except FileNotFoundError:
            return False

    def compared(self, name: str, *, is_whole: bool) -> None:
        """Take what `compare` said."""
        record = self._kept.get(name)
        if record is None:
            return
        if is_whole:
            record.boot = self._boot
            self._write(name)
        else:
            self._drop_torn(name)

    def adopt(self, path: Path, url: str, *, version: str, sha256: str | None) -> str:
        """Take a file over as the copy of this version of a URL; its name. Raises SiteError where there is no room."""
        size = path.stat().st_size
        name = self.name_of(url, version, sha256)
        self.figures.misses += 1
        if name in self._kept:
            path.unlink()
        else:
            try:
                self.make_room(size, url)
            except SiteError:
                path.unlink()
                raise
            path.chmod(0o400)
            path.rename(self._directory / name)
            self._kept[name] = CopyRecord(size_bytes=size, sha256=sha256, sources={}, boot=self._boot)
            self._bytes += size
        self._remember(name, url, version)
        return name

    def also(self, name: str, url: str, version: str) -> None:
        """This URL, too, has the content of that copy."""
        if self._kept[name].sources.get(url) != version:
            self._remember(name, url, version)

    def link(self, name: str, path: Path, *, hit: bool) -> None:
        """Make `path` a link to the copy: it is pinned as long as that exists."""
        self.figures.hits += hit
        temporary = path.with_name(f".{short_name(path.name)}.link")
        temporary.unlink(missing_ok=True)
        os.link(self._directory / name, temporary)
        temporary.rename(path)
        self._linked.add(name)
        self._pinned = None
        self._used_us[name] = clock.now_us()
        with suppress(FileNotFoundError):
            os.utime(self._about(name))

    def make_room(self, size: int, url: str) -> None:
        """Delete what must go so that `size` bytes more fit. Raises SiteError if they do not."""
        self.refresh()
        if self.bytes + size > self._limits.total_bytes:
            self._delete(
                evict(self._entries(), now_us=clock.now_us(), limits=self._limits, wanted=StageRoom(size, 1))
            )
        if self.bytes + size > self._limits.total_bytes:
            raise SiteError(
                f"failed to stage `{url}`: {size} bytes more than the {self.bytes} that are staged exceed this "
                f"site's {self._limits.total_bytes}",
                hint="wait until other jobs end, or raise `stage_bytes_max`",
            )

    def keep_free(self, wanted: StageRoom, *, disk: StageRoom) -> None:
        """Delete idle copies, the least recently used first, so that what is wanted fits beside the others: within the
        limits, and into what is free on `disk`. O(1) where nothing has to go."""
        within = StageRoom(self._limits.total_bytes - self.bytes, self._limits.total_files - self.files)
        if within.holds(wanted) and disk.holds(wanted):
            return
        self.refresh()
        limits = self._limits._replace(
            total_bytes=min(self._limits.total_bytes, self.bytes + disk.bytes),
            total_files=min(self._limits.total_files, self.files + disk.files),
        )
        self._delete(evict(self._entries(), now_us=clock.now_us(), limits=limits, wanted=wanted))

    def leftovers(self, *, but: Container[str]) -> list[tuple[Path, int]]:
        """Parts of files that broken transfers left, and their bytes, without those that orders `but` write to."""
        found: list[tuple[Path, int]] = []
        for path in (*self._directory.glob(".*.part"), *self._directory.glob("in-*")):
            if path.name.removeprefix(".").partition(".")[0] in but:
                continue
            with suppress(FileNotFoundError):
                found.append((path, path.stat().st_size))
        return found

    def tidy(self, *, at_once: bool = False) -> None:
        """Delete what is over the limits, and what came or broke off a day ago and was not used; once a minute."""
        now_s = clock.monotonic_s()
        if now_s < self._next_tidy_s and not at_once:
            return
        self._next_tidy_s = now_s + TIDY_S
        self.refresh()
        self._delete(evict(self._entries(), now_us=clock.now_us(), limits=self._limits))
        for path in (*self._directory.glob(".*.part"), *self._directory.glob("in-*")):
            with suppress(FileNotFoundError):
                if clock.now_us() / 1e6 - path.stat().st_mtime > PART_AGE_S:
                    path.unlink()

    # ---- files ----

    def _scan(self) -> None:
        """Learn what earlier agents left. A copy without its `CopyRecord`, and the other way round, is deleted."""
        names = set(os.listdir(self._directory))  # noqa: PTH208 -- names only, without a stat of each
        for name in sorted(names):
            path = self._directory / name
            if name.startswith("."):
                if name.endswith(_BROKEN):
                    path.unlink(missing_ok=True)
                continue
            if f".{name}.json" not in names:
                path.unlink(missing_ok=True)
                continue
            content = read_bounded(self._about(name), KEPT_BYTES_MAX)
            try:
                record = msgspec.json.decode(content or b"", type=CopyRecord)
            except UNDECODABLE:
                record = None
            status = path.stat()
            if record is None or status.st_size != record.size_bytes:
                self._unlink(name)
                continue
            self._kept[name] = record
            self._bytes += record.size_bytes
            if status.st_nlink > 1:
                self._linked.add(name)
            self._used_us[name] = self._about(name).stat().st_mtime_ns // 1000
            self._names |= dict.fromkeys(record.sources, name)
        for name in names:
            about, _, kind = name.removeprefix(".").rpartition(".")
            if name.startswith(".") and kind in ("json", "sha256") and about not in self._kept:
                (self._directory / name).unlink(missing_ok=True)

    def _is_whole(self, name: str) -> bool:
        """Whether the copy is what it was. One of another boot or host is read: it may have been in memory only."""
        record = self._kept[name]
        path = self._directory / name
        if not path.exists():
            self._forget(name)
            return False
        if record.boot == self._boot:
            return True
        if record.sha256 is not None:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == record.sha256:
                    record.boot = self._boot
                    self._write(name)
                    return True
        self._drop_torn(name)
        return False

    def _drop_torn(self, name: str) -> None:
        _log.warning(
            "copy.dropped", name=name, reason="it was made before a restart of the host, and is not whole"
        )
        self._delete([name])

    def _entries(self) -> list[CachedCopy]:
        return [
            CachedCopy(name, kept.size_bytes, self._used_us.get(name, 0), self.is_pinned(name))
            for name, kept in self._kept.items()
        ]

    def _remember(self, name: str, url: str, version: str) -> None:
        record = self._kept[name]
        other = self._names.get(url)
        if other is not None and other != name:
            self._kept[other].sources.pop(url, None)
        record.sources[url] = version
        while len(record.sources) > SOURCES_MAX:
            oldest = next(iter(record.sources))
            del record.sources[oldest]
            self._names.pop(oldest, None)
        self._names[url] = name
        self._used_us.setdefault(name, clock.now_us())
        self._write(name)

    def _write(self, name: str) -> None:
        write_whole(self._about(name), msgspec.json.encode(self._kept[name]))

    def _delete(self, names: list[str]) -> None:
        for name in names:
            self.figures.evicted += 1
            self.figures.evicted_bytes += self._kept[name].size_bytes
            self._unlink(name)
            self._forget(name)

    def _unlink(self, name: str) -> None:
        """The copy first: a `CopyRecord` without a copy is deleted at the next start."""
        for path in (self._directory / name, self._about(name), self._directory / f".{name}.sha256"):
            path.unlink(missing_ok=True)

    def _forget(self, name: str) -> None:
        record = self._kept.pop(name, None)
        self._bytes -= record.size_bytes if record is not None else 0
        self._pinned = None
        self._linked.discard(name)
        self._holders.pop(name, None)
        self._used_us.pop(name, None)
        for url in record.sources if record is not None else ():
            self._names.pop(url, None)

    def _about(self, name: str) -> Path:
        return self._directory / f".{name}.json"


def distinct(paths: Iterable[Path]) -> StageRoom:
    """Bytes and number of these files, each copy once."""
    found = {status.st_ino: status.st_size for status in (path.stat() for path in paths)}
    return StageRoom(sum(found.values()), len(found))


def held_alone(directory: Path) -> StageRoom:
    """Bytes and number of the copies that nothing but this directory links."""
    links: dict[int, tuple[int, os.stat_result]] = {}
    for path in directory.rglob("[!.]*"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                links[status.st_ino] = (links.get(status.st_ino, (0, status))[0] + 1, status)
    sizes = [status.st_size for count, status in links.values() if status.st_nlink == count + 1]
    return StageRoom(sum(sizes), len(sizes))
