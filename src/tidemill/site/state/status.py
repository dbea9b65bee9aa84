"""SITE/status.json: what the agent of a site knows of it, as one record that is replaced whole.

The metrics, the site's view at its server and `site status` are made of it. Nothing depends on the file: a failure to
write it is logged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tidemill import clock
from tidemill.errors import UNDECODABLE, ProtocolError, SiteError, TidemillError
from tidemill.files import read_bounded, write_whole
from tidemill.harvest.account.broker_log import PlanMade
from tidemill.harvest.account.ledger import Line
from tidemill.log import Log
from tidemill.model.metrics import Sample
from tidemill.model.trouble import Trouble
from tidemill.site.state.epoch import serving
from tidemill.wire.far import CacheView
from tidemill.wire.monitoring import AwaitedNodes, BadNode, RegularWaits

NAME = "status.json"
BYTES_MAX = 16 << 20
DEAD_S = 60.0  #: as `dead_agent_s` unless configured
_log = Log("status")


class BatchOutage(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the batch system is asked in vain, and the last refusal: empty while the first answer is awaited.
    `answers`: it does answer, and `reason` says why it starts nothing or, where it is `doubted`, why its replies are
    not believed."""

    since_us: int
    reason: str = ""
    hint: str = ""
    answers: bool = False
    doubted: bool = False


def outage_after(outage: BatchOutage | None, now: BatchOutage) -> BatchOutage:
    """The outage of now, which began with the known one where that is of the same kind."""
    is_same = outage is not None and (outage.answers, outage.doubted) == (now.answers, now.doubted)
    return msgspec.structs.replace(now, since_us=outage.since_us) if outage and is_same else now


class FailedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of the agent in a row that ended with an error. Times are microseconds since 1970.

    Whatever starts the agent again and again (`tidemill up`, systemd, cron) shows nothing of it.
    """

    times: int
    since_us: int
    at_us: int
    reason: str
    hint: str = ""


class LastPoll(msgspec.Struct, frozen=True, kw_only=True):
    """`at_s`: when it was decided, seconds since 1970; `pools`: the decision for each; `awaits`: why no more nodes are
    asked for, whether or not work waits, None where no machine is polled; `is_at_work`: a pilot was at work;
    `warning`: of cancels of others that do not stop the site yet."""

    at_s: float
    pools: list[PlanMade]
    awaits: AwaitedNodes | None = None
    is_at_work: bool = False
    warning: str = ""


class DataFigures(NamedTuple):
    """What the site's data cost and kept, since the agent's start. `waiting_*`: for room in the stage. `moves`: (way,
    done, failed, bytes)."""

    files: int
    bytes: int
    pinned_bytes: int
    hits: int
    misses: int
    evicted_bytes: int
    moves: list[tuple[str, int, int, int]]
    reserved_bytes: int = 0
    waiting_bytes: int = 0
    waiting_jobs: int = 0


class AreaFigures(msgspec.Struct, frozen=True, kw_only=True):
    """An area of the site's I/O budget (`[[io]]`): what counters of nodes saw since the agent started, and how often
    pilots reported that it was over its budget. A budget is None where the site sets none."""

    area: str
    ops: float
    bytes: float
    ops_over: int
    bytes_over: int
    ops_per_s: float | None = None
    bytes_per_s: float | None = None


class HarmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Regular jobs that waited because of Tidemill: seconds since the agent's records began, and those of today (UTC)
    with their bounds. `jobs`: that were delayed today."""

    all_s: float
    today_s: float
    low_s: float
    high_s: float
    jobs: int


class SiteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The site at `at_us` (0 = no agent has written figures yet), by an agent that runs since `since_us`.

    `left_node_s`, `harm`: None = nothing bounds it, or the agent does not see the queue of the machine. `figures`:
    counts that only metrics and `site status` show, as of the last beat.
    """

    at_us: int = 0
    since_us: int = 0
    mode: str = ""
    stopped: str = ""  #: why the site is stopped, empty = it is not
    is_drained: bool = False  #: it is stopped, or the server lets it do no more
    waits_for: str = ""  #: why no more nodes are asked for
    causes: list[str] = []  #: the same in single words
    away: BatchOutage | None = None  #: valid while the agent lives
    failed: FailedRuns | None = None
    poll: LastPoll | None = None
    is_glance_off: bool = False
    polled_s: float | None = None  #: when the machine was polled that `nodes` counts
    nodes: dict[str, int] = {}
    grants: list[Line] = []
    left_node_s: float | None = None
    bad_nodes: list[BadNode] = []
    bad_nodes_total: int = 0
    troubles: list[Trouble] = []
    data: DataFigures = DataFigures(0, 0, 0, 0, 0, 0, [])
    areas: list[AreaFigures] = []
    harm: HarmFigures | None = None
    waits: list[RegularWaits] = []  #: of other users, today
    caches: list[CacheView] = []
    figures: list[Sample] = []


class StatusFile(NamedTuple):
    """What the file says; `problem`: why it says nothing, empty = it could be read."""

    status: SiteStatus
    problem: str = ""


def read_status(site_dir: Path) -> StatusFile:
    """The file of a site; an empty status where it is missing or damaged."""
    path = site_dir / NAME
    try:
        content = read_bounded(path, BYTES_MAX)
        if content is None:
            return StatusFile(SiteStatus(), f"`{path}` is missing: no agent has written it yet")
        return StatusFile(msgspec.json.decode(content, type=SiteStatus))
    except SiteError as error:
        return StatusFile(SiteStatus(), error.message)
    except UNDECODABLE as error:
        return StatusFile(SiteStatus(), f"`{path}` is damaged ({error}): a running agent replaces it")


def write_status(site_dir: Path, status: SiteStatus) -> None:
    """Replace the file."""
    try:
        write_whole(site_dir / NAME, msgspec.json.encode(status), mode=0o644)
    except SiteError as error:
        _log.warning("status.unwritten", reason=error.message)


def amend_status(site_dir: Path, **changes: Any) -> None:
    """Change single fields of the file, where no agent's loop runs that would write it."""
    status = read_status(site_dir).status
    changed = msgspec.structs.replace(status, **changes)
    if changed != status:
        write_status(site_dir, changed)


def note_failed_run(site_dir: Path, error: TidemillError) -> None:
    """The agent ends with this error."""
    now_us, runs = clock.now_us(), read_status(site_dir).status.failed
    failed = FailedRuns(
        times=runs.times + 1 if runs else 1,
        since_us=runs.since_us if runs else now_us,
        at_us=now_us,
        reason=error.message,
        hint=error.hint or "",
    )
    amend_status(site_dir, failed=failed)


def outage_of(site_dir: Path, status: SiteStatus, *, dead_s: float = DEAD_S) -> BatchOutage | None:
    """What a status says of the batch system; None where its agent is dead: one on another host is after `dead_s`
    without a sign of life."""
    try:
        return status.away if status.away and serving(site_dir, dead_s=dead_s) is not None else None
    except (ProtocolError, SiteError):
        return None
