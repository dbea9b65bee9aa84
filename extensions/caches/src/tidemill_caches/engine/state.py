"""What a supervisor writes to `run/state.json`, and how others read it: `status`, the agent, the collector."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

import msgspec

from tidemill import clock, files
from tidemill.errors import UNDECODABLE, ProtocolError
from tidemill.routing.engine import CacheHealth, PastTrouble
from tidemill_caches.engine.directory import is_locked

STATE_BYTES_MAX = 1 << 20
STALE_S = 60
"""A state that is older is of a supervisor that has died; it writes one each few seconds."""

Phase = Literal["starting", "running", "waiting", "stopped"]


class OriginState(msgspec.Struct, frozen=True, kw_only=True):
    """One origin as the supervisor last found it."""

    url: str
    answers: bool
    since_us: int  #: of this answer or this silence
    why: str = ""  #: it does not answer
    redirects: bool = False


class CacheFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a cache that a person should know."""

    state: Literal["warn", "fail"]
    check: str
    found: str
    hint: str = ""


class CacheState(msgspec.Struct, frozen=True, kw_only=True):
    """A cache as its supervisor last saw it. `waiting`: xrootd has ended, and starts again at `next_start_us`."""

    host: str
    port: int
    phase: Phase
    at_us: int
    supervisor_pid: int
    supervisor_started_us: int
    pid: int = 0  #: of xrootd
    started_us: int = 0  #: of xrootd
    restarts: int = 0  #: since the supervisor started
    last_end: str = ""
    next_start_us: int = 0
    answers: bool = False  #: xrootd, to a handshake
    descriptors: int | None = None
    descriptors_max: int | None = None
    ram_bytes: int | None = None
    disk_bytes: int | None = None  #: of the file system below `data`
    disk_free_bytes: int | None = None
    figures_port: int | None = None
    credential_ends_us: int | None = (
        None  #: of what the cache shows to origins; None = none, or it does not say
    )
    origins: list[OriginState] = []
    findings: list[CacheFinding] = []
    past: list[PastTrouble] = []  #: the newest last; kept over restarts of the supervisor

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"root://{self.host}:{self.port}"


def state_path(directory: Path) -> Path:
    """Where the state of a cache directory is."""
    return directory / "run" / "state.json"


def write_state(directory: Path, state: CacheState, *, durable: bool) -> None:
    """Replace the state; `durable` if it records a start or an end. Raises SiteError."""
    content = msgspec.json.encode(state)
    (files.write_durable if durable else files.write_whole)(state_path(directory), content, mode=0o644)


def read_state(directory: Path) -> CacheState | None:
    """The state of a cache directory, None where no supervisor ever ran. Raises SiteError, ProtocolError."""
    content = files.read_bounded(state_path(directory), STATE_BYTES_MAX)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=CacheState)
    except UNDECODABLE as error:
        raise ProtocolError(f"`{state_path(directory)}` cannot be read: {error}") from error


def is_supervised(directory: Path, state: CacheState) -> bool:
    """Whether the supervisor that wrote this still runs: known by its lock on the same host, elsewhere by its age."""
    if state.phase == "stopped":
        return False
    if state.host == host_name():
        return is_locked(directory)
    return abs(clock.now_us() - state.at_us) < STALE_S * 1_000_000


def health_of(directory: Path) -> CacheHealth | None:
    """The health of the cache in a directory, None where no supervisor ever ran; without one, no cache answers.

    Raises SiteError, ProtocolError.
    """
    state = read_state(directory)
    if state is None:
        return None
    alive = is_supervised(directory, state)
    return CacheHealth(answers=state.answers, past=state.past) if alive else CacheHealth()


def host_name() -> str:
    """This host, as clients on other hosts of the site name it."""
    name = socket.getfqdn()
    return socket.gethostname() if name.startswith("localhost") else name
