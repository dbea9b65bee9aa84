"""Inputs of jobs, copied into `SITE/stage` before their events are granted.

    SITE/stage/files/NAME     one copy of each content, for all jobs (see `cache`)
    SITE/stage/files/.NAME.sha256  the digest of a large one, by which nodes exchange it
    SITE/stage/files/in-*     a remote file on its way (see `moves`)
    SITE/stage/out            outputs that wait for their delivery (see `remote_outputs`)
    SITE/stage/JOB/NAME       a shared input (hard link to a copy)
    SITE/stage/JOB/.NAME.sha256  its copy's digest (hard link)
    SITE/stage/JOB/NAME.d/E   an `each` input: the file of event E (hard link)
    SITE/stage/JOB/.NAME.url, NAME.d/.E.url  what programs open instead of reading a file (see `routing`)
    SITE/stage/JOB/NAME.lines the text of an `each` input: line k belongs to event k

A job gets its inputs in steps: sizes are asked for, room for all that is missing is reserved (`budget`), contents are
brought (`fetching`), links are made. Works in the agent's helper threads, which wait for no remote or large file:
`stage` raises MovesPendingError then, or NoRoomError where the stage is full, and is called again. Everything it does
can be repeated; after a restart links say what is in use, and the rest is asked for again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError, TidemillError
from tidemill.files import open_private, short_name, sync_directory
from tidemill.lines import KnownLines, NumberedLines
from tidemill.log import Log
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.model.quantities import bytes_text, counted_text
from tidemill.node.bundle import copy_member
from tidemill.routing.links import NAME as LINKS
from tidemill.routing.links import RouteLinks
from tidemill.site import constants
from tidemill.site.data.budget import NO_ROOM, StageBudget, StageRoom, StageSpace
from tidemill.site.data.cache import CacheLimits, DataCache, distinct, held_alone
from tidemill.site.data.fetching import (
    StageContent,
    StageContents,
    WantedFile,
    digest_file,
    digest_of,
    named,
    rooms_at,
    rooms_of,
)
from tidemill.site.data.moves import Moves, MovesPendingError
from tidemill.site.data.opened import OpenedInputs, OpenedJob, names_file
from tidemill.site.data.owners import NOBODY, OwnedPlaces, Reader
from tidemill.site.data.remote_outputs import OutgoingFiles
from tidemill.site.data.routing import InputRoutes, is_far
from tidemill.site.state.site_state import KeptPart
from tidemill.site.state.status import DataFigures
from tidemill.transfer.allowed import is_remote, permit
from tidemill.transfer.contract import Direction, NoSpaceError, of_os_error
from tidemill.transfer.file import local_path
from tidemill.wire.node import InputDef

LINES_BYTES_MAX = 256 << 20
"""100 bytes for each of 2.6 million events."""

LINES_LOOKED_AT = 1000
"""Where none of the first lines names a file, no line does."""

STAGED_BYTES_MIN = 1 << 20
"""Smaller inputs are read by each slot (crates/pilot/src/supply/files.rs): their digest is not needed."""

STEP_SHARE = 4
"""The events of one step have at most this part of the stage, if they are several: other jobs want some of it, too."""

KEPT_FREE_SHARE = 50
"""`stage_free_bytes_min` is never more than this part of the file system, so that small ones can be used."""

IDLE_AGE_S = 7 * 86400.0
"""Staged inputs that no job needs are removed after this time, also where there is room: campaigns return in days."""

STAGE_FILES_MAX = 1_000_000
"""Files of staged inputs, of all jobs together: what a project's quota of inodes usually bears."""

FILES_PER_COPY = 3
"""Inodes: the copy, what is known of it, its digest."""

ADMIT_S = 0.5
"""Which jobs may try again is worked out this often."""

_log = Log("stage")


class NoRoomError(MovesPendingError):
    """The stage has no room for a job's inputs: `may_try` says when it may ask again."""

    def __init__(self) -> None:
        super().__init__([])


class StepTooLargeError(MovesPendingError):
    """The files of these events are too many for one step: ask for `events_max` events."""

    def __init__(self, events_max: int) -> None:
        super().__init__([])
        self.events_max = events_max


class _Step(NamedTuple):
    """What is asked for. `is_begun`: events of the job are granted, so what it has is in use."""

    job: int
    directory: Path
    is_begun: bool
    reader: Reader


