"""Inputs of jobs, copied into `SITE/stage` before their events are granted.

    SITE/stage/files/NAME     one copy of each content, for all jobs (see `cache`)
    SITE/stage/files/.NAME.sha256  the digest of a large one, by which nodes exchange it
    SITE/stage/files/in-*     a remote file on its way (see `moves`)
    SITE/stage/JOB/NAME       a shared input (hard link to a copy)
    SITE/stage/JOB/.NAME.sha256  its copy's digest (hard link)
    SITE/stage/JOB/NAME.d/E   an `each` input: the file of event E (hard link)
    SITE/stage/JOB/NAME.lines the text of an `each` input: line k belongs to event k

Works in the agent's helper threads, which wait for no remote file: `stage` raises MovesPendingError then, and is called
again. Everything it does can be repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.files import sync_directory, write_durable
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.node.bundle import copy_member
from tidemill.site.data.cache import CacheLimits, DataCache
from tidemill.site.data.moves import MoveOrder, Moves, MovesPendingError, order_id
from tidemill.site.data.owners import NOBODY, OwnedPlaces, Reader
from tidemill.site.state.site_state import KeptPart
from tidemill.transfer.allowed import is_remote, permit
from tidemill.transfer.contract import Direction
from tidemill.transfer.file import FileTransfer, Roots, is_location, local_path
from tidemill.wire.node import InputDef

LINES_BYTES_MAX = 256 << 20
"""Read whole by a helper thread; 100 bytes for each of 2.6 million events."""

FRESH_S = 30.0
"""A remote file whose version was asked for so lately is not asked again: jobs of one campaign come by thousands."""

FRESH_MAX = 10_000
STAGED_BYTES_MIN = 1 << 20
"""Smaller inputs are read by each slot (crates/pilot/src/supply/files.rs): their digest is not needed."""


class DataFigures(NamedTuple):
    """What the site's data cost and kept, since the agent's start. `moves`: (way, done, failed, bytes)."""

    files: int
    bytes: int
    pinned_bytes: int
    hits: int
    misses: int
    evicted_bytes: int
    moves: list[tuple[str, int, int, int]]


class _Wanted(NamedTuple):
    """A file that a job reads. `roots`: where it may lie, if it is one of this site."""

    url: str
    sha256: str | None
    roots: Roots


class Stage:
    """The stage of one site. Thread-safe. `moving`: brings remote files; None = none are brought."""

    def __init__(
        self, directory: Path, config: SiteConfig, places: OwnedPlaces, moving: Moves | None = None
    ) -> None:
        self._directory = directory
        self._files = directory / "files"
        idle_bytes = config.transfer.cache_bytes_max
        limits = CacheLimits(
            config.stage_bytes_max,
            config.stage_bytes_max // 2 if idle_bytes is None else idle_bytes,
            config.transfer.cache_age_s,
        )
        self.cache = DataCache(self._files, limits)
        self._config = config
        self._places = places
        self._moving = moving
        self._fresh_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._figures = DataFigures(0, 0, 0, 0, 0, 0, [])
        self._is_swept = False

    def stage(
        self, job: int, spec: JobSpec, events: list[tuple[int, int]], reader: Reader = NOBODY
    ) -> list[InputDef]:
        """Have the inputs of these events in place, as far as `reader` may read them.

        Raises SiteError, which becomes the job's `stage_in` failure, and MovesPendingError while remote files come.
        """
        directory = self._directory / str(job)
        awaits: list[str] = []
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            inputs = [
                self._shared(directory, each, reader, awaits)
                if each.kind is InputKind.SHARED
                else self._each(directory, each, events, reader, awaits)
                for each in spec.inputs
            ]
        except OSError as error:
            raise SiteError(
                f"failed to stage inputs of job {job} in `{directory}`: {error.strerror}"
            ) from error
        if awaits:
            raise MovesPendingError(awaits)
        return [each for each in inputs if each is not None]

    def check_places(self, spec: JobSpec, owner: str) -> None:
        """Raise TransferError or SiteError (lasting) if an output would go where this site writes nothing: before
        anything runs."""
        for place in {spec.output_dir, *(each.url for each in spec.outputs or ())}:
            if place and is_remote(place):
                permit(place, self._config.endpoints, Direction.OUT)
            elif place:
                path = local_path(place)
                self._places.of(owner).confine(
                    path if place.endswith("/") or place == spec.output_dir else path.parent
                )

    def is_done(self, awaits: tuple[str, ...]) -> bool:
        """Whether all of these moves have an outcome."""
        return self._moving is None or self._moving.is_done(awaits)

    def figures(self, moves: list[tuple[str, int, int, int]]) -> DataFigures:
        """What the cache holds and did, beside what was moved; as it was last while a thread is at work with it."""
        if self._lock.acquire(blocking=False):
            try:
                counts = self.cache.figures
                self._figures = DataFigures(
                    files=self.cache.files,
                    bytes=self.cache.bytes,
                    pinned_bytes=self.cache.pinned_bytes(),
                    hits=counts.hits,
                    misses=counts.misses,
                    evicted_bytes=counts.evicted_bytes,
                    moves=[],
                )
            finally:
                self._lock.release()
        return self._figures._replace(moves=moves)

    def tidy(self) -> None:
        """As `sweep`, whether a job was cleaned or not: copies grow old."""
        self._is_swept = False
        self.sweep()

    def sweep(self) -> None:
        """Let the cache keep its limits, once for all jobs that were cleaned. While a thread is at work with it that is
        left for the next call: no tick waits for a large file. Raises SiteError."""
        if self._is_swept or not self._lock.acquire(blocking=False):
            return
        try:
            self.cache.tidy(at_once=self._config.transfer.cache_bytes_max == 0)
            self._is_swept = True
        except OSError as error:
            raise SiteError(f"failed to tidy `{self._files}`: {error.strerror}") from error
        finally:
            self._lock.release()

    def stage_parts(self, job: int, parts: list[KeptPart], output: str, fleets: Path) -> list[InputDef]:
        """The kept parts of an output as inputs `part-000000`, ... of a merge step, in event order, verified."""
        directory = self._directory / str(job)
        directory.mkdir(mode=0o700, exist_ok=True)
        inputs: list[InputDef] = []
        for part in parts:
            for ref in part.outputs:
                if ref.name != output:
                    continue
                name = f"part-{len(inputs):06}"
                path = directory / name
                temporary = directory / f".{name}.tmp"
                with temporary.open("wb") as file:
                    copy_member(fleets / part.fleet / "bundle", ref, file)
                temporary.rename(path)
                inputs.append(_definition(name, "shared", path=path, content=(ref.sha256, ref.length)))
        sync_directory(directory)
        return inputs

    def clean(self, job: int) -> None:
        """Remove a job's inputs; `sweep` lets go of copies that are not needed any more. Raises SiteError."""
        try:
            shutil.rmtree(self._directory / str(job))
        except FileNotFoundError:
            return
        except OSError as error:
            raise SiteError(f"failed to clean `{self._directory / str(job)}`: {error.strerror}") from error
        self._is_swept = False

    def _shared(self, directory: Path, one: Input, reader: Reader, awaits: list[str]) -> InputDef | None:
        path = directory / one.name
        if not self._fetch_input(one, path, reader, awaits):
            return None
        size = path.stat().st_size
        sha256 = one.sha256
        if sha256 is None and size >= STAGED_BYTES_MIN:
            sha256 = _digest(path)
        return _definition(one.name, "shared", path=path, content=(sha256, size))

    def _each(
        self,
        directory: Path,
        one: Input,
        events: list[tuple[int, int]],
        reader: Reader,
        awaits: list[str],
    ) -> InputDef | None:
        lines_path = directory / f"{one.name}.lines"
        if not self._fetch_input(one, lines_path, reader, awaits):
            return None
        if lines_path.stat().st_size > LINES_BYTES_MAX:
            raise SiteError(f"`{one.url}` is larger than {LINES_BYTES_MAX} bytes", transient=False)
        lines = lines_path.read_text(encoding="utf-8", errors="replace").splitlines()
        folder = directory / f"{one.name}.d"
        has_files = any(is_location(line.strip()) for line in lines[:1000])
        if has_files:
            folder.mkdir(mode=0o700, exist_ok=True)
        for first, end in events:
            if end > len(lines):
                raise SiteError(
                    f"`{one.url}` has {len(lines)} lines, event {max(first, len(lines))} has none",
                    hint="an `each` input needs one line for each event, empty ones included",
                    transient=False,
                )
            for event in range(first, end) if has_files else ():
                line = lines[event].strip()
                if is_location(line):
                    wanted = _Wanted(line, None, self._places.of(reader.owner))
                    self._fetch(wanted, folder / str(event), awaits)
        return _definition(one.name, "each", path=folder if has_files else None, lines=lines_path)

    def _fetch_input(self, one: Input, path: Path, reader: Reader, awaits: list[str]) -> bool:
        """As `_fetch`, for what the job itself names: an output of an earlier job may be another owner's."""
        job = reader.from_jobs.get(one.name)
        if job is None or is_remote(one.url):
            return self._fetch(_Wanted(one.url, one.sha256, self._places.of(reader.owner)), path, awaits)
        roots = self._places.for_input(reader, local_path(one.url), job)
        try:
            return self._fetch(_Wanted(one.url, one.sha256, roots), path, awaits)
        except SiteError as error:
            if error.transient:
                raise
            raise SiteError(
                f"input `{one.name}`, an output of job {job}, cannot be read here: {error.message}",
                hint=f"run the job at the site that ran job {job}, or deliver to a place that both sites reach",
                transient=False,
            ) from error

    def _fetch(self, wanted: _Wanted, path: Path, awaits: list[str]) -> bool:
        """Have a file at `path`; False = it is on its way, by the move that is added to `awaits`."""
        if path.exists():
            return True
        sha256 = None if wanted.sha256 is None else wanted.sha256.removeprefix("sha256:").lower()
        wanted = wanted._replace(sha256=sha256)
        with self._lock:
            if is_remote(wanted.url):
                name, hit = self._remote(wanted.url, sha256, awaits)
            else:
                name, hit = self._local(wanted)
            if name is None:
                return False
            self.cache.link(name, path, hit=hit)
            large = path.stat().st_size >= STAGED_BYTES_MIN
            if large and sha256 is None and path.suffix != ".lines" and path.parent.suffix != ".d":
                self._know_digest(self._files / name)
                _link(_digest_file(self._files / name), _digest_file(path))
        return True

    def _local(self, wanted: _Wanted) -> tuple[str, bool]:
        """The copy of a file of this site, and whether it was there already."""
        url, sha256, roots = wanted
        transfer = FileTransfer(roots, size_max=self._config.stage_file_bytes_max)
        source = transfer.look(url)
        name = self.cache.find(source.path, source.version, sha256)
        if name is not None:
            return name, True
        self.cache.make_room(source.size_bytes, url)
        temporary = self._files / f".{order_id(Direction.IN, source.path)}.tmp"
        temporary.unlink(missing_ok=True)
        transfer.fetch(source, temporary, sha256=sha256)
        return self.cache.adopt(temporary, source.path, version=source.version, sha256=sha256), False

    def _remote(self, url: str, sha256: str | None, awaits: list[str]) -> tuple[str | None, bool]:
        """The copy of a remote file, and whether it was there already; None while it is on its way."""
        permit(url, self._config.endpoints, Direction.IN)
        known = None if sha256 is None else self.cache.find_content(sha256)
        version = self.cache.version(url)
        if known is None and version is not None and self._fresh_s.get(url, 0.0) > clock.monotonic_s():
            known = self.cache.find(url, version, sha256)
        if known is not None:
            return known, True
        if self._moving is None:
            raise SiteError(f"failed to stage `{url}`: nobody moves remote files here", transient=False)
        wanted = order_id(Direction.IN, url, sha256)
        outcome = self._moving.take(wanted)
        if outcome is None:
            self._order(wanted, url, sha256)
            awaits.append(wanted)
            return None, False
        outcome.check()
        self._stay_fresh(url)
        if outcome.moved is not None:
            path = self._files / wanted
            digest = outcome.moved.sha256
            return self.cache.adopt(path, url, version=outcome.version, sha256=digest), False
        found = self.cache.find(url, outcome.version, sha256)
        if found is None:  # it was evicted meanwhile
            self._order(wanted, url, sha256)
            awaits.append(wanted)
        return found, True

    def _order(self, wanted: str, url: str, sha256: str | None) -> None:
        assert self._moving is not None
        version = self.cache.version(url)
        if version is not None and self.cache.find(url, version, sha256) is None:
            version = None
        self._moving.want(
            MoveOrder(
                id=wanted,
                direction=Direction.IN,
                url=url,
                path=str(self._files / wanted),
                expect={} if sha256 is None else {"sha256": sha256},
                version=version,
            )
        )

    def _stay_fresh(self, url: str) -> None:
        if len(self._fresh_s) >= FRESH_MAX:
            self._fresh_s.clear()
        self._fresh_s[url] = clock.monotonic_s() + FRESH_S

    def _know_digest(self, copy: Path) -> None:
        """Have the digest of a copy beside it; its name has it where it was moved."""
        digest = copy.name.removeprefix("sha256-")
        if digest != copy.name and not _digest_file(copy).exists():
            write_durable(_digest_file(copy), digest.encode())
        _digest(copy)


def _definition(
    name: str,
    kind: str,
    *,
    path: Path | None,
    lines: Path | None = None,
    content: tuple[str | None, int | None] = (None, None),
) -> InputDef:
    """`content`: digest and size of the file at `path`."""
    sha256, size = content
    return InputDef(
        name=name,
        kind=kind,
        path=None if path is None else str(path),
        lines=None if lines is None else str(lines),
        first=0,
        sha256=None if sha256 is None else sha256.removeprefix("sha256:").lower(),
        bytes=size,
    )


def _link(source: Path, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.link")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    temporary.rename(path)


def _digest_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _digest(path: Path) -> str:
    """The file's SHA-256, worked out once and kept beside it."""
    with contextlib.suppress(FileNotFoundError):
        known = _digest_file(path).read_text(encoding="ascii", errors="replace")
        if re.fullmatch(r"[0-9a-f]{64}", known):
            return known
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    write_durable(_digest_file(path), sha256.encode())
    return sha256
