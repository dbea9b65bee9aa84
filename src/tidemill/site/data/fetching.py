"""Contents come to the stage: each once, however many jobs want it, and none while another is waited for.

A content is a file of this site in one version, or a remote URL. Its size is known before it is fetched, so that room
for it can be reserved (`budget`). Small files of this site are copied by the thread that asks; large ones, and digests
of large ones, by threads of their own; remote ones by `moves`. No lock is held while bytes are copied or hashed.
"""

from __future__ import annotations

import contextlib
import re
import stat
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError, TidemillError
from tidemill.files import write_durable
from tidemill.log import Log
from tidemill.model.job import JobSpec
from tidemill.site.data.budget import StageBudget, StageRoom
from tidemill.site.data.cache import DataCache
from tidemill.site.data.moves import KEEP_S, MoveOrder, MoveOutcome, Moves, MovesPendingError, order_id
from tidemill.site.data.owners import Reader
from tidemill.transfer.allowed import is_remote, permit
from tidemill.transfer.checksum import sums
from tidemill.transfer.contract import Direction, SourceFile
from tidemill.transfer.file import FileTransfer, Roots

FRESH_S = 30.0
"""A remote file whose version was asked for so lately is not asked again: jobs of one campaign come by thousands."""

FRESH_MAX = 10_000
SIZES_MAX = 100_000
INLINE_BYTES_MAX = 64 << 20
"""Larger files are copied and hashed by threads of their own: 0.1 s at 0.6 GB/s."""

UNTOLD_BYTES = 256 << 20
"""Reserved at first for a file whose server does not say how large it is."""

UNTOLD_SHARE = 16
"""... but no more than this part of the stage."""

FAILED_MAX = 10_000
"""Errors of threads that no job has asked for yet."""

_OF_COPIES = ("digest-", "check-")

_log = Log("stage")


class WantedFile(NamedTuple):
    """A file that a job reads, at `path`. `roots`: where it may lie, if it is one of this site. `with_digest`: nodes
    exchange it by its digest. `adler32`: that a catalogue says; empty = none does. `owner`: of the job."""

    url: str
    sha256: str | None
    roots: Roots
    path: Path
    with_digest: bool = False
    adler32: str = ""
    owner: str = ""


class StageContent(NamedTuple):
    """What a wanted file is made of. `name`: its copy, if it is there. `source`: of a file of this site."""

    key: str
    wanted: WantedFile
    size_bytes: int
    name: str | None = None
    source: SourceFile | None = None


def rooms_of(contents: Iterable[StageContent]) -> dict[str, tuple[StageRoom, int | None]]:
    """The room of each content, and the event that it is for; None = for all of the job."""
    return {each.key: (StageRoom(each.size_bytes, 1), _event_of(each.wanted.path)) for each in contents}


def rooms_at(paths: Iterable[Path]) -> dict[str, tuple[StageRoom, int | None]]:
    """As `rooms_of`, of files of a job that are there: each copy, which is linked there, once."""
    found: dict[str, tuple[StageRoom, int | None]] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found[f"file {status.st_ino}"] = StageRoom(status.st_size, 1), _event_of(path)
    return found


def _event_of(path: Path) -> int | None:
    return int(path.name) if path.parent.suffix == ".d" and path.name.isdecimal() else None


def named(error: SiteError, reader: Reader, spec: JobSpec, wanted: WantedFile) -> SiteError:
    """The error, with the name of an input that is another job's output: its URL is not what the user wrote."""
    for one in spec.inputs:
        job = reader.from_jobs.get(one.name)
        if job is not None and one.url == wanted.url and not error.transient and not is_remote(one.url):
            return SiteError(
                f"input `{one.name}`, an output of job {job}, cannot be read here: {error.message}",
                hint=f"run the job at the site that ran job {job}, or deliver to a place that both sites reach",
                transient=False,
            )
    return error


