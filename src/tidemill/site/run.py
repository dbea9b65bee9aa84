"""Starts the site agent, runs its loop, ends it: signals, `--once`, take-overs."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from types import FrameType

from tidemill import clock, extensions, log
from tidemill.batch.contract import BatchSystem
from tidemill.batch.open import open_batch
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError, ProtocolError, SiteError, TidemillError
from tidemill.log import Log
from tidemill.routing.copies import copies_of
from tidemill.routing.engine import check_engine
from tidemill.site import constants
from tidemill.site.agent import Agent
from tidemill.site.nodes.costs import Costs
from tidemill.site.nodes.site_machine import SiteMachine
from tidemill.site.nodes.unended import note_unended
from tidemill.site.setup.ownership import check_site_directory
from tidemill.site.state.epoch import Epoch, SupersededError, claim
from tidemill.site.state.served_site import TICK_S, serve
from tidemill.site.state.status import BatchOutage, amend_status, note_failed_run, outage_after
from tidemill.wire.transports import kind_of
from tidemill.wire.views import types

ONCE_S = 20.0
"""`--once` ends after this time, or earlier when nothing is under way."""

CONTESTED_HINT = "another agent may run with a copy of this site directory: stop one"
TICK_MAX_S = 1.0
"""Longest pause of the loop while nothing runs: STOP files and new work are noticed within a second."""

STEADY_S = 60.0
"""An agent that has run for this time runs well: its earlier ends are forgotten."""

AWAY_FIRST_S = 2.0
AWAY_MAX_S = 60.0
"""Pauses between tries at the start, while the batch system does not answer."""

_log = Log("agent")


class _Signals:
    """TERM and INT ask the loop to end."""

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True


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
    check_site_directory(site_dir)
    kind_of(config.server)  # what is missing here ends this agent before it takes the site from one that runs
    check_engine(config.caches)
    copies_of(config)
    epoch = claim(
        site_dir, take_over=take_over, heartbeat_s=constants.HEARTBEAT_S, dead_s=constants.DEAD_AGENT_S
    )
    log.bind(site=config.name, epoch=epoch.number)
    try:
        _serve(site_dir, config, epoch, once=once, stop_pilots=stop_pilots)
    except SupersededError as error:
        raise SiteError(error.message, hint=error.hint, transient=False) from error
    except TidemillError as error:
        note_failed_run(site_dir, error)
        raise
    amend_status(site_dir, failed=None)
    return 0


def _serve(site_dir: Path, config: SiteConfig, epoch: Epoch, *, once: bool, stop_pilots: bool) -> None:
    """Serve the site in one epoch. Raises TidemillError."""
    signals = _Signals()
    batch = open_batch(config, site_dir)
    machine = _first_poll(config, site_dir, batch=batch, epoch=epoch, signals=None if once else signals)
    if machine is None:
        epoch.leave()
        return
    agent = Agent(serve(config, site_dir, epoch), machine, batch)
    _log.info("agent.started", host=epoch.owner.host)
    types()  # extensions' views are imported now, and what is wrong with them is known
    for name, why in extensions.faults().items():
        _log.warning("extension.left_out", name=name, why=why)
    try:
        _loop(agent, signals, once=once)
    except SupersededError:
        agent.close()
        raise
    if stop_pilots:
        agent.stop_pilots()
    agent.leave()
    _log.info("agent.ended")
    contested = agent.exchange.sync.contested
    if once and contested:
        raise SiteError(contested, hint=CONTESTED_HINT, transient=False)


def _first_poll(
    config: SiteConfig, site_dir: Path, *, batch: BatchSystem, epoch: Epoch, signals: _Signals | None
) -> SiteMachine | None:
    """The machine, polled again while its batch system is unreachable; None when asked to end before that.

    Raises ConfigError for what the batch system does not have, and SiteError: at once without `signals` (`--once`),
    else when asking again cannot help.
    """
    pause_s = AWAY_FIRST_S
    note_unended(site_dir, [])
    away = BatchOutage(since_us=clock.now_us())
    amend_status(site_dir, away=away)
    while True:
        epoch.check()
        epoch.beat()
        try:
            machine = SiteMachine(config, site_dir, batch, Costs(constants.STARTUP_S))
        except SiteError as error:
            if signals is None or not error.transient:
                amend_status(site_dir, away=None)
                raise
            _log.warning("batch.away", reason=error.message, hint=error.hint, next_try_s=pause_s)
            away = outage_after(away, BatchOutage(since_us=0, reason=error.message, hint=error.hint or ""))
            amend_status(site_dir, away=away)
        except ConfigError:
            amend_status(site_dir, away=None)
            raise
        else:
            amend_status(site_dir, away=None)
            return machine
        until_s = clock.monotonic_s() + pause_s
        pause_s = min(2 * pause_s, AWAY_MAX_S)
        while clock.monotonic_s() < until_s:
            if signals.is_asked:
                amend_status(site_dir, away=None)
                return None
            epoch.beat()
            clock.sleep_s(TICK_S)


def _loop(agent: Agent, signals: _Signals, *, once: bool) -> None:
    config = agent.site.config
    started_s = quiet_since_s = clock.monotonic_s()
    well_s = started_s + STEADY_S
    while not signals.is_asked:
        try:
            changed = agent.tick()
        except (SupersededError, ProtocolError):
            raise
        except TidemillError as error:
            if agent.site.log.is_broken:
                raise
            _log.error("tick.failed", reason=error.message, hint=error.hint)
            clock.sleep_s(TICK_S)  # what is done and could not be taken would end each rest at once
            changed = False
        now = clock.monotonic_s()
        if changed:
            quiet_since_s = now
        if now >= well_s:
            agent.board.ran_well()
            well_s = math.inf
        if once and (now - started_s > ONCE_S or (not changed and agent.is_idle)):
            return
        agent.rest(_pause_s(config, quiet_s=now - quiet_since_s, busy=bool(agent.harvesting.book.living)))


def _pause_s(config: SiteConfig, *, quiet_s: float, busy: bool) -> float:
    """Short while something happens, longer the longer nothing does."""
    if quiet_s < 1.0:
        return TICK_S
    longest = TICK_S * 2 if busy else TICK_MAX_S
    return min(max(TICK_S, quiet_s / 20), max(longest, TICK_S))
