"""What a site knows, as plain data: jobs, leases, grants, fleets, allocations, reports that are not acknowledged.

`SiteState` is what the log's snapshot holds; it changes only by the entries of the log (see `pool`). Knows no I/O.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.model.failure import Evidence
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.model.state import ALLOCATION_FINAL, RELEASED, AllocationState
from tidemill.routing.attribution import FarTrouble
from tidemill.wire.api import FetchLogOrder, Order, OutputRow, Report
from tidemill.wire.node import STEPS_FROM, End, Grant, OutputRef, Record, Withdrawn

STEP_BASE = STEPS_FROM
"""Job numbers from here on are the site's own steps: merges of outputs, `STEP_BASE + job * STEPS_MAX + output`."""

STEPS_MAX = 16


class KeptPart(msgspec.Struct, frozen=True, array_like=True):
    """Kept outputs of the events `first..first+count-1` of a job, in bundles of `fleet`."""

    first: int
    count: int
    fleet: str
    outputs: list[OutputRef]


class DeliveryTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says of a delivery besides its events: those of which nothing has been delivered yet (None =
    all), whether merge steps are run, and its number in the job."""

    fresh: str | None = None
    merge: bool = True
    delivery: int = 1


class SiteLease(msgspec.Struct, array_like=True):
    """A leased range; `open` of its events are not settled."""

    lease: int
    first: int
    count: int
    open: int


class UndonePiece(msgspec.Struct, frozen=True, array_like=True):
    """Undone events that wait to be granted."""

    first: int
    count: int
    chunk_max: int | None = None
    form: int | None = None  #: one of the job's `forms`; None = as its specification says


class JobForm(msgspec.Struct, frozen=True, array_like=True):
    """Limits of some events of a job; None = that of its specification."""

    memory_mb: int | None = None
    timeout_s: int | None = None


class GrantState(msgspec.Struct, array_like=True):
    """A grant whose events `open` have not come back from `fleet`."""

    fleet: str
    open: IntervalSet
    form: int = 0


class SiteJob(msgspec.Struct, kw_only=True):
    """A job, or the part of it that this site has been given."""

    id: int
    campaign: str
    owner: str = ""
    seed_base: int
    spec: JobSpec
    leases: list[SiteLease] = []
    open: IntervalSet  #: events leased here, neither kept, failed for good nor returned
    done: IntervalSet  #: events kept here
    ready: list[UndonePiece] = []
    grants: dict[int, GrantState] = {}
    failures: dict[int, int] = {}  #: event -> failures that counted
    far: dict[int, int] = {}  #: event -> failures that were trouble of the way on which it read a far file
    fruitless: int = 0  #: failures that do not count, since the last success
    returns: int = 0  #: pilots that returned work because it does not fit, since the last success
    returned_by: str = ""  #: the last of them
    reported: int = 0  #: failures reported as evidence
    parts: list[KeptPart] = []
    #: events with parts whose files stand already in their place, though the job goes on
    arrived: IntervalSet = msgspec.field(default_factory=IntervalSet)
    repairs: int = 0  #: times that kept outputs turned out to be lost
    spec_bytes: int = 0  #: of `spec` as JSON, as the server sent it
    from_jobs: dict[
        str, int
    ] = {}  #: inputs that are outputs of earlier jobs, as the server says: name -> job
    cure_read: str = (
        ""  #: how a ward of the server's hospital wants inputs read: `file`, `cache`; empty = as it asks
    )
    stopping: bool = False  #: nothing more of it is run; what its pilots have finished still comes
    terms: DeliveryTerms = DeliveryTerms()  #: of its delivery, if there is one
    #: grows each time that nothing of it is left and it begins again: its inputs may have changed since
    began: int = 0
    base_form: int = 0  #: the form that follows the specification; each new specification gets a new one
    next_form: int = 1
    forms: dict[int, JobForm] = {}  #: forms for events that needed more than the specification says


class StaleFiles(msgspec.Struct, kw_only=True):
    """Files of a job that have arrived, or may have, and that do not count any more: those of the parts of `events`.
    `spec`: says where they are; the job may go elsewhere now, or be gone."""

    job: int
    campaign: str
    owner: str
    spec: JobSpec
    events: IntervalSet

    def is_at(self, job: SiteJob) -> bool:
        """Whether files of the job as it is now would be in the same places."""
        return (self.campaign, self.owner) == (job.campaign, job.owner) and same_places(self.spec, job.spec)


def same_places(one: JobSpec, other: JobSpec) -> bool:
    """Whether outputs of two specifications of a job go to the same places."""
    return (one.output_dir, one.outputs) == (other.output_dir, other.outputs)


class SiteFleet(msgspec.Struct, kw_only=True):
    """A fleet directory. `open`: grants that are not settled. `cancels`: jobs that its lead must still stop."""

    name: str
    epoch: int
    created_us: int
    open: int = 0
    records: int = 0
    offsets: dict[str, int] = {}
    seen: dict[str, IntervalSet] = {}
    ended: dict[str, int] = {}
    cancels: list[int] = []
    withdrawn: list[Withdrawn] = []  #: parts of grants that its lead must still stop
    pilot_nodes: dict[str, str] = {}  #: name of the node of each pilot
    closed: bool = False  #: its lead knows that nothing follows
    finished_us: int | None = None  #: every allocation ended, every record merged, the rest taken back
    width: int = 0  #: number of nodes that each of its payloads spans; 0 = ordinary payloads


class Allocation(msgspec.Struct, kw_only=True):
    """An allocation that the batch system may know."""

    name: str
    fleet: str
    nodes: int
    cores: int
    state: AllocationState
    batch_id: str = ""
    intended_us: int
    ended_us: int = 0
    reason: str = ""
    pilots: int = 0  #: starts of pilots in its fleet's journal
    pilots_ended: int = 0  #: ... and how many of them ended in order
    busy_us: int = 0
    slot_us: int = 0
    told_lead: bool = False  #: the lead knows that it has ended
    submission: str = ""  #: what it was asked for with; empty = by itself
    pool: str = ""
    account: str = ""
    walltime_s: float = 0.0
    ending: str = ""  #: `contract.Ending`, once it has ended
    hosts: list[str] = []  #: the nodes that it has or had
    started_us: int = 0  #: as the batch system says; 0 while it waits
    ends_us: int = 0  #: by its limit, 0 = not known
    held_cores: int = 0  #: that the batch system counts for it, of all its nodes; 0 = it does not say
    held_gpus: int = 0
    requeued: int = 0
    canceled_us: int = 0  #: when the agent last ordered its end; 0 = never
    shortened_us: int = 0  #: the end that the agent ordered last, 0 = none
    told_end_us: int = 0  #: ... that its fleet was sent
    leaves: bool = False  #: its pilots are to drain and leave
    told_leave: bool = False
    charged_s: float = 0.0  #: node-seconds that the ledger has for it, once it has ended
    notes: list[str] = []  #: how its nodes do things, the newest last: images, work directories
    without_gpus: bool = False  #: it was asked for without the GPUs that its nodes may have

    @property
    def ordered_end_us(self) -> int:
        """The end that the agent ordered for this run, by which its pilots leave in any case; 0 = none. What the batch
        system has started again since has its whole limit."""
        return self.shortened_us if 0 < self.started_us < self.shortened_us else 0

    @property
    def reported(self) -> str:
        """The allocation's state for people and the server: RELEASED where Tidemill itself ended it."""
        is_released = self.state is AllocationState.CANCELED and self.canceled_us
        return RELEASED if is_released else self.state.value

    @property
    def is_at_work(self) -> bool:
        """Whether a pilot of it has started and has not signed off. The batch system need not have shown that it
        runs."""
        return self.pilots > self.pilots_ended

    @property
    def is_left(self) -> bool:
        """Whether its pilots have signed off: it has ended or is about to, as polls will show."""
        is_again_queued = self.requeued > 0 and self.state is not AllocationState.ACTIVE
        return self.pilots > 0 and not self.is_at_work and not is_again_queued

    @property
    def shown(self) -> str:
        """The allocation's state in sums for people: pilots report sooner than the next poll that they work,
        or have left."""
        if self.state in ALLOCATION_FINAL:
            return self.reported
        if self.is_at_work:
            return AllocationState.ACTIVE.value
        if self.is_left:
            return RELEASED if self.canceled_us else AllocationState.COMPLETED.value
        return self.state.value


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Why the site is drained until an operator resumes it. `cause`: `stop_file`, `cancels`, `held`, `doubt`,
    `operator`."""

    cause: str
    reason: str
    at_us: int


class Rate(msgspec.Struct):
    """Recent payload seconds and events of one application, old ones fading."""

    wall_s: float = 0.0
    events: float = 0.0


class SiteState(msgspec.Struct, kw_only=True):
    """Everything. Dicts keep the order of arrival."""

    site: str
    epoch: int = 0
    have: int = 0  #: highest number of the server's orders taken
    next_report: int = 1
    next_grant: int = 1
    next_allocation: int = 1
    next_fleet: int = 1
    jobs: dict[int, SiteJob] = {}
    reports: list[Report] = []
    fleets: dict[str, SiteFleet] = {}
    allocations: dict[str, Allocation] = {}
    deliveries: dict[int, str] = {}  #: job -> events to deliver (interval text)
    stopping: list[int] = []  #: jobs that are being stopped
    stale: dict[int, list[StaleFiles]] = {}  #: files to remove, by job, the oldest first
    steps: int = 0  #: steps of our own among the jobs
    step_evidence: dict[int, Evidence] = {}  #: why steps of our own failed
    fetches: list[FetchLogOrder] = []
    forgotten: list[int] = []  #: jobs whose staged files are to be cleaned
    rates: dict[str, Rate] = {}
    drained: str | None = None
    leases_open: int = 0
    stop: Stop | None = None
    #: when allocations were canceled that Tidemill had not canceled, since the last resume
    foreign_us: list[int] = []
    foreign_by: list[str] = []  #: the users who did, of the last of them; empty = not known
    withdrawn_us: list[int] = []  #: ... those of them that waited
    used_node_s: dict[str, float] = {}  #: account -> node-seconds of allocations that have ended


# ---- entries of the log: the only way in which the state changes ------------------------------------------------


class Opened(msgspec.Struct, tag_field="e", tag="opened", kw_only=True):
    """First line of an epoch's log. `read`: bytes read of each earlier log file; later bytes there are ignored."""

    epoch: int
    host: str
    pid: int
    at_us: int
    read: dict[str, int]


