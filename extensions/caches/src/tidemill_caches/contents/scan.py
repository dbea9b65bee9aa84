"""What a cache holds, read from its files one at a time: a cache of a million files is never held in memory.

Only directory entries, the `.cinfo` files and the size of each file on disk are read, never cached data. What vanishes
meanwhile was purged. A dataset is the directory part of a file's path.
"""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.errors import ConfigError, ProtocolError, SiteError
from tidemill.files import why_not_opened
from tidemill_caches.contents import cinfo
from tidemill_caches.contents.cinfo import SUFFIX, CachedInfo
from tidemill_caches.engine.directory import DATA_MARK, DATA_TRIAL

DEPTH_MAX = 600
"""Directories within each other; each takes a descriptor. XRootD's paths have at most 1024 characters."""
TAGS = ".xrdt"
"""XRootD's own page checksums (`pfc.cschk cache`): no cached files."""
NO_RECORD = "it has no .cinfo file"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CachedFile(NamedTuple):
    """A file in a cache. `info` None: XCache would fetch it again, for the reason in `why`."""

    path: str  #: as in the URL: `/store/d/f`
    disk_bytes: int  #: what its data take on disk, 0 where it has none
    info: CachedInfo | None
    why: str = ""


class DatasetContents(msgspec.Struct, kw_only=True):
    """Sums over the files of a dataset, or of a whole cache. `file_bytes`: of files of which a part is cached."""

    dataset: str
    files: int = 0
    complete: int = 0
    held_bytes: int = 0
    file_bytes: int = 0
    disk_bytes: int = 0
    opens: int = 0
    used_s: int = 0  #: last use of any of them, seconds since 1970
    unreadable: int = 0  #: files that XCache would fetch again: their record is missing or broken

    @property
    def share(self) -> float:
        """Cached bytes as a share of the size of the files that are cached in part or whole."""
        return self.held_bytes / self.file_bytes if self.file_bytes else 0.0

    def add(self, file: CachedFile) -> None:
        """Count a file."""
        self.disk_bytes += file.disk_bytes
        if file.info is None:
            self.unreadable += 1
            return
        self.files += 1
        self.complete += file.info.is_complete
        self.held_bytes += file.info.held_bytes
        self.file_bytes += file.info.file_bytes
        self.opens += file.info.opens
        self.used_s = max(self.used_s, file.info.used_s)

    def join(self, other: DatasetContents) -> None:
        """Add the sums of another."""
        for name in ("files", "complete", "held_bytes", "file_bytes", "disk_bytes", "opens", "unreadable"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.used_s = max(self.used_s, other.used_s)


class ScanPace:
    """Limits a scan to `files_per_s`, which leaves the disk to readers; 0 = no limit."""

    def __init__(self, files_per_s: float) -> None:
        self._per_s = files_per_s
        self._begun_s = clock.monotonic_s()
        self._count = 0

    def step(self) -> None:
        """Count a file, and pause where the scan is ahead of its pace."""
        self._count += 1
        if self._per_s and self._count % 64 == 0:
            ahead_s = self._count / self._per_s - (clock.monotonic_s() - self._begun_s)
            if ahead_s > 0:
                clock.sleep_s(ahead_s)


def directories(
    data: Path, *, below: str = "/", verify: bool = False, pace: ScanPace | None = None
) -> Iterator[tuple[str, Iterator[CachedFile]]]:
    """Each directory with the files in it, which are read as they are taken. Raises SiteError, ConfigError.

    `below`: the part of the cache to read, a directory's path. `verify`: also the checksum of each record's blocks.
    Costs some 30 us of a processor for each file.
    """
    path = below.rstrip("/")
    refuse_links(data, path)
    yield from _directories(
        f"{os.fspath(data).rstrip('/')}{path}", path, _Reading(verify, pace or ScanPace(0))
    )


def refuse_links(data: Path, path: str) -> None:
    """Raise ConfigError where a directory on the way to a path in the cache is a symbolic link: XCache makes none, and
    what lies behind it is not the cache's to list or to remove."""
    at = os.fspath(data).rstrip("/")
    for name in path.split("/")[1:]:
        at = f"{at}/{name}"
        if Path(at).is_symlink():
            raise ConfigError(
                f"`{at}` is a symbolic link: what it leads to is not part of the cache",
                hint="name a directory or file of the cache itself",
            )


def text_of(path: str) -> str:
    """A path as text: what of a name is not UTF-8 is shown as `\\xff`."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


class _Reading(NamedTuple):
    verify: bool
    pace: ScanPace


def _directories(folder: str, path: str, reading: _Reading) -> Iterator[tuple[str, Iterator[CachedFile]]]:
    yield path or "/", _files(folder, path, reading)
    above = [(path, _entries(folder))]
    try:
        while above:
            path, entries = above[-1]
            entry = next(entries, None)
            if entry is None:
                above.pop()
            elif entry.is_dir(follow_symlinks=False) and not (path == "" and entry.name == TAGS):
                if len(above) >= DEPTH_MAX:
                    raise SiteError(
                        f"`{entry.path}` lies more than {DEPTH_MAX} directories deep in the cache"
                    )
                inner = f"{path}/{entry.name}"
                yield inner, _files(entry.path, inner, reading)
                above.append((inner, _entries(entry.path)))
    finally:
        for _, entries in above:
            entries.close()


def _entries(folder: str) -> Generator[os.DirEntry[str], None, None]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise ConfigError(
            f"`{folder}` may not be read by this user", hint="run this as the user to whom the cache belongs"
        ) from error
    except OSError as error:
        raise SiteError(f"failed to list `{folder}`: {error.strerror}") from error


def _files(folder: str, path: str, reading: _Reading) -> Iterator[CachedFile]:
    for entry in _entries(folder):
        if not entry.is_file(follow_symlinks=False):
            continue
        is_record = entry.name.endswith(SUFFIX)
        if is_record and not os.path.lexists(f"{entry.path}{SUFFIX}"):  # else a file of that name is cached
            name = entry.name.removesuffix(SUFFIX)
            yield _file(folder, f"{path}/{name}", name, verify=reading.verify)
            reading.pace.step()
        elif path == "" and entry.name in (DATA_MARK, DATA_TRIAL):
            continue  # the directory's own: a cache without its mark does not start
        elif not is_record and not os.path.lexists(f"{entry.path}{SUFFIX}"):
            disk_bytes = _disk_bytes(entry.path)
            if disk_bytes is not None:
                yield CachedFile(f"{path}/{entry.name}", disk_bytes, None, NO_RECORD)


def _file(folder: str, path: str, name: str, *, verify: bool) -> CachedFile:
    disk_bytes = _disk_bytes(f"{folder}/{name}")
    if disk_bytes is None:  # XCache fetches all of it again, whatever the record says
        return CachedFile(path, 0, None, "it has a .cinfo file and no data")
    try:
        return CachedFile(path, disk_bytes, read_info(f"{folder}/{name}{SUFFIX}", verify=verify))
    except (ProtocolError, SiteError) as error:
        return CachedFile(path, disk_bytes, None, error.message)


def read_info(path: str, *, verify: bool = True) -> CachedInfo:
    """The record of a file, by the path of its `.cinfo`. Raises ProtocolError, SiteError."""
    try:
        descriptor = os.open(path, _READ)
        try:
            content = os.read(descriptor, 8192)
            while len(content) % 8192 == 0 and content and len(content) <= cinfo.CINFO_BYTES_MAX:
                piece = os.read(descriptor, 8192 * 16)
                if not piece:
                    break
                content += piece
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SiteError(f"its .cinfo file cannot be read: {why_not_opened(error)}") from error
    return cinfo.parse(content, verify=verify)


def _disk_bytes(path: str) -> int | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else None


def find(data: Path, path: str) -> CachedFile | None:
    """One file by its path, with every checksum of its record; None where the cache has nothing of it."""
    folder, _, name = f"{os.fspath(data).rstrip('/')}{path}".rpartition("/")
    if not name:
        return None
    refuse_links(data, path.rpartition("/")[0])
    if os.path.lexists(f"{folder}/{name}{SUFFIX}"):
        return _file(folder, path, name, verify=True)
    disk_bytes = _disk_bytes(f"{folder}/{name}")
    return None if disk_bytes is None else CachedFile(path, disk_bytes, None, NO_RECORD)


def datasets(found: Iterable[tuple[str, Iterator[CachedFile]]]) -> Iterator[DatasetContents]:
    """The sums of each directory that holds files."""
    for path, files in found:
        sums = DatasetContents(dataset=text_of(path))
        for each in files:
            sums.add(each)
        if sums.files or sums.unreadable:
            yield sums


class ContentsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache holds: sums, and the datasets of which it holds most. `left_out`: datasets that are not listed."""

    at_us: int
    took_s: float
    total: DatasetContents
    datasets: list[DatasetContents]
    left_out: int = 0


def summary(datasets: Iterable[DatasetContents], *, count_max: int) -> ContentsSummary:
    """Sums over all datasets, and the `count_max` largest; of the others nothing is kept."""
    begun_s = clock.monotonic_s()
    total = DatasetContents(dataset="")
    kept: list[tuple[int, int, DatasetContents]] = []
    count = 0
    for count, each in enumerate(datasets, 1):
        total.join(each)
        item = (each.held_bytes, -count, each)
        if len(kept) < count_max:
            heapq.heappush(kept, item)
        elif kept:
            heapq.heappushpop(kept, item)
    largest = [each for _, _, each in sorted(kept, reverse=True)]
    return ContentsSummary(
        at_us=clock.now_us(), took_s=round(clock.monotonic_s() - begun_s, 3), total=total, datasets=largest,
        left_out=count - len(largest),
    )  # fmt: skip
