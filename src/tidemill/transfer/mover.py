"""One move, whatever the scheme: what is permitted, how often it is tried, what is compared, which names a file has.

    in   allow-list, size against the caps, `.NAME.MARK.part` beside the target (MARK stands for the source's version,
         so that a broken attempt is gone on with, also after a restart), checksums, rename
    out  allow-list, is it there already?, temporary name on the server, checksum there, rename there

A move that is repeated ends in the same state. Threads may share a mover.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import msgspec

from tidemill import clock
from tidemill.config.transfer import Endpoint
from tidemill.files import short_name
from tidemill.model.failure import FailureClass
from tidemill.transfer import constants
from tidemill.transfer.allowed import LITERAL, WEB, permit
from tidemill.transfer.checksum import ChecksumError, compare, sums
from tidemill.transfer.contract import (
    Adapter,
    Direction,
    NoSpaceError,
    RemoteFile,
    Stat,
    TooLargeError,
    TransferError,
    Watch,
    of_os_error,
)
from tidemill.transfer.http import HttpAdapter
from tidemill.transfer.patience import MovePatience
from tidemill.transfer.s3 import S3Adapter
from tidemill.transfer.schemes import scheme_of
from tidemill.transfer.xrootd import XrootdAdapter

T = TypeVar("T")
PAUSE_MAX_S = 60.0
MARK_DIGITS = 12

LOOK_S = 0.5
"""The interval of checks for a canceled move while a server computes a checksum."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A file that has arrived. `checked`: what else confirmed the checksum, such as `server adler32`; `sha256`: empty
    where it is not computed yet (`Mover.sum_up` does)."""

    size_bytes: int
    sha256: str
    adler32: str = ""
    checked: str = ""
    tries: int = 1


class Mover:
    """Moves files between the site and the places that `endpoints` permits."""

    def __init__(self, endpoints: Sequence[Endpoint], patience: MovePatience, *, size_max: int) -> None:
        self._endpoints = list(endpoints)
        self._patience = patience
        self._size_max = size_max
        self._s3 = S3Adapter()
        http, xrootd = HttpAdapter(self._endpoints), XrootdAdapter()
        self._adapters: dict[str, Adapter] = {
            **dict.fromkeys(WEB, http),
            **dict.fromkeys(LITERAL, xrootd),
            "s3": self._s3,
        }

    def _adapter(self, scheme: str) -> Adapter:
        """The adapter of a scheme that `permit` has let through."""
        adapter = self._adapters.get(scheme)
        return adapter or self._adapters.setdefault(scheme, scheme_of(scheme).adapter())

    def close(self) -> None:
        """Let go of connections that are kept."""
        self._s3.close()

    def watch(self) -> Watch:
        """A watch over one move, with the configured limits."""
        return Watch(deadline_s=self._patience.deadline_s, stall_s=self._patience.stall_s)

    def stat(self, url: str, watch: Watch) -> Stat:
        """Size and version of a remote file, within the caps. Raises TransferError."""
        place = permit(url, self._endpoints, Direction.IN)
        return self._tried(place, Direction.IN, watch, lambda _: self._stat(place, watch))[0]

    def get(
        self,
        url: str,
        target: Path,
        watch: Watch,
        *,
        expect: dict[str, str] | None = None,
        bytes_max: int | None = None,
    ) -> Moved:
        """Fetch a remote file to `target`, which does not exist. `expect`: algorithm -> checksum that it must have.
        `bytes_max`: the limit for a file whose server reports no size; TooLargeError is raised for more.

        The file is not synced to disk: a caller that keeps `target` over a crash of the host compares its checksum
        then. It is compared with what its server reports; its SHA-256, unless expected, may be left to `sum_up`.
        """
        place = permit(url, self._endpoints, Direction.IN)
        begun: set[Path] = set()
        limit = self._size_max
        at_most = min(limit, bytes_max or limit)
        try:
            moved, tries = self._tried(
                place,
                Direction.IN,
                watch,
                lambda _: self._get(place, target, watch, expect or {}, (begun, at_most)),
            )
        except TooLargeError:
            if at_most == limit:
                self._bound(place, None)
            raise
        return msgspec.structs.replace(moved, tries=tries)

    def sum_up(self, target: Path, moved: Moved, watch: Watch) -> Moved:
        """What `get` returned for a file, with its SHA-256. Raises TransferError."""
        if moved.sha256:
            return moved
        return msgspec.structs.replace(moved, sha256=sums(target, {"sha256"}, watch)["sha256"])

    def put(
        self,
        source: Path,
        url: str,
        watch: Watch,
        *,
        before: Collection[str] = (),
        known: Mapping[str, str] | None = None,
    ) -> Moved:
        """Put a file of the site there. What has the name already must be this file, or one with a SHA-256 in `before`.
        `known`: checksums that were made with the file. Raises TransferError.
        """
        place = permit(url, self._endpoints, Direction.OUT)
        if place.path.endswith("/"):
            raise TransferError(f"`{place.shown}` names a directory, not a file", transient=False)
        watch.size_bytes = source.stat().st_size
        self._bound(place, watch.size_bytes)
        with _Sums(source, {"sha256", _told_by(place)}, known or {}) as mine:
            moved, tries = self._tried(
                place, Direction.OUT, watch, lambda _: self._put(source, place, watch, mine, before)
            )
        return msgspec.structs.replace(moved, tries=tries)

    def remove(self, url: str, watch: Watch) -> None:
        """Delete a remote file below an endpoint with `write = true`; fine if there is none. Raises TransferError."""
        place = permit(url, self._endpoints, Direction.OUT)
        self._tried(place, Direction.OUT, watch, lambda _: self._adapter(place.scheme).remove(place, watch))

    # ---- in ----

    def _stat(self, place: RemoteFile, watch: Watch) -> Stat:
        stat = self._adapter(place.scheme).stat(place, watch)
        self._bound(place, stat.size_bytes)
        return stat

    def _get(
        self,
        place: RemoteFile,
        target: Path,
        watch: Watch,
        expect: dict[str, str],
        bounds: tuple[set[Path], int],
    ) -> Moved:
        """Make one try. `bounds`: files of earlier tries, and the byte limit where the server reports no size."""
        begun, bytes_max = bounds
        adapter = self._adapter(place.scheme)
        stat = self._stat(place, watch)
        watch.size_bytes = stat.size_bytes
        stat = stat if stat.is_told else msgspec.structs.replace(stat, size_bytes=bytes_max)
        mark = _mark(f"{place.url}\0{stat.version}")
        partial = target.with_name(f".{short_name(target.name)}.{mark}.part")
        for other in begun - {
            partial
        }:  # the source has changed since, or its server names the version otherwise
            other.unlink(missing_ok=True)
        begun.add(partial)
        if not adapter.resumes or (partial.exists() and partial.stat().st_size > stat.size_bytes):
            partial.unlink(missing_ok=True)
        found: dict[str, str] = {}
        is_asked = (
            "sha256" not in expect and not adapter.tells_at_once
        )  # of empty ones too: they may just be written
        needed = {*expect, *stat.checksums, *(("adler32",) if is_asked else ())}
        try:
            with ExitStack() as stack:
                asking = (
                    stack.enter_context(_Asking(adapter, place, "adler32", watch.patient(stat.size_bytes)))
                    if is_asked
                    else None
                )
                if not stat.size_bytes:
                    partial.touch(mode=0o600)
                elif not stat.is_told or not partial.exists() or partial.stat().st_size < stat.size_bytes:
                    found = adapter.read(place, partial, stat, watch, needed)
                _check_size(place, partial, stat)
                answer = None if asking is None else asking.answer()
            watch.begin()
            told = stat.checksums if answer is None else {"adler32": answer}
            if not adapter.in_order and not _is_confirmed(found, expect | told):
                found = {}
            found = found | sums(partial, {*expect, *told} - found.keys(), watch)
            compare(place.shown, expect, found, "the job expects")
            compare(place.shown, told, found, "its server says")
        except ChecksumError:
            partial.unlink()
            raise
        try:
            partial.chmod(0o400)
            partial.rename(target)
        except OSError as error:
            raise of_os_error(error, f"rename `{partial}`") from error
        checked = "job sha256" if "sha256" in expect else f"server {' '.join(told)}" if told else ""
        return Moved(
            size_bytes=target.stat().st_size,
            sha256=found.get("sha256", ""),
            adler32=found.get("adler32", ""),
            checked=checked,
        )

    # ---- out ----

    def _put(
        self, source: Path, place: RemoteFile, watch: Watch, mine: _Sums, before: Collection[str]
    ) -> Moved:
        adapter = self._adapter(place.scheme)
        size = source.stat().st_size
        told = self._there(adapter, place, size, watch, (mine, before))
        if told is not None:
            return mine.moved(size, told)
        named = place.endpoint.rename and not place.query and place.scheme != "s3"
        first = _beside(place, f"{size} {source.name} {source.stat().st_mtime_ns}") if named else place
        meanwhile = adapter.write(source, first, watch, mine.known)
        algorithm = _told_by(place)
        if meanwhile.get(algorithm) == mine.checksum(algorithm):
            told = f"server {algorithm}"
        else:
            told = self._compare(adapter, first, size, mine, watch)
        if told is None:
            adapter.remove(first, watch)
            raise TransferError(
                f"`{place.shown}` was written, and has other bytes there: it is removed again"
            )
        if first is not place:
            adapter.rename(first, place, watch)
        return mine.moved(size, told)

    def _there(
        self,
        adapter: Adapter,
        place: RemoteFile,
        size: int,
        watch: Watch,
        known: tuple[_Sums, Collection[str]],
    ) -> str | None:
        """How the file there was recognized as this output; None if there is none, or an earlier version of it."""
        mine, before = known
        if place.query:
            return None  # a signed URL is good for one method only
        try:
            stat = adapter.stat(place, watch)
        except TransferError as error:
            if error.missing:
                return None
            raise
        if stat.size_bytes == size:
            told = self._compare(adapter, place, size, mine, watch)
            if told is not None:
                return told
        if before and self._digest(adapter, place, stat, watch) in before:
            return None
        raise TransferError(
            f"`{place.shown}` exists already, and is not known to be this job's",
            hint="move it away, or give the job another output URL, then `tidemill job retry`; it can be deleted there "
            "if the job sent it before a `tidemill job discard`, which forgets that",
            transient=False,
        )

    def _compare(
        self, adapter: Adapter, place: RemoteFile, size: int, mine: _Sums, watch: Watch
    ) -> str | None:
        """What confirmed that the remote file has the bytes of `mine`, such as a checksum; None if it has others."""
        algorithm = _told_by(place)
        with _Asking(adapter, place, algorithm, watch.patient(size)) as asking:
            value = asking.answer()
        watch.begin()  # the server was at work, whatever time it took
        if value is not None and value == mine.checksum(algorithm):
            return f"server {algorithm}"
        if (
            value is not None and algorithm != "etag"
        ):  # those are other things too, with some ways of encryption
            return None
        if place.query or not constants.READ_BACK:
            return "" if place.query or adapter.stat(place, watch).size_bytes == size else None
        stat = adapter.stat(place, watch)
        same = stat.size_bytes == size and self._digest(adapter, place, stat, watch) == mine.checksum(
            "sha256"
        )
        return "read back" if same else None

    def _digest(self, adapter: Adapter, place: RemoteFile, stat: Stat, watch: Watch) -> str | None:
        """SHA-256 of the file there, read to a file of this host that is gone afterwards."""
        import tempfile

        if "sha256" in stat.checksums and place.scheme != "s3":
            return stat.checksums["sha256"]
        if not stat.size_bytes:
            return hashlib.sha256(b"").hexdigest()
        read = adapter.digest(place, stat, watch)
        if read is not None:
            return read
        with tempfile.TemporaryDirectory(prefix="tidemill-") as folder:
            copy = Path(folder) / "copy"
            told = adapter.read(place, copy, stat, watch, {"sha256"})
            return told.get("sha256") or sums(copy, {"sha256"}, watch)["sha256"]

    # ---- both ----

    def _bound(self, place: RemoteFile, size: int | None) -> None:
        """Raise TransferError if a file is too large. `size` None = it has more bytes than may be moved."""
        limit = self._size_max
        if size is None or size > limit:
            raise TransferError(
                f"`{place.shown}` has {'more' if size is None else size} bytes, this site moves at most {limit}",
                hint="one input may have a fifth of `stage_bytes_max` in site.toml, or 20 GB",
                transient=False,
            )

    def _tried(
        self, place: RemoteFile, direction: Direction, watch: Watch, act: Callable[[int], T]
    ) -> tuple[T, int]:
        """What `act` gives, tried again while that may help; with how many tries."""
        pause_s = self._patience.pause_s
        for number in range(1, self._patience.tries_max + 1):
            watch.begin()
            try:
                return act(number), number
            except TransferError as error:
                damaged = isinstance(error, ChecksumError) and number == 1
                is_full = isinstance(error, NoSpaceError) and direction is Direction.IN  # the stage waits
                if is_full or not (error.transient or damaged) or number == self._patience.tries_max:
                    raise _classed(error, direction, number) from error
            finally:
                self._adapter(place.scheme).rest()
            try:
                watch.wait(pause_s)
            except TransferError as error:
                raise _classed(error, direction, number) from error
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        raise AssertionError("the last try ends above")


def _is_full(path: Path) -> bool:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize < (1 << 16)


def _classed(error: TransferError, direction: Direction, tries: int) -> TransferError:
    """The error with a class, and with the number of tries where there were several."""
    text = error.message + (f" (after {tries} tries)" if tries > 1 else "")
    failure: FailureClass = error.failure or direction.failure
    kind = next((each for each in (NoSpaceError, TooLargeError) if isinstance(error, each)), TransferError)
    made = kind(text, hint=error.hint, transient=error.transient, failure=failure, missing=error.missing)
    made.__cause__, made.is_unasked = error.__cause__, error.is_unasked
    return made


def _told_by(place: RemoteFile) -> str:
    """The checksum by which servers of this scheme know their files."""
    return "etag" if place.scheme == "s3" else "adler32"


def _check_size(place: RemoteFile, partial: Path, stat: Stat) -> None:
    size = partial.stat().st_size
    if size == stat.size_bytes or not stat.is_told:
        return
    if size < stat.size_bytes and _is_full(partial):  # xrdcp 5.5.3 ends with status 0 then
        raise of_os_error(OSError(errno.ENOSPC, ""), f"write `{partial}`")
    partial.unlink()
    raise TransferError(f"`{place.shown}`: {size} bytes came, the server said {stat.size_bytes}")


def _is_confirmed(found: dict[str, str], words: dict[str, str]) -> bool:
    """Whether `words`, from other sources, confirm one of these checksums."""
    return any(found.get(name) == value for name, value in words.items())


class _Asking:
    """Asks a server for a checksum, which may take long, in a thread of its own: the caller goes on, or is canceled."""

    def __init__(self, adapter: Adapter, place: RemoteFile, algorithm: str, watch: Watch) -> None:
        self._callers = watch
        self._watch = Watch(deadline_s=watch.until_s - clock.monotonic_s(), stall_s=watch.stall_s)
        self._asked: Future[str | None] = Future()
        thread = threading.Thread(
            target=self._ask, args=(adapter, place, algorithm), name="asks", daemon=True
        )
        thread.start()

    def __enter__(self) -> _Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.canceled.set()

    def answer(self) -> str | None:
        """What the server said; None if it cannot."""
        self._callers.begin()
        while not self._asked.done():
            self._callers.check()
            wait([self._asked], LOOK_S)
        return self._asked.result()

    def _ask(self, adapter: Adapter, place: RemoteFile, algorithm: str) -> None:
        try:
            self._asked.set_result(adapter.checksum(place, algorithm, self._watch))
        except TransferError as error:
            self._asked.set_exception(error)
        finally:
            if not self._asked.done():
                self._asked.set_exception(TransferError(f"asking the checksum of `{place.shown}` met a bug"))


class _Sums:
    """Checksums of a local file, computed in a thread while it is being moved, unless they are known."""

    def __init__(self, source: Path, algorithms: set[str], known: Mapping[str, str]) -> None:
        self.known = {name: known[name] for name in algorithms & known.keys()}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sums")
        self._sums = self._thread.submit(self._make, source, algorithms)

    def _make(self, source: Path, algorithms: set[str]) -> dict[str, str]:
        return self.known | sums(source, algorithms - self.known.keys())

    def __enter__(self) -> _Sums:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def checksum(self, algorithm: str) -> str:
        """The checksum of one algorithm. Raises TransferError where the file cannot be read."""
        return self._sums.result()[algorithm]

    def moved(self, size: int, checked: str) -> Moved:
        """The result of the move."""
        found = self._sums.result()
        return Moved(
            size_bytes=size, sha256=found["sha256"], adler32=found.get("adler32", ""), checked=checked
        )


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:MARK_DIGITS]


def _beside(place: RemoteFile, source: str) -> RemoteFile:
    """The temporary name of an output on its server. It is the same for each attempt with the same local file, and
    short, so that the file may have any name that the server accepts."""
    mark = _mark(f"{place.path}\0{source}")
    path, written = (f"{each.rpartition('/')[0]}/.{mark}.part" for each in (place.path, place.written))
    url = f"{place.scheme}://{place.host}:{place.port}{written}"
    return msgspec.structs.replace(place, path=path, written=written, url=url)