class Stage:
    """The stage of one site. Thread-safe. `moving`: brings remote files; None = none are brought. `copiers`: copy and
    hash large files; None = the thread that asks does."""

    def __init__(
        self,
        directory: Path,
        config: SiteConfig,
        places: OwnedPlaces,
        moving: Moves | None = None,
        copiers: Executor | None = None,
    ) -> None:
        self._directory = directory
        self._files = directory / "files"
        idle_bytes = constants.STAGE_CACHE_BYTES_MAX
        limits = CacheLimits(
            config.stage_bytes_max,
            config.stage_bytes_max // 2 if idle_bytes is None else idle_bytes,
            IDLE_AGE_S,
            STAGE_FILES_MAX,
        )
        self.cache = DataCache(self._files, limits)
        self.budget = StageBudget(StageRoom(config.stage_bytes_max, STAGE_FILES_MAX))
        self._contents = StageContents(config, self.cache, self.budget, moving=moving, copiers=copiers)
        self._lock = self._contents.lock
        self.routes = InputRoutes(config, RouteLinks(directory.parent / LINKS, constants.PROBE_S))
        self._contents.has_come = self.routes.links.note_moved
        self._opened = OpenedInputs(self.routes, self._contents)
        self.copiers = copiers
        self.outgoing = OutgoingFiles()
        self._config = config
        self._places = places
        self._disk = self._look_at_disk()
        #: capacity, and bytes that are used; None = to be worked out
        self._shown: tuple[StageRoom, int] | None = None
        self.jobs_before = frozenset(
            int(each.name) for each in directory.iterdir() if each.name.isdecimal()
        )  #: that an earlier agent staged inputs of
        self._next_admit_s = 0.0
        self._admitted: set[int] = set()
        self._figures = DataFigures(0, 0, 0, 0, 0, 0, [])
        self._lines = KnownLines()
        self._is_swept = False
        self._may_be_leftovers = True  #: parts of abandoned transfers

    def stage(
        self,
        job: int,
        spec: JobSpec,
        events: list[tuple[int, int]],
        reader: Reader = NOBODY,
        is_begun: bool = True,
    ) -> list[InputDef]:
        """Have the inputs of these events in place, as far as `reader` may read them.

        Raises SiteError, which becomes the job's `stage_in` failure, MovesPendingError while files come, NoRoomError
        while the stage is full, StepTooLargeError where fewer events would fit.
        """
        step = _Step(job, self._directory / str(job), is_begun, reader)
        with self._attempt(job, f"stage inputs of job {job} in `{step.directory}`", is_begun=is_begun):
            step.directory.mkdir(mode=0o700, exist_ok=True)
            self._count_there(step)
            self.routes.begin(job, spec.inputs)
            self._have(step, self._all_wanted(step, spec), spec)
            each_files = self._event_files(step, spec, events)
            if each_files:
                self._have_events(step, spec, each_files)
            self._settle(step, spec, events)
            self.routes.links.write()
            return [
                msgspec.structs.replace(
                    _described(step.directory, each),
                    node_cache=self.routes.is_by_node(job, each.name) or None,
                )
                for each in spec.inputs
            ]

    def check_places(self, spec: JobSpec, owner: str) -> None:
        """Check before anything runs that the site may write to the outputs' places. Raises TransferError or SiteError,
        both permanent."""
        for place in {spec.output_dir, *(each.url for each in spec.outputs or ())}:
            if place and is_remote(place):
                permit(place, self._config.endpoints, Direction.OUT)
            elif place:
                path = local_path(place)
                self._places.roots(owner).confine(
                    path if place.endswith("/") or place == spec.output_dir else path.parent
                )

    # ---- room ----

    def is_done(self, awaits: tuple[str, ...]) -> bool:
        """Whether none of these is still on its way."""
        return self._contents.is_done(awaits)

    def may_try(self, job: int) -> bool:
        """Whether a job that waits for room may ask again."""
        now_s = clock.monotonic_s()
        with self._lock:
            if job not in self.budget.waiting:
                return True
            self.budget.asks(job, now_s=now_s)
            if now_s >= self._next_admit_s:
                self._next_admit_s = now_s + ADMIT_S
                self._admitted = set(self.budget.admitted(self._space(), now_s=now_s))
                self._admitted.update(self.budget.recounts(now_s=now_s))
            return job in self._admitted

    def waits_for(self, job: int) -> str:
        """What a job that waits for room waits for, in words; empty where it does not wait."""
        with self._lock:
            need = self.budget.waiting.get(job)
            if need is None:
                return ""
            if self._shown is None:  # of ten thousand jobs that wait, each asks
                used = self.cache.pinned().plus(self.budget.taken).plus(self.outgoing.room)
                self._shown = self._space().capacity, used.bytes
            capacity, used_bytes = self._shown
            limit, disk = self.budget.limit.bytes, self._disk.bytes
        size = bytes_text(need.room.bytes)
        files = counted_text(need.room.files, "file")
        if not capacity.holds(need.room):
            most = bytes_text(max(0, capacity.bytes))
            return (
                f"room for {size} ({files}) on the disk of the site's stage, which has {most} for inputs even when "
                "nothing else is staged"
            )
        if need.room.bytes <= limit - used_bytes:
            free = bytes_text(max(0, disk))
            return f"room for {size} ({files}) on the disk of the site's stage, of which {free} may be used"
        return (
            f"room for {size} ({files}) in the site's stage, of which {bytes_text(used_bytes)} of "
            f"{bytes_text(limit)} are in use or reserved"
        )

    def late(self, wait_max_s: float) -> list[int]:
        """The jobs that have waited for room for longer than this."""
        with self._lock:
            return self.budget.late(wait_max_s, now_s=clock.monotonic_s())

    def look_for_room(self) -> None:
        """Learn what has become free: links that went, space on disk. For a helper thread, while jobs wait."""
        disk = self._look_at_disk()
        self._refresh()
        with self._lock:
            self._disk, self._shown = disk, None
        self._contents.tidy()

    def drop_events(self, job: int, needed: IntervalSet) -> None:
        """Remove the files of events that are over, so that their copies make room."""
        for folder in (self._directory / str(job)).glob("*.d"):
            for path in list(folder.iterdir()):
                name = path.name.removeprefix(".").removesuffix(".url")
                if name.isdecimal() and int(name) not in needed:
                    path.unlink(missing_ok=True)
        with self._lock:
            self.cache.unlinked()
            self.budget.rooms.drop_events(job, needed.__contains__)

    def release(self, *jobs: int, is_over: bool = True) -> None:
        """What is reserved for these jobs alone is given to others, what comes for them alone is broken off. `is_over`:
        they want nothing more; else queries go on, and a job takes their answers when it tries again."""
        for job in jobs:
            self.routes.forget(job)
        with self._lock:
            for job in jobs:
                self.budget.withdraw(job)
                self.cache.let_go(job)
            gone = self.budget.release(*jobs)
            self._may_be_leftovers |= bool(gone)
            self._shown = None
        self._contents.let_go(jobs if is_over else (), gone)

    def _refresh(self) -> None:
        """Learn which copies lost their links. They may be hundreds of thousands on a slow file system: the agent's
        loop asks for the lock, too."""
        with self._lock:
            names = self.cache.suspects()
        lost = [name for name in names if not self.cache.has_links(name)]
        with self._lock:
            self.cache.lost_links(lost)

    def _look_at_disk(self) -> StageRoom:
        """What may still be written to the file system."""
        status = os.statvfs(self._files)
        kept = min(constants.STAGE_FREE_BYTES_MIN, status.f_blocks * status.f_frsize // KEPT_FREE_SHARE)
        files = status.f_favail - status.f_files // KEPT_FREE_SHARE if status.f_files else 1 << 62
        return StageRoom(status.f_bavail * status.f_frsize - kept, files // FILES_PER_COPY)

    def _space(self) -> StageSpace:
        """Room for what is not reserved yet, if all that no job needs is deleted. The lock is held."""
        pinned, room, unwritten = self.cache.pinned(), self.budget.taken, self.budget.unwritten
        copies = StageRoom(self.cache.bytes, self.cache.files)
        free = self._disk.plus(copies).less(pinned).less(unwritten)
        return StageSpace(
            self.budget.limit.less(pinned).less(room).less(self.outgoing.room).at_most(free),
            self.budget.limit.at_most(self._disk.plus(copies).plus(room).less(unwritten)),
        )

    def _reserve(self, step: _Step, contents: list[StageContent]) -> None:
        """Have room for these contents. Raises NoRoomError, MovesPendingError where the cache has changed meanwhile."""
        missing = {each.key: StageRoom(each.size_bytes, 1) for each in contents if each.name is None}
        names = {each.name for each in contents if each.name is not None}
        disk = self._look_at_disk()
        self._refresh()
        with self._lock:
            self._disk, self._shown = disk, None
            if not all(map(self.cache.has, names)):
                raise MovesPendingError([])
            idle = [self.cache.size(name) for name in names if not self.cache.is_pinned(name)]
            self.budget.rooms.asks(step.job, step.reader.owner, now_s=clock.monotonic_s())
            has_room = self.budget.reserve(
                step.job,
                missing,
                more=StageRoom(sum(idle), len(idle)),
                space=self._space(),
                now_s=clock.monotonic_s(),
            )
            if has_room:
                self.budget.rooms.hold(step.job, rooms_of(contents))
                for name in names:
                    self.cache.hold(name, step.job)
                if missing:
                    self._make_room()
                return
        self._refuse(step)

    def _count_there(self, step: _Step) -> None:
        """What an earlier agent staged for the job is its owner's, too."""
        with self._lock:
            if self.budget.rooms.knows(step.job):
                return
        there = rooms_at(step.directory.rglob("[!.]*"))
        if not there:
            return
        with self._lock:
            self.budget.rooms.asks(step.job, step.reader.owner, now_s=clock.monotonic_s())
            self.budget.rooms.hold(step.job, there)

    def _make_room(self) -> None:
        """Delete what no job needs, so that what is reserved fits beside the copies. The lock is held."""
        room, unwritten = self.budget.taken, self.budget.unwritten
        # what is written already is counted by the file system
        disk = StageRoom(
            self._disk.bytes + room.bytes - unwritten.bytes,
            self._disk.files + room.files - unwritten.files,
        )
        if self._may_be_leftovers:
            total, kept = self.cache.bytes + room.bytes + self.outgoing.room.bytes, 0
            for path, size in self.cache.leftovers(but=self.budget.reserved):
                total += size
                if total > self.budget.limit.bytes or unwritten.bytes > self._disk.bytes:
                    path.unlink(missing_ok=True)
                else:
                    kept += 1
            self._may_be_leftovers = kept > 0
        self.cache.keep_free(room.plus(self.outgoing.room), disk=disk.plus(self.outgoing.room))

    def _refuse(self, step: _Step) -> None:
        """There is no room. Jobs that hold some of their inputs while they wait would keep each other out."""
        if not step.is_begun:
            self._give_up(step.job)
        raise NoRoomError

    def _give_up(self, job: int) -> None:
        """The job, of which no event is granted, holds nothing while it waits."""
        room = held_alone(self._directory / str(job))
        shutil.rmtree(self._directory / str(job), ignore_errors=True)
        with self._lock:
            room = room.plus(self.cache.let_go(job))
            self.cache.unlinked()
            self.budget.rooms.forget(job)
            gone = self.budget.give_up(job, room)
            self._may_be_leftovers |= bool(gone)
        self._contents.unwanted(gone)

    @contextmanager
    def _attempt(self, job: int, what: str, *, is_begun: bool) -> Iterator[None]:
        """What is reserved for a job stays reserved while files come, and not after a failure. A job that has not
        begun holds nothing then: it may wait for its trouble to end for days."""
        try:
            yield
        except MovesPendingError:
            raise
        except NoSpaceError as error:
            self._found_full(job, error, is_begun=is_begun)
        except TidemillError:
            self._failed(job, is_begun=is_begun)
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._found_full(job, of_os_error(error, what), is_begun=is_begun)
            self._failed(job, is_begun=is_begun)
            raise SiteError(f"failed to {what}: {error.strerror or error}") from error
        else:
            with self._lock:
                self.budget.withdraw(job)
                self.cache.let_go(job)
                gone = self.budget.release(job, but=_parts_key(job))
            self._contents.unwanted(gone)

    def _failed(self, job: int, *, is_begun: bool) -> None:
        if not is_begun:
            shutil.rmtree(self._directory / str(job), ignore_errors=True)
            self.cache.unlinked()
            with self._lock:
                self.budget.rooms.forget(job)
        self.release(job, is_over=False)

    def _found_full(self, job: int, error: SiteError, *, is_begun: bool) -> None:
        """A write failed although there seemed to be room: nothing begins for a while."""
        now_s = clock.monotonic_s()
        with self._lock:
            pause_s = self.budget.found_full(now_s=now_s)
            gone = self.budget.put_back(job, now_s=now_s)
            for path, _ in self.cache.leftovers(but=self.budget.reserved):
                path.unlink(missing_ok=True)
        self._contents.unwanted(gone)
        if not is_begun:
            self._give_up(job)
        with self._lock:
            self.cache.let_go(job)
        _log.warning("stage.full", job=job, reason=error.message, next_try_s=round(pause_s, 1))
        raise NoRoomError from error

    # ---- figures and tidying ----

    def figures(self, moves: list[tuple[str, int, int, int]]) -> DataFigures:
        """What the cache holds and did, what is reserved and waited for, beside what was moved; as it was last while a
        thread is at work with it."""
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
                    reserved_bytes=self.budget.taken.bytes,
                    waiting_bytes=self.budget.waited_for.bytes,
                    waiting_jobs=len(self.budget.waiting),
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
        left for the next call: no tick waits for it. Raises SiteError."""
        if self._is_swept or not self._lock.acquire(blocking=False):
            return
        try:
            self.cache.tidy(at_once=constants.STAGE_CACHE_BYTES_MAX == 0)
            self._is_swept = True
        except OSError as error:
            raise SiteError(f"failed to tidy `{self._files}`: {error.strerror}") from error
        finally:
            self._lock.release()

    def clean(self, job: int) -> None:
        """Remove a job's inputs; `sweep` lets go of copies that are not needed any more. Raises SiteError."""
        self.release(job)
        with self._lock:
            self.budget.rooms.forget(job)
        try:
            shutil.rmtree(self._directory / str(job))
        except FileNotFoundError:
            return
        except OSError as error:
            raise SiteError(f"failed to clean `{self._directory / str(job)}`: {error.strerror}") from error
        self.cache.unlinked()
        self._is_swept = False
        if _parts_key(job) in self.budget.reserved:  # `count_parts` came between
            self.release(job)

    # ---- inputs ----

    def stage_parts(self, job: int, parts: list[KeptPart], output: str, fleets: Path) -> list[InputDef]:
        """The kept parts of an output as inputs `part-000000`, ... of a merge step, in event order, verified.

        Raises SiteError, NoRoomError while the stage is full.
        """
        directory = self._directory / str(job)
        found = [(part, ref) for part in parts for ref in part.outputs if ref.name == output]
        with self._attempt(job, f"stage parts of an output in `{directory}`", is_begun=False):
            directory.mkdir(mode=0o700, exist_ok=True)
            self._reserve_parts(job, StageRoom(sum(ref.length for _, ref in found), len(found)))
            inputs: list[InputDef] = []
            for part, ref in found:
                name = f"part-{len(inputs):06}"
                path = directory / name
                temporary = directory / f".{name}.tmp"
                with open_private(temporary, "wb") as file:
                    copy_member(fleets / part.fleet / "bundle", ref, file)
                temporary.rename(path)
                inputs.append(_definition(name, "shared", path=path, content=(ref.sha256, ref.length)))
            sync_directory(directory)
            with self._lock:
                self.budget.reserved[_parts_key(job)].is_written = True
                self.budget.found_room()
        return inputs

    def count_parts(self) -> None:
        """Count what merge steps copied before a restart as reserved: it is not linked. Once, at the start."""
        for directory in self._directory.iterdir():
            copied = [path.stat() for path in directory.glob("part-*")]
            sizes = [each.st_size for each in copied if each.st_nlink == 1]
            if sizes and directory.name.isdecimal():
                job = int(directory.name)
                with self._lock:
                    self.budget.count_existing(job, _parts_key(job), StageRoom(sum(sizes), len(sizes)))

    def _reserve_parts(self, job: int, room: StageRoom) -> None:
        """Room for parts that are more than the whole stage is given when nothing else is in it: they are here anyway,
        and merging them is all that is left of their job."""
        limit = self.budget.limit
        room = StageRoom(min(room.bytes, limit.bytes), min(room.files, limit.files))
        disk = self._look_at_disk()
        with self._lock:
            self._disk = disk
            contents = {_parts_key(job): room}
            space, now_s = self._space(), clock.monotonic_s()
            if not self.budget.reserve(job, contents, more=NO_ROOM, space=space, now_s=now_s):
                raise NoRoomError
            self._make_room()

    def _all_wanted(self, step: _Step, spec: JobSpec) -> list[WantedFile]:
        """The files that the job itself names; for those that programs open a URL is laid out instead. Raises
        MovesPendingError while the size of one is asked for."""
        wanted: list[WantedFile] = []
        awaits: list[str] = []
        for one in spec.inputs:
            if one.kind is not InputKind.SHARED or not self._is_routed(step, one):
                wanted.append(self._wanted(step, one))
                continue
            file = self._opened.shared(self._opened_job(step), one, step.directory / one.name, awaits)
            wanted += [] if file is None else [file]
        if awaits:
            raise MovesPendingError(awaits)
        return wanted

    def _is_routed(self, step: _Step, one: Input) -> bool:
        """An output of another job that lies here is a file like any other."""
        return one.is_routed and (is_far(one.url) or one.name not in step.reader.from_jobs)

    def _opened_job(self, step: _Step) -> OpenedJob:
        return OpenedJob(step.job, step.reader, self._places.roots(step.reader.owner))

    def _settle(self, step: _Step, spec: JobSpec, events: list[tuple[int, int]]) -> None:
        """Where a copy has come, no URL is opened any more."""
        for one in spec.inputs:
            if one.kind is InputKind.SHARED and one.is_routed:
                self._opened.settle(step.directory / one.name)
            elif one.is_opened and (step.directory / f"{one.name}.d").is_dir():
                for event in (event for first, end in events for event in range(first, end)):
                    self._opened.settle(step.directory / f"{one.name}.d" / str(event))

    def _wanted(self, step: _Step, one: Input) -> WantedFile:
        """What the job itself names: an output of an earlier job may be another owner's."""
        is_shared = one.kind is InputKind.SHARED
        path = step.directory / (one.name if is_shared else f"{one.name}.lines")
        sha256 = None if one.sha256 is None else one.sha256.removeprefix("sha256:").lower()
        reader, job = step.reader, step.reader.from_jobs.get(one.name)
        if job is None or is_remote(one.url):
            roots = self._places.roots(reader.owner)
        else:
            roots = self._places.for_input(reader, local_path(one.url), job)
        return WantedFile(
            one.url, sha256, roots, path, with_digest=is_shared and sha256 is None, owner=reader.owner
        )

    def _event_files(
        self, step: _Step, spec: JobSpec, events: list[tuple[int, int]]
    ) -> list[list[WantedFile]]:
        """The files of each of these events, of those that have some."""
        files: dict[int, list[WantedFile]] = {}
        for one in spec.inputs:
            if one.kind is InputKind.SHARED:
                continue
            lines = self._lines_of(one, step.directory)
            _check_lines(one, lines, events)
            if not any(map(names_file, lines.read(0, LINES_LOOKED_AT))):
                continue
            folder = step.directory / f"{one.name}.d"
            folder.mkdir(mode=0o700, exist_ok=True)
            of = self._opened_job(step)
            named = {
                event: line
                for first, end in events
                for event, line in enumerate(lines.read(first, end), first)
            }
            self.routes.prepare(list(named.values()))
            for event, line in named.items():
                known = files.setdefault(event, [])
                if names_file(line):
                    wanted = self._opened.each(of, one, (event, line), folder / str(event))
                    known += [] if wanted is None else [wanted]
        return [files[event] for event in sorted(files)]

    def _lines_of(self, one: Input, directory: Path) -> NumberedLines:
        """The lines of an `each` input, one for each event."""
        path = directory / f"{one.name}.lines"
        if path.stat().st_size > LINES_BYTES_MAX:
            raise SiteError(f"`{one.url}` is larger than {LINES_BYTES_MAX} bytes", transient=False)
        return self._lines.numbered(path)

    def _have(self, step: _Step, wanted: list[WantedFile], spec: JobSpec) -> None:
        """Have the files that a job names at their paths."""
        missing = [each for each in wanted if not each.path.exists()]
        if not missing:
            return
        contents = self._inspect(step, missing, spec)
        there = distinct(each.path for each in wanted if each.path.exists())
        sizes = {each.key: each.size_bytes for each in contents}
        room = there.plus(StageRoom(sum(sizes.values()), len(sizes)))
        self._check_total(f"job {step.job} needs", room)
        self._reserve(step, contents)
        self._bring(step, contents)

    def _have_events(self, step: _Step, spec: JobSpec, events: list[list[WantedFile]]) -> None:
        """Have the files of these events at their paths, as many as are good for one step."""
        missing = [each for files in events for each in files if not each.path.exists()]
        if not missing:
            return
        contents = {each.wanted.path: each for each in self._inspect(step, missing, spec)}
        named = (path for path in step.directory.iterdir() if not path.name.startswith("."))
        room = distinct(path for path in named if path.is_file())
        limit = self.budget.limit
        share = StageRoom(limit.bytes // STEP_SHARE, max(1, limit.files // STEP_SHARE))
        seen: set[str] = set()
        for number, files in enumerate(events):
            for each in (contents[one.path] for one in files if one.path in contents):
                if each.key not in seen:
                    room = StageRoom(room.bytes + each.size_bytes, room.files + 1)
                    seen.add(each.key)
            if number == 0:
                self._check_total(f"an event of job {step.job} needs", room)
            elif not share.holds(room):
                raise StepTooLargeError(number)
        self._reserve(step, list(contents.values()))
        self._bring(step, list(contents.values()))

    def _check_total(self, what: str, room: StageRoom) -> None:
        limit = self.budget.limit
        if not limit.holds(room):
            raise SiteError(
                f"{what} {room.bytes} bytes of inputs in {room.files} files at the same time; this site stages at "
                f"most {limit.bytes} bytes in {limit.files} files",
                hint="use smaller or fewer inputs, or ask the site's operators to raise `stage_bytes_max`",
                transient=False,
            )

    def _inspect(self, step: _Step, missing: list[WantedFile], spec: JobSpec) -> list[StageContent]:
        """Sizes and copies. Raises MovesPendingError while they are asked for."""
        awaits: list[str] = []
        found = [self._inspected(step, each, spec, awaits) for each in missing]
        if awaits:
            raise MovesPendingError(awaits)
        return [each for each in found if each is not None]

    def _inspected(
        self, step: _Step, wanted: WantedFile, spec: JobSpec, awaits: list[str]
    ) -> StageContent | None:
        try:
            return self._contents.inspect(wanted, step.job, awaits)
        except SiteError as error:
            self._opened.pass_over(wanted, error)
            raise named(error, step.reader, spec, wanted) from error

    def _bring(self, step: _Step, contents: list[StageContent]) -> None:
        """Have contents with room at their paths. Raises MovesPendingError while they come."""
        awaits: list[str] = []
        found = [(each, self._brought(each, awaits)) for each in contents]
        if awaits:
            raise MovesPendingError(awaits)
        for content, name in found:
            if name is None:  # it was dropped again, by a restart of the host or an operator
                raise MovesPendingError([])
            path, large = content.wanted.path, content.size_bytes >= STAGED_BYTES_MIN
            with_digest = content.wanted.with_digest and large
            if with_digest and not self._contents.has_digest(name, awaits):
                continue
            with self._lock:
                self.cache.link(name, path, hit=self.cache.is_hit(name, step.job))
                self.budget.rooms.came(step.job, content.key, rooms_at([path]))
            if with_digest:
                _link(digest_file(self._files / name), digest_file(path))
        if awaits:
            raise MovesPendingError(awaits)

    def _brought(self, content: StageContent, awaits: list[str]) -> str | None:
        try:
            return self._contents.bring(content, awaits)
        except SiteError as error:
            self._opened.pass_over(content.wanted, error)
            raise


def _parts_key(job: int) -> str:
    return f"parts-{job}"


def _check_lines(one: Input, lines: NumberedLines, events: list[tuple[int, int]]) -> None:
    for first, end in events:
        if end > lines.count:
            raise SiteError(
                f"`{one.url}` has {lines.count} lines, event {max(first, lines.count)} has none",
                hint="an `each` input needs one line for each event, empty ones included",
                transient=False,
            )


def _described(directory: Path, one: Input) -> InputDef:
    """An input that is in place."""
    if one.kind is not InputKind.SHARED:
        folder = directory / f"{one.name}.d"
        lines = directory / f"{one.name}.lines"
        kind = "urls" if one.is_opened else "each"
        return _definition(one.name, kind, path=folder if folder.exists() else None, lines=lines)
    path = directory / one.name
    if one.is_opened and not path.exists():
        return _definition(one.name, "url", path=path)
    size = path.stat().st_size
    sha256 = one.sha256
    if sha256 is None and size >= STAGED_BYTES_MIN:
        sha256 = digest_of(path)
    found = _definition(one.name, "shared", path=path, content=(sha256, size))
    return msgspec.structs.replace(found, unpack=True) if one.unpack is True else found


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
    temporary = path.with_name(f".{short_name(path.name)}.link")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    temporary.rename(path)
