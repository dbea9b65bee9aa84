"""Outputs that go to remote places: built once below SITE/stage/out, kept there until they are moved.

    SITE/stage/out/JOB/NAME         the output as it is to be there
    SITE/stage/out/JOB/.NAME.json   `Ready`: what it is made of; its SHA-256, and those of what may be there

An output that was made again (its job was retried) may replace one that we put there before, and nothing else.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import make_directories, read_bounded, sync, write_durable
from tidemill.site.data.budget import NO_ROOM, StageRoom
from tidemill.site.data.moves import MoveOrder, Moves, order_id
from tidemill.transfer.checksum import sums
from tidemill.transfer.contract import Direction
from tidemill.transfer.mover import Moved

READY_BYTES_MAX = 65536
BEFORE_MAX = 100  #: earlier ones of an output that are remembered


class Destination(NamedTuple):
    """Where an output goes, and whose it is."""

    url: str
    owner: str = ""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """An output that may go. `before`: digests of those that may be there: the one that went there before, and others
    whose moves may have ended, though an agent that died or a delivery that was called off never took the outcome.
    `adler32`: what most servers report of it."""

    made_of: str  #: the caller's name for the events and parts in it
    size_bytes: int
    sha256: str
    adler32: str = ""
    before: list[str] = []
    sent: bool = False
    url: str = ""  #: where it was sent; empty = it was not

    @property
    def may_be_there(self) -> list[str]:
        """Digests of what may be at its place, before another one goes there."""
        return [self.sha256] if self.sent else [self.sha256, *self.before][:BEFORE_MAX]

    def is_sent_to(self, url: str) -> bool:
        """Whether the file was sent to `url`: a retry may have named another place since."""
        return self.sent and self.url == url


class OutgoingFiles:
    """Bytes and number of the outputs that wait below SITE/stage/out: inputs leave them room. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[int, dict[str, int]] = {}
        self._room = NO_ROOM

    @property
    def room(self) -> StageRoom:
        """Room of all outgoing files."""
        return self._room

    def note(self, job: int, path: Path) -> None:
        """Count this file of a job, if it is there."""
        with self._lock:
            self._drop(job, path.name)
            size = _size(path)
            if size >= 0:
                self._sizes.setdefault(job, {})[path.name] = size
                self._room = self._room.plus(StageRoom(size, 1))

    def gone(self, job: int) -> None:
        """The files of a job were removed."""
        with self._lock:
            for name in list(self._sizes.get(job, ())):
                self._drop(job, name)
            self._sizes.pop(job, None)

    def _drop(self, job: int, name: str) -> None:
        size = self._sizes.get(job, {}).pop(name, None)
        if size is not None:
            self._room = self._room.less(StageRoom(size, 1))


class Departures:
    """Outputs on their way to remote places. Works in the agent's helper threads."""

    def __init__(self, directory: Path, moving: Moves, outgoing: OutgoingFiles | None = None) -> None:
        self._directory = directory
        self._moving = moving
        self._outgoing = outgoing or OutgoingFiles()
        self._wanted: dict[int, set[str]] = {}  #: job -> moves that were ordered for it and not taken

    def count(self) -> None:
        """Count what waits since before a restart. Once, at the start."""
        for folder in self._directory.glob("[0-9]*"):
            for path in folder.glob("[!.]*") if folder.name.isdecimal() else ():
                self._outgoing.note(int(folder.name), path)

    def is_done(self, awaits: tuple[str, ...]) -> bool:
        """Whether all of these moves have an outcome."""
        return self._moving.is_done(awaits)

    def prepare(
        self, job: int, output: str, made_of: str, build: Callable[[Path], object], *, url: str = ""
    ) -> Path:
        """The output's file. Calls `build` unless the file of just these parts exists or was sent to `url`. Raises
        SiteError."""
        path = self._directory / str(job) / output
        ready = self._ready(path)
        is_same = ready is not None and ready.made_of == made_of
        if ready is not None and is_same and (ready.is_sent_to(url) or _size(path) == ready.size_bytes):
            return path
        before = [] if ready is None else ready.may_be_there
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            make_directories(path.parent, 0o077)
            build(temporary)
            with temporary.open("rb") as file:
                sync(file)
            found = sums(temporary, {"sha256", "adler32"})
            size = temporary.stat().st_size
            temporary.rename(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise SiteError(
                f"failed to build output `{output}` of job {job} in `{path.parent}`: {error.strerror}",
                hint="outputs for remote places wait in the site directory: check its free space and quota",
            ) from error
        ready = Ready(
            made_of=made_of, size_bytes=size, sha256=found["sha256"], adler32=found["adler32"], before=before
        )
        self._note(path, ready)
        self._outgoing.note(job, path)
        return path

    def send(self, job: int, output: str, path: Path, to: Destination, awaits: list[str]) -> Moved | None:
        """What was moved; None while it is on its way, by the move that is added to `awaits`. Raises TransferError."""
        ready = self._ready(path)
        assert ready is not None, "it is prepared"
        url = to.url
        if ready.is_sent_to(url):
            return Moved(size_bytes=ready.size_bytes, sha256=ready.sha256)
        wanted = order_id(Direction.OUT, url, ready.sha256, job, output)
        outcome = self._moving.pop_outcome(wanted)
        if outcome is not None:
            self._wanted.get(job, set()).discard(wanted)
            outcome.check()
            assert outcome.moved is not None
            self._note(path, msgspec.structs.replace(ready, sent=True, url=url))
            return outcome.moved
        known = {"sha256": ready.sha256} | ({"adler32": ready.adler32} if ready.adler32 else {})
        self._moving.submit(
            MoveOrder(
                id=wanted,
                direction=Direction.OUT,
                url=url,
                path=str(path),
                before=ready.before,
                known=known,
                owner=to.owner,
            )
        )
        self._wanted.setdefault(job, set()).add(wanted)
        awaits.append(wanted)
        return None

    def clean(self, job: int) -> None:
        """Remove files of a job that is delivered; what went where is remembered until `forget`."""
        folder = self._directory / str(job)
        if folder.exists():
            for path in folder.iterdir():
                if not path.name.startswith("."):
                    path.unlink(missing_ok=True)
        self._outgoing.gone(job)
        self._wanted.pop(job, None)

    def forget(self, job: int) -> None:
        """Break off what is on its way for a job, and remove all of it."""
        self._moving.cancel(*self._wanted.pop(job, ()))
        shutil.rmtree(self._directory / str(job), ignore_errors=True)
        self._outgoing.gone(job)

    def _ready(self, path: Path) -> Ready | None:
        content = read_bounded(_about(path), READY_BYTES_MAX)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=Ready)
        except UNDECODABLE:
            return None

    def _note(self, path: Path, ready: Ready) -> None:
        write_durable(_about(path), msgspec.json.encode(ready))


def _about(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