class Replied(msgspec.Struct, tag_field="e", tag="replied", kw_only=True):
    """The server's answer to a sync, as far as it is taken. `refused`: why a lease among the orders is not, by the
    order's number; `passed`: highest number that was screened; `illegal`: the refused leases whose job is not legal."""

    acked: int
    orders: list[Order]
    at_us: int
    refused: dict[int, str] = {}
    passed: int = 0
    illegal: list[int] = []


class FleetOpened(msgspec.Struct, tag_field="e", tag="fleet", kw_only=True):
    """A fleet directory is about to be made."""

    fleet: str
    at_us: int
    width: int = 0


class Granted(msgspec.Struct, tag_field="e", tag="granted", kw_only=True):
    """A work file is about to be written."""

    fleet: str
    grants: list[Grant]
    cancels: list[int]
    ended: list[str]
    close: bool
    drain: bool = False
    ends: list[End] = []
    leave: list[str] = []
    withdrawn: list[Withdrawn] = []


class Read(msgspec.Struct, tag_field="e", tag="read", kw_only=True):
    """Records read from a fleet's journals, and how far each journal was read."""

    fleet: str
    offsets: dict[str, int]
    records: list[Record]
    far: dict[int, FarTrouble] = {}  #: of failed ones that read far files, by their place in `records`