class _Askers:
    """Which jobs wait for which queries: nothing is reserved yet for what these ask about, so that alone says whether
    anyone still wants the answer. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._jobs: dict[str, set[int]] = {}
        self._asked: dict[int, set[str]] = {}  #: the same by job, which may ask about each of its events

    def wait(self, key: str, job: int) -> None:
        """The job waits for this answer."""
        self._jobs.setdefault(key, set()).add(job)
        self._asked.setdefault(job, set()).add(key)

    def drop(self, key: str) -> None:
        """There is an answer, or none will come: who wants one asks again."""
        for job in self._jobs.pop(key, ()):
            self._asked[job].discard(key)
            if not self._asked[job]:
                del self._asked[job]

    def let_go(self, job: int) -> list[str]:
        """The job waits for nothing any more; what it alone waited for."""
        alone = [key for key in self._asked.get(job, ()) if self._jobs[key] == {job}]
        for key in self._asked.pop(job, ()):
            self._jobs[key].discard(job)
        for key in alone:
            del self._jobs[key]
        return alone


class StageContents:
    """The contents of one stage. Thread-safe; `lock` is that of `cache` and `budget`, and is held for moments only."""

    def __init__(
        self,
        config: SiteConfig,
        cache: DataCache,
        budget: StageBudget,
        *,
        moving: Moves | None = None,
        copiers: Executor | None = None,
    ) -> None:
        """`copiers` None = the thread that asks copies large files, too."""
        self.lock = threading.Lock()
        self.has_come: Callable[[str, int, float], None] = lambda url, size_bytes, seconds: None
        self._config = config
        self._cache = cache
        self._budget = budget
        self._moving = moving
        self._copiers = copiers
        self._busy: set[str] = set()  #: copies and digests being made
        self._failed: dict[str, TidemillError] = {}
        self._ordered: dict[str, float] = {}  #: moves whose outcome was not taken yet, and since when
        self._askers = _Askers()
        self._sizes: dict[str, int] = {}  #: of remote contents
        self._fresh_s: dict[str, float] = {}

    def is_done(self, awaits: Collection[str]) -> bool:
        """Whether none of these is still on its way."""
        if any(each in self._busy for each in awaits):
            return False
        return self._moving is None or self._moving.is_done(awaits)

    def inspect(self, wanted: WantedFile, job: int, awaits: list[str]) -> StageContent | None:
        """Size and copy of a file that a job wants; None = that is known when what was added to `awaits` is done.

        Raises SiteError for a file that cannot be had."""
        url, sha256 = wanted.url, wanted.sha256
        if not is_remote(url):
            source = FileTransfer(wanted.roots, size_max=self._config.stage_file_bytes_max).stat(url)
            key = order_id(Direction.IN, source.path, source.version, sha256)
            if not self._is_compared(source.path, sha256, awaits):
                return None
            with self.lock:
                name = self._cache.find(source.path, source.version, sha256)
            return StageContent(key, wanted, source.size_bytes, name, source)
        permit(url, self._config.endpoints, Direction.IN)
        if not self._is_compared(url, sha256, awaits):
            return None
        return self._inspect_remote(wanted, job, awaits)

    def bring(self, content: StageContent, awaits: list[str]) -> str | None:
        """The copy of a content for which room is reserved; None = it is on its way, by what was added to `awaits`."""
        if content.name is not None:
            return content.name
        if content.source is None:
            return self._bring_remote(content, awaits)
        if not self._run(content.key, content.size_bytes, lambda: self._copy(content), awaits):
            return None
        with self.lock:
            return self._cache.find(content.source.path, content.source.version, content.wanted.sha256)

    def has_digest(self, name: str, awaits: list[str]) -> bool:
        """Whether the digest of a copy is beside it; False = it is being made, by what was added to `awaits`."""
        copy = self._cache.path(name)
        if known_digest(copy) is not None:
            return True
        digest = name.removeprefix("sha256-")
        if digest != name:
            write_durable(digest_file(copy), digest.encode())
            return True
        return self._run(f"digest-{name}", copy.stat().st_size, lambda: digest_of(copy), awaits)

    def let_go(self, jobs: Iterable[int], keys: Iterable[str]) -> None:
        """These jobs want nothing any more: `keys`, which were reserved for them alone, and the queries that they alone
        wait for are broken off. Those that have not begun would still be made, and hold up other jobs' moves."""
        with self.lock:
            alone = [key for job in jobs for key in self._askers.let_go(job)]
        self.unwanted([*keys, *alone])

    def unwanted(self, keys: Iterable[str]) -> None:
        """No job wants these any more, and nothing is reserved for them. A job that comes to want one meanwhile finds
        it done without an outcome, and asks again."""
        ordered: list[str] = []
        for key in keys:
            with self.lock:
                if key in self._ordered and key not in self._budget.reserved:
                    ordered.append(key)
                self._ordered.pop(key, None)
                self._askers.drop(key)
                self._failed.pop(key, None)
        if ordered and self._moving is not None:
            self._moving.cancel(*ordered)

    def tidy(self) -> None:
        """Forget contents that no job took within KEEP_S: their jobs are gone."""
        now_s = clock.monotonic_s()
        with self.lock:
            old = [each for each, since_s in self._ordered.items() if now_s - since_s > KEEP_S]
        if self._moving is not None:
            self.unwanted(each for each in old if self._moving.is_done((each,)))

    # ---- threads ----

    def _run(self, key: str, size_bytes: int, task: Callable[[], object], awaits: list[str]) -> bool:
        """Whether the task is done now; else it runs, here or there, and `awaits` names it. Raises what it raises."""
        with self.lock:
            error = self._failed.pop(key, None)
            if error is not None:
                raise error
            is_running = key in self._busy
            self._busy.add(key)
        if is_running:
            awaits.append(key)
            return False
        if self._copiers is not None and size_bytes > INLINE_BYTES_MAX:
            awaits.append(key)
            self._copiers.submit(self._work, key, task)
            return False
        try:
            task()
        finally:
            with self.lock:
                self._busy.discard(key)
        return True

    def _work(self, key: str, task: Callable[[], object]) -> None:
        error: TidemillError | None = None
        try:
            task()
        except TidemillError as failed:
            error = failed
        except OSError as failed:
            error = SiteError(f"failed to stage a file: {failed.strerror or failed}")
            error.__cause__ = failed
        except Exception as failed:  # noqa: BLE001 - top of a thread: who waits for it gets an answer in any case
            _log.error("copy.bug", copy=key, error=repr(failed))
            error = SiteError(f"copying `{key}` met a bug: see the log")
        with self.lock:
            self._busy.discard(key)
            # a content that no job wants any more fails no job; digests and comparisons are made of copies in the stage
            if error is not None and (key in self._budget.reserved or key.startswith(_OF_COPIES)):
                while len(self._failed) >= FAILED_MAX:
                    del self._failed[next(iter(self._failed))]
                self._failed[key] = error

    def _copy(self, content: StageContent) -> None:
        """Copy a file of this site, with its digest if that is needed."""
        source, wanted = content.source, content.wanted
        assert source is not None
        origin = (source.path, source.version, wanted.sha256)
        with self.lock:
            found = self._cache.find(*origin)
            if found is not None:  # another job has brought it since this one looked
                self._settle(content.key, found)
                return
        temporary = self._cache.path(f".{content.key}.tmp")
        temporary.unlink(missing_ok=True)
        transfer = FileTransfer(wanted.roots, size_max=content.size_bytes)
        transfer.fetch(source, temporary, sha256=wanted.sha256)
        name = self._cache.name_of(*origin)
        if wanted.with_digest:
            write_durable(digest_file(self._cache.path(name)), _sha256(temporary).encode())
        with self.lock:
            self._arrive(content.key, temporary, origin)

    def _arrive(self, key: str, path: Path, origin: tuple[str, str, str | None]) -> str | None:
        """Take a file over for all jobs that room was reserved for; None = none wants it any more. The lock is held."""
        if key not in self._budget.reserved:
            path.unlink(missing_ok=True)
            return None
        url, version, sha256 = origin
        name = self._cache.adopt(path, url, version=version, sha256=sha256)
        self._settle(key, name)
        self._budget.found_room()
        return name

    def _settle(self, key: str, name: str) -> None:
        """The copy is there: what was reserved for it is its own now. The lock is held."""
        reserved = self._budget.reserved.pop(key, None)
        for number, job in enumerate(() if reserved is None else reserved.jobs):
            self._cache.hold(name, job, hit=number > 0)

    def _is_compared(self, url: str, sha256: str | None, awaits: list[str]) -> bool:
        """Whether the copy of a URL, if there is one, was compared since the host started."""
        while True:  # its last copy, and that of the content that it should have
            with self.lock:
                name = self._cache.doubtful(url, sha256)
                size = 0 if name is None else self._cache.size(name)
            if name is None:
                return True
            if not self._run(f"check-{name}", size, partial(self._compare, name), awaits):
                return False

    def _compare(self, name: str) -> None:
        is_whole = self._cache.compare(name)
        with self.lock:
            self._cache.compared(name, is_whole=is_whole)

    # ---- remote files ----

    def _inspect_remote(self, wanted: WantedFile, job: int, awaits: list[str]) -> StageContent | None:
        url, sha256 = wanted.url, wanted.sha256
        key = order_id(Direction.IN, url, sha256)
        look = self._order(f"{key}-look", wanted, look=True)
        with self.lock:
            name = self._copy_of(url, sha256)
            if name is not None:
                return StageContent(key, wanted, self._cache.size(name), name)
            is_known = key in self._budget.reserved or self._cache.version(url) is None
            if key in self._sizes and is_known:
                return StageContent(key, wanted, self._sizes[key])
            outcome, is_new = self._outcome(look)
            if outcome is not None:
                self._askers.drop(look.id)
                outcome.check()
                return self._inspected(key, wanted, outcome)
            self._askers.wait(look.id, job)
        if is_new:
            self._submit(look)
        awaits.append(look.id)
        return None

    def _inspected(self, key: str, wanted: WantedFile, outcome: MoveOutcome) -> StageContent:
        """The content that a query of a remote file found. The lock is held."""
        url, sha256 = wanted.url, wanted.sha256
        self._stay_fresh(url)
        if outcome.moved is not None:  # a mover of an earlier version fetches at once
            path = self._cache.path(f"{key}-look")
            name = self._cache.adopt(path, url, version=outcome.version, sha256=outcome.moved.sha256)
            return StageContent(key, wanted, outcome.moved.size_bytes, name)
        found = self._cache.find(url, outcome.version, sha256)
        if found is not None:
            return StageContent(key, wanted, self._cache.size(found), found)
        size = outcome.size_bytes or 0
        if not outcome.is_told:
            size = max(self._sizes.get(key, 0), min(UNTOLD_BYTES, self._budget.limit.bytes // UNTOLD_SHARE))
        self._know_size(key, size)
        return StageContent(key, wanted, size)

    def _bring_remote(self, content: StageContent, awaits: list[str]) -> str | None:
        wanted, key = content.wanted, content.key
        get = self._order(key, wanted, bytes_max=max(1, content.size_bytes))
        with self.lock:
            name = self._copy_of(wanted.url, wanted.sha256)
            if name is not None:
                self._settle(key, name)
                return name
            outcome, is_new = self._outcome(get)
            if outcome is not None:
                outcome.check()
                if outcome.moved is not None:
                    self.has_come(wanted.url, outcome.moved.size_bytes, outcome.seconds)
                    self._sizes.pop(key, None)
                    self._stay_fresh(wanted.url)
                    origin = (wanted.url, outcome.version, outcome.moved.sha256)
                    return self._arrive(key, self._cache.path(key), origin)
                if outcome.size_bytes is not None:
                    self._know_size(key, self._next_size(content.size_bytes, outcome))
                self._budget.reserved.pop(key, None)
                raise MovesPendingError(
                    []
                )  # it has grown since room was reserved for it: that is asked for again
        if is_new:
            self._submit(get)
        awaits.append(key)
        return None

    def _next_size(self, size_bytes: int, outcome: MoveOutcome) -> int:
        """What to reserve where `size_bytes` were not enough. The last step is all that a file may have here."""
        found = outcome.size_bytes or 0
        limit = min(self._budget.limit.bytes, self._config.stage_file_bytes_max)
        return found if outcome.is_told or size_bytes >= limit else min(found, limit)

    def _copy_of(self, url: str, sha256: str | None) -> str | None:
        """The copy of a remote file, where that is sure without asking its server. The lock is held."""
        known = None if sha256 is None else self._cache.find_content(sha256)
        version = self._cache.version(url)
        if known is None and version is not None and self._fresh_s.get(url, 0.0) > clock.monotonic_s():
            known = self._cache.find(url, version, sha256)
        return known

    def _order(self, name: str, wanted: WantedFile, *, look: bool = False, bytes_max: int = 0) -> MoveOrder:
        return MoveOrder(
            id=name,
            direction=Direction.IN,
            url=wanted.url,
            path=str(self._cache.path(name)),
            expect={
                **({} if wanted.sha256 is None else {"sha256": wanted.sha256}),
                **({"adler32": wanted.adler32} if wanted.adler32 else {}),
            },
            look=look,
            bytes_max=bytes_max,
            owner=wanted.owner,
        )

    def _outcome(self, order: MoveOrder) -> tuple[MoveOutcome | None, bool]:
        """What came of an order, and whether it has to be given. The lock is held."""
        if self._moving is None:
            raise SiteError(
                f"failed to stage `{order.url}`: this site moves no remote files", transient=False
            )
        outcome = self._moving.pop_outcome(order.id)
        if outcome is not None:
            self._ordered.pop(order.id, None)
            return outcome, False
        is_new = order.id not in self._ordered or self._moving.is_done((order.id,))
        self._ordered[order.id] = clock.monotonic_s()
        return None, is_new

    def _submit(self, order: MoveOrder) -> None:
        assert self._moving is not None
        try:
            self._moving.submit(order)
        except TidemillError:
            with self.lock:
                self._ordered.pop(order.id, None)
            raise

    def _know_size(self, key: str, size_bytes: int) -> None:
        while len(self._sizes) >= SIZES_MAX:
            del self._sizes[next(iter(self._sizes))]
        self._sizes[key] = size_bytes

    def _stay_fresh(self, url: str) -> None:
        if len(self._fresh_s) >= FRESH_MAX:
            self._fresh_s.clear()
        self._fresh_s[url] = clock.monotonic_s() + FRESH_S


def digest_file(path: Path) -> Path:
    """Where the digest of a file is kept beside it."""
    return path.with_name(f".{path.name}.sha256")


def known_digest(path: Path) -> str | None:
    """The digest that is kept beside a file."""
    with contextlib.suppress(FileNotFoundError):
        known = digest_file(path).read_text(encoding="ascii", errors="replace")
        if re.fullmatch(r"[0-9a-f]{64}", known):
            return known
    return None


def digest_of(path: Path) -> str:
    """The file's SHA-256, worked out once and kept beside it."""
    known = known_digest(path)
    if known is None:
        known = _sha256(path)
        write_durable(digest_file(path), known.encode())
    return known


def _sha256(path: Path) -> str:
    return sums(path, {"sha256"})["sha256"]
