"""Who serves a site directory: one agent, whatever the host, without file locks.

    SITE/epoch/000007.json    made once, atomically and exclusively (link(2) of a whole file): Owner
    SITE/epoch/000007.beat    the owner's sign of life, renewed by rename
    SITE/epoch/000007.ended   the owner has left cleanly

The newest epoch is the only one that may act. An agent checks for a newer one before everything it does outside its
own memory, so that one that was stopped and wakes after a take-over does nothing.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.batch import processes
from tidemill.errors import UNDECODABLE, ProtocolError, SiteError
from tidemill.files import create_durable, names_in, read_bounded, write_durable, write_whole

_NAME = re.compile(r"(\d{6,})\.json")
_OWNER_BYTES_MAX = 65536
EPOCHS_KEPT = 10


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who took an epoch. `start` is the process's start in clock ticks after boot `boot`."""

    epoch: int
    host: str
    boot: str
    pid: int
    start: int
    since_us: int


class SupersededError(SiteError):
    """A newer agent serves the site: this one must not act any more."""


class Epoch:
    """This agent's epoch, until a newer one exists."""

    def __init__(self, directory: Path, owner: Owner, *, heartbeat_s: float) -> None:
        self._directory = directory
        self._heartbeat_s = heartbeat_s
        self._next_beat_s = 0.0
        self.owner = owner
        self.number = owner.epoch

    def check(self) -> None:
        """Raise SupersededError if a newer epoch exists. One listing of a small directory."""
        newest = max(_epochs(self._directory), default=0)
        if newest == self.number:
            return
        if newest < self.number:
            raise SupersededError(
                f"the epoch files in `{self._directory}` are gone: this agent (epoch {self.number}) stops",
                transient=False,
            )
        other = _owner(self._directory, newest)
        by = f" by process {other.pid} on {other.host}" if other else ""
        raise SupersededError(
            f"the site was taken over{by}: epoch {newest} follows {self.number}; this agent does nothing more",
            transient=False,
        )

    def beat(self) -> None:
        """Renew the sign of life when it is due."""
        now = clock.monotonic_s()
        if now >= self._next_beat_s:
            self._next_beat_s = now + self._heartbeat_s
            _write_beat(self._directory, self.number)

    def leave(self) -> None:
        """Note that this agent ends: a successor need not wait or ask."""
        write_durable(self._directory / f"{self.number:06}.ended", b"")


def claim(site_dir: Path, *, take_over: bool, heartbeat_s: float, dead_s: float) -> Epoch:
    """Take the next epoch of the site directory.

    Refuses with a SiteError that names host, process and since when, if the newest epoch's owner lives and
    `take_over` is False. An owner on this host is looked up among the processes; one elsewhere lives as long
    as its sign of life is younger than `dead_s` or changes while we look (`heartbeat_s`, twice).
    """
    directory = site_dir / "epoch"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SiteError(f"failed to make `{directory}`: {error.strerror}") from error
    while True:
        newest = max(_epochs(directory), default=0)
        owner = _owner(directory, newest) if newest else None
        if owner is not None and not take_over and _lives(directory, owner, heartbeat_s, dead_s):
            raise SiteError(
                f"the site directory `{site_dir}` is served by process {owner.pid} on {owner.host} "
                f"since {clock.utc_text(owner.since_us)} (epoch {owner.epoch})",
                hint="stop that one, or take over with `tidemill site run --take-over`",
                transient=False,
            )
        mine = Owner(
            epoch=newest + 1,
            host=socket.gethostname(),
            boot=processes.boot(),
            pid=os.getpid(),
            start=processes.start_of(os.getpid()) or 0,
            since_us=clock.now_us(),
        )
        if _claim_number(directory, mine):
            _write_beat(directory, mine.epoch)
            _prune(directory, mine.epoch)
            return Epoch(directory, mine, heartbeat_s=heartbeat_s)


def _claim_number(directory: Path, owner: Owner) -> bool:
    """Whether this process got the epoch: the file appears whole, and only if no other process made it."""
    try:
        create_durable(directory / f"{owner.epoch:06}.json", msgspec.json.encode(owner))
    except FileExistsError:
        return False
    return True


def serving(site_dir: Path, *, dead_s: float) -> Owner | None:
    """The agent that serves the site directory, as far as can be seen without waiting; None = none does. `dead_s`: as
    for `claim`."""
    directory = site_dir / "epoch"
    newest = max(_epochs(directory), default=0)
    owner = _owner(directory, newest) if newest else None
    return owner if owner is not None and _seems_alive(directory, owner, dead_s) else None


def _lives(directory: Path, owner: Owner, heartbeat_s: float, dead_s: float) -> bool:
    seems = _seems_alive(directory, owner, dead_s)
    if seems is not None:
        return seems
    beat = _read_beat(directory, owner.epoch)
    deadline = clock.monotonic_s() + 2 * heartbeat_s  # clocks of hosts differ: does it change?
    while clock.monotonic_s() < deadline:
        clock.sleep_s(heartbeat_s / 10)
        if _read_beat(directory, owner.epoch) != beat:
            return True
    return False


def _seems_alive(directory: Path, owner: Owner, dead_s: float) -> bool | None:
    """None where its sign of life is old."""
    if (directory / f"{owner.epoch:06}.ended").exists():
        return False
    if owner.host == socket.gethostname() and owner.boot == processes.boot():
        process = processes.find(owner.pid)
        if process is not None:
            return process.started == owner.start and not process.is_dead
        if not processes.exists(owner.pid):
            return False
    beat = _read_beat(directory, owner.epoch)
    if beat is not None and abs(clock.now_us() - beat) < dead_s * 1e6:
        return True
    return None


def _epochs(directory: Path) -> list[int]:
    return [int(match[1]) for match in map(_NAME.fullmatch, names_in(directory) or []) if match]


def _owner(directory: Path, epoch: int) -> Owner | None:
    path = directory / f"{epoch:06}.json"
    content = read_bounded(path, _OWNER_BYTES_MAX)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=Owner)
    except UNDECODABLE as error:
        raise ProtocolError(f"failed to read `{path}`: {error}") from error


def _write_beat(directory: Path, epoch: int) -> None:
    now = str(clock.now_us()).encode()
    write_whole(directory / f"{epoch:06}.beat", now, mode=0o644)  # a sign of life need not survive a crash


def _read_beat(directory: Path, epoch: int) -> int | None:
    content = read_bounded(directory / f"{epoch:06}.beat", _OWNER_BYTES_MAX)
    return int(content) if content is not None and content.isdigit() else None


def _prune(directory: Path, epoch: int) -> None:
    for old in sorted(_epochs(directory))[:-EPOCHS_KEPT]:
        if old < epoch:
            for ending in ("beat", "ended", "json"):
                (directory / f"{old:06}.{ending}").unlink(missing_ok=True)