class Refused(msgspec.Struct, tag_field="e", tag="refused", kw_only=True):
    """The site cannot run what is open of a job: it goes back to the server with the reason."""

    job: int
    evidence: Evidence


class Intended(msgspec.Struct, tag_field="e", tag="intended", kw_only=True):
    """Allocations are about to be submitted: `count` alike, of `nodes` nodes each, named by `element_name`."""

    allocation: str
    fleet: str
    nodes: int
    cores: int
    at_us: int
    count: int = 1
    walltime_s: float = 0.0
    account: str = ""
    pool: str = ""
    without_gpus: bool = False


class Ordered(msgspec.Struct, tag_field="e", tag="ordered", kw_only=True):
    """We are about to end allocations, to let them end earlier, or to have their pilots leave. What ends without such
    an entry was ended by another user."""

    at_us: int
    cancel: list[str] = []
    ends_us: dict[str, int] = {}
    leave: list[str] = []
    why: str = ""


class Observed(msgspec.Struct, tag_field="e", tag="observed", kw_only=True):
    """What the batch system reports of an allocation."""

    allocation: str
    state: AllocationState
    batch_id: str
    reason: str
    at_us: int
    ending: str = ""
    hosts: list[str] = []
    started_us: int = 0
    ends_us: int = 0
    requeued: int = 0
    ended_us: int = 0  #: as the batch system says; 0 = it does not
    cores: int = 0
    gpus: int = 0
    by: str = ""  #: the user who canceled it; empty = not known


