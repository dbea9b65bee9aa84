"""Starts the site agent, runs its loop, ends it: signals, `--once`, take-overs."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

from tidemill import clock
from tidemill.batch.contract import BatchSystem
from tidemill.batch.local import LocalBatchSystem
from tidemill.config.site import SiteConfig
from tidemill.errors import ProtocolError, SiteError, TidemillError
from tidemill.log import Log
from tidemill.site.agent import Agent
from tidemill.site.identity import SupersededError, claim
from tidemill.wire.http import ConflictError

ONCE_S = 20.0
"""`--once` ends after so long, or earlier when nothing is under way."""

_log = Log("agent")


class _Signals:
    """TERM and INT ask the loop to end."""

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True


def open_batch(config: SiteConfig, site_dir: Path) -> BatchSystem:
    """The site's batch system."""
    return LocalBatchSystem(site_dir / "batch", config.local)


def run_agent(
    site_dir: Path,
    config: SiteConfig,
    *,
    once: bool = False,
    take_over: bool = False,
    stop_pilots: bool = False,
) -> int:
    """Serve a site until TERM, or (`once`) until nothing is under way; the exit code.

    TERM leaves pilots and leads running unless `stop_pilots`. Raises TidemillError when it cannot start or was
    superseded.
    """
    site_dir = site_dir.absolute()
    for directory in (site_dir, *(site_dir / name for name in ("apps", "log", "fleets", "stage"))):
        directory.mkdir(mode=0o700, exist_ok=True)
    identity = claim(
        site_dir, take_over=take_over, heartbeat_s=config.heartbeat_s, dead_s=config.dead_agent_s
    )
    signals = _Signals()
    agent = Agent(config, site_dir, identity=identity, batch=open_batch(config, site_dir))
    _log.info("agent.started", site=config.name, epoch=identity.epoch, host=identity.owner.host)
    try:
        _loop(agent, signals, once=once)
    except (SupersededError, ConflictError) as error:
        agent.close()
        raise SiteError(error.message, hint=error.hint, transient=False) from error
    if stop_pilots:
        agent.stop_pilots()
    agent.leave()
    _log.info("agent.ended", site=config.name, epoch=identity.epoch)
    return 0


def _loop(agent: Agent, signals: _Signals, *, once: bool) -> None:
    config = agent.config
    started_s = quiet_since_s = clock.monotonic_s()
    while not signals.is_asked:
        try:
            changed = agent.tick()
        except (SupersededError, ConflictError, ProtocolError):
            raise
        except TidemillError as error:
            if agent.log.is_broken:
                raise
            _log.error("tick.failed", reason=error.message, hint=error.hint)
            changed = False
        now = clock.monotonic_s()
        if changed:
            quiet_since_s = now
        if once and (now - started_s > ONCE_S or (not changed and agent.is_idle)):
            return
        clock.sleep_s(_pause_s(config, quiet_s=now - quiet_since_s, busy=bool(agent.allocations.living)))


def _pause_s(config: SiteConfig, *, quiet_s: float, busy: bool) -> float:
    """Short while something happens, longer the longer nothing does."""
    if quiet_s < 1.0:
        return config.tick_s
    longest = config.tick_s * 2 if busy else config.tick_max_s
    return min(max(config.tick_s, quiet_s / 20), max(longest, config.tick_s))