class Stopped(msgspec.Struct, tag_field="e", tag="stopped", kw_only=True):
    """The site drains, and stays so until `Resumed`, whatever restarts."""

    cause: str
    reason: str
    at_us: int


class Resumed(msgspec.Struct, tag_field="e", tag="resumed", kw_only=True):
    """An operator lets the site work again."""

    reason: str
    at_us: int


class Denied(msgspec.Struct, tag_field="e", tag="denied", kw_only=True):
    """The site's staff deny the submitter of these jobs, or their slots turned out to be too large for every pilot:
    their payloads are ended, what is open goes back."""

    jobs: list[int]
    reason: str


class GaveBack(msgspec.Struct, tag_field="e", tag="gave_back", kw_only=True):
    """What no fleet has of these jobs returns to the server without a failure: this site does not work for now."""

    jobs: list[int]
    reason: str


class FleetFinished(msgspec.Struct, tag_field="e", tag="finished", kw_only=True):
    """All of a fleet's records are read and nothing works there: what it did not do is undone again."""

    fleet: str
    at_us: int


class FleetRemoved(msgspec.Struct, tag_field="e", tag="removed", kw_only=True):
    """A finished fleet's directory is about to be deleted."""

    fleet: str


class StepAdded(msgspec.Struct, tag_field="e", tag="step", kw_only=True):
    """A step of our own (a merge) is to run as job `job`."""

    job: int
    campaign: str
    spec: JobSpec


class OutputsDelivered(msgspec.Struct, tag_field="e", tag="delivered", kw_only=True):
    """A job's outputs are in place (or cannot be, for good: `evidence`)."""

    job: int
    outputs: list[OutputRow]
    evidence: Evidence | None
    done: str = ""  #: whose outputs were delivered; empty = all of the job's
    held: bool = False  #: merge steps were not run: the parts are still needed
    lost: str = ""  #: with `evidence`: events whose outputs are gone or damaged


class OutputsArrived(msgspec.Struct, tag_field="e", tag="arrived", kw_only=True):
    """The files of these events stand in their place, before the job ends. `outputs`: all that stands of it so far."""

    job: int
    events: str
    outputs: list[OutputRow]


class StaleRemoved(msgspec.Struct, tag_field="e", tag="stale_removed", kw_only=True):
    """The job's oldest stale files of these events are removed, or given up: they stay."""

    job: int
    events: str


class Damaged(msgspec.Struct, tag_field="e", tag="damaged", kw_only=True):
    """Kept outputs of these events cannot be read: they are run again before the job is delivered."""

    job: int
    first: int
    count: int
    reason: str


class LetGo(msgspec.Struct, tag_field="e", tag="let_go", kw_only=True):
    """Pilots had time to keep what they had finished of jobs that were stopped: the rest goes back to the server."""

    jobs: list[int]


class LogFetched(msgspec.Struct, tag_field="e", tag="fetched", kw_only=True):
    """A payload's log was found, or not."""

    request: int
    found: bool
    stdout: str
    stderr: str


class Cleaned(msgspec.Struct, tag_field="e", tag="cleaned", kw_only=True):
    """Staged files of forgotten jobs are deleted."""

    jobs: list[int]


Entry = (
    Opened
    | Replied
    | FleetOpened
    | Granted
    | Read
    | Refused
    | Intended
    | Ordered
    | Observed
    | Stopped
    | Resumed
    | Denied
    | GaveBack
    | FleetFinished
    | FleetRemoved
    | StepAdded
    | OutputsDelivered
    | OutputsArrived
    | StaleRemoved
    | Damaged
    | LetGo
    | LogFetched
    | Cleaned
)


def encode_hook(value: Any) -> str:
    """How the snapshot writes what JSON has no form for; NotImplementedError is what msgspec asks for."""
    if isinstance(value, IntervalSet):
        return str(value)
    raise NotImplementedError(type(value))


def decode_hook(kind: type, value: Any) -> Any:
    """The inverse of `encode_hook`."""
    if kind is IntervalSet and isinstance(value, str):
        return IntervalSet.parse(value)
    raise NotImplementedError(kind)
