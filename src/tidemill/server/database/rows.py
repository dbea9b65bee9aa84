"""Rows of the store as records, and the codes of states. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Width
from tidemill.model.state import JOB_TRANSITIONS, LEASE_TRANSITIONS, JobState, LeaseState
from tidemill.server.database.queries import Selected
from tidemill.server.errors import WrongEdgeError
from tidemill.wire.api import AppOffer, Capacity, PayloadUsage

JOB_STATES = (
    JobState.WAITING, JobState.RUNNING, JobState.COMPLETED, JobState.PARTIAL, JobState.FAILED, JobState.CANCELED,
)  # fmt: skip
WAITING, RUNNING, COMPLETED, PARTIAL, FAILED, CANCELED = range(6)
STATE_CODES = {str(state): code for code, state in enumerate(JOB_STATES)}
LEASE_STATES = (LeaseState.ACTIVE, LeaseState.SETTLED, LeaseState.RELEASED, LeaseState.LOST)
ACTIVE, SETTLED, RELEASED, LOST = range(4)
JOB_EDGES = frozenset((STATE_CODES[before], STATE_CODES[after]) for before, after in JOB_TRANSITIONS)
LEASE_EDGES = frozenset(
    (LEASE_STATES.index(before), LEASE_STATES.index(after)) for before, after in LEASE_TRANSITIONS
)
STAY_OUTCOMES = ("there", "cured", "failed", "canceled", "home")
"""How a stay in a ward of the hospital ends; `home`: the job went back."""

REASON_MAX = 1_000
JOB_BYTES = 300
"""Of a job in the database besides its specification: measured, 290 with its indexes in SQLite."""

_RSS = PayloadUsage.__struct_fields__.index("rss_kb")
USAGE_SUM_MAX = 2**61  #: of what is added to a sum of usage; two of them still are a BIGINT


class JobIdentity(msgspec.Struct, gc=False):
    """What a job is from its submission on. `rank`: less comes first, a job's priority with the other sign; `pin`: the
    only site that may ever have it, 0 = any."""

    id: int
    kind: int
    spec: int
    rank: int
    events: int
    seed_base: int
    created_us: int
    name: str
    pin: int


class JobProgress(JobIdentity, gc=False):
    """How far a job is. `place`: the only site that may have it (pin, or where its outputs are); less than 0 = the
    sites of that ward may. `waits_us`: since when it waits, where that is later than its creation. `canceled`: the
    events that its owner has canceled."""

    state: int
    site: int
    place: int
    home: int
    ready: int
    n_done: int
    n_failed: int
    n_leased: int
    n_canceled: int
    done: str
    failed: str
    leased: str
    canceled: str
    started_us: int | None
    ended_us: int | None
    waits_us: int
    reason: str
    blocked: int
    attempts: int
    refusals: int
    refused: str
    evidences: int
    told: int
    usage: str

    @property
    def waits_since_us(self) -> int:
        """Since when it waits for a site."""
        return max(self.created_us, self.waits_us)

    @property
    def n_left(self) -> int:
        """Events that are neither done, failed nor canceled: a site has them, or they wait for one."""
        return self.events - self.n_done - self.n_failed - self.n_canceled


class JobDelivery(JobProgress, gc=False):
    """What of a job's outputs is where. `kept`: outputs of done events lie at its home and are not delivered;
    `delivered`: the events whose outputs are all delivered, `sent`: all but those of merge steps; `deliveries`:
    how many left files; `ends`: the state that it gets once what is done is delivered, 0 = it goes on."""

    delivering: int
    outputs: int
    kept: int
    delivered: str
    sent: str
    deliveries: int
    ends: int


class StoredJob(JobDelivery, gc=False):
    """A row of `jobs`, whole, with its stay in the hospital: `ward`, 0 = in none, and `moves`, the times that it was
    admitted to one. Its parts are base classes: one flat record is made of each row."""

    ward: int
    moves: int

    @property
    def berth(self) -> int:
        """The job's `place` while no site holds outputs of it: its ward, else its pin."""
        return -self.ward if self.ward else self.pin


class StoredLease(msgspec.Struct, gc=False):
    """A row of `leases`. `part`: the events that were returned, as intervals; another lease may hold them now."""

    job: int
    lease: int
    site: int
    first: int
    count: int
    state: int
    leased_us: int
    ended_us: int | None
    reason: str
    cores: int
    event_s: float
    part: str

    @property
    def end(self) -> int:
        """The event after the last."""
        return self.first + self.count


def enter_lease(lease: StoredLease, state: int) -> None:
    """The only place where a lease changes its state: an edge that is in no table is a bug."""
    if state != lease.state and (lease.state, state) not in LEASE_EDGES:
        raise WrongEdgeError(
            f"lease {lease.lease} of job {lease.job}: {LEASE_STATES[lease.state]} -> {LEASE_STATES[state]}"
        )
    lease.state = state


class JobKind(msgspec.Struct, frozen=True):
    """Jobs that any site treats alike. 0 and '' = the application's figure; app '' = an ad-hoc command. `nodes` and
    `ranks` are those of a payload that spans nodes, 0 = an ordinary one. `home_site`: the site to which its jobs belong
    and go unless they are in a ward, 0 = none; `data`: the datasets that they read, as JSON, '' = not known."""

    id: int
    campaign: int
    app: str
    cores: int
    memory_mb: int
    devices: dict[str, int]
    nodes: int = 0
    ranks: int = 0
    home_site: int = 0
    data: str = ""

    @property
    def datasets(self) -> list[str]:
        """The datasets that its jobs read."""
        return msgspec.json.decode(self.data, type=list[str]) if self.data else []

    @property
    def width(self) -> Width | None:
        """How wide a payload is; None = an ordinary one."""
        return Width(self.nodes, self.ranks) if self.nodes else None


KindKey = tuple[int, str, int, int, str, int, int, int, str]
"""What makes a kind: campaign, application, cores, memory, devices as text, nodes, ranks, home, data as text."""


class StoredKind(NamedTuple):
    """A row of `kinds`: after its number what makes it, in the order of `KindKey`."""

    id: int
    campaign: int
    app: str
    cores: int
    memory_mb: int
    devices: str
    nodes: int
    ranks: int
    home: int
    data: str

    @property
    def kind(self) -> JobKind:
        """The kind, decoded."""
        return JobKind(
            self.id, self.campaign, self.app, self.cores, self.memory_mb, msgspec.json.decode(self.devices),
            self.nodes, self.ranks, self.home, self.data,
        )  # fmt: skip


KIND_COLUMNS = StoredKind._fields[1:]


def key_of(kind: JobKind) -> KindKey:
    """What makes a kind, of one that is known."""
    devices = msgspec.json.encode(kind.devices).decode()
    return (
        kind.campaign, kind.app, kind.cores, kind.memory_mb, devices, kind.nodes, kind.ranks, kind.home_site,
        kind.data,
    )  # fmt: skip


class Site(msgspec.Struct):
    """A site in memory: its row, decoded. `capacity` None = never seen, only named by a job."""

    id: int
    name: str
    epoch: int = 0
    host: str = ""
    version: str = ""
    acked: int = 0
    ordered: int = 0
    seen_us: int = 0
    lost: int = 0
    capacity: Capacity | None = None
    allocations: dict[str, int] = {}
    offers: dict[str, AppOffer] = {}
    drained: int = 0
    drain_reason: str = ""
    named_by: str = ""  #: owner of the job that named it before it joined
    down_us: int = 0  #: until when the calendar says that it is down, from shortly before; 0 = it is not
    down_reason: str = ""
    approved_us: dict[
        str, int
    ] = {}  #: when an application was offered with another digest, since the server started
    traced_bytes: float = 0.0  #: of its traces, less what it may write in the time since; see `audit.traces`
    traced_us: int = 0  #: when that was reckoned


class StoredSite(NamedTuple):
    """A row of `sites`; `capacity`, `allocations` and `offers` as JSON."""

    id: int
    name: str
    epoch: int
    host: str
    version: str
    acked: int
    ordered: int
    seen_us: int
    lost: int
    capacity: str | None
    allocations: str
    offers: str
    drained: int
    drain_reason: str
    named_by: str

    @property
    def site(self) -> Site:
        """The site, decoded."""
        site = Site(
            self.id, self.name, self.epoch, self.host, self.version, self.acked, self.ordered, self.seen_us, self.lost
        )  # fmt: skip
        site.drained, site.drain_reason, site.named_by = self.drained, self.drain_reason, self.named_by
        site.capacity = msgspec.json.decode(self.capacity, type=Capacity) if self.capacity else None
        site.allocations = msgspec.json.decode(self.allocations, type=dict[str, int])
        offers = msgspec.json.decode(self.offers, type=list[AppOffer])
        site.offers = {each.name: each for each in offers}
        return site


class StoredCampaign(NamedTuple):
    """A row of `campaigns` but for what its fair share needs."""

    id: int
    name: str
    owner: str
    shares: float
    created_us: int
    jobs: int
    events: int
    events_done: int
    events_failed: int
    payloads: int
    wall_us: int
    setup_us: int
    user_us: int
    system_us: int
    rss_kb: int
    read_bytes: int
    write_bytes: int
    first_started_us: int | None
    last_ended_us: int | None
    events_canceled: int

    @property
    def usage(self) -> PayloadUsage:
        """What its payloads have used."""
        return PayloadUsage(**{name: getattr(self, name) for name in PayloadUsage.__struct_fields__})


class ArchivedCampaign(NamedTuple):
    """A row of `archived_campaigns`; `states` and `failures` as JSON."""

    id: int
    name: str
    owner: str
    shares: float
    created_us: int
    jobs: int
    events: int
    events_done: int
    events_failed: int
    payloads: int
    wall_us: int
    setup_us: int
    user_us: int
    system_us: int
    rss_kb: int
    read_bytes: int
    write_bytes: int
    first_started_us: int | None
    last_ended_us: int | None
    states: str
    failures: str
    batch: int
    events_canceled: int

    @property
    def usage(self) -> PayloadUsage:
        """What its payloads have used."""
        return PayloadUsage(**{name: getattr(self, name) for name in PayloadUsage.__struct_fields__})


class StoredFailure(NamedTuple):
    """A row of `failures`; `evidence` as JSON."""

    id: int
    job: int
    event: int
    site: int
    final: int
    evidence: bytes


class StoredOutput(NamedTuple):
    """A row of `outputs`."""

    job: int
    name: str
    url: str
    size_bytes: int
    sha256: str
    events: str


class StoredAllocation(NamedTuple):
    """A row of `allocations`."""

    site: int
    name: str
    batch_id: str
    state: str
    nodes: int
    cores: int
    at_us: int
    reason: str
    busy_us: int
    slot_us: int


class Sets(msgspec.Struct):
    """The interval sets of a job, parsed. No event is in two of them."""

    done: IntervalSet
    failed: IntervalSet
    leased: IntervalSet
    canceled: IntervalSet

    def undone(self, first: int, end: int) -> list[tuple[int, int]]:
        """Intervals neither done, failed nor canceled."""
        gaps = self.wanting(first, end)
        if not self.canceled:
            return gaps
        return [piece for gap in gaps for piece in self.canceled.missing(*gap)]

    def wanting(self, first: int, end: int) -> list[tuple[int, int]]:
        """Intervals neither done nor failed: a result for them counts, even if it was canceled meanwhile."""
        gaps = self.done.missing(first, end)
        if not self.failed:
            return gaps
        return [piece for gap in gaps for piece in self.failed.missing(*gap)]

    def settled(self, first: int, end: int) -> bool:
        """Whether all of these events have ended. Looks from the end backwards, where work is left."""
        while first < end:
            start = self.done.start_of(end - 1)
            if start is None:
                start = self.failed.start_of(end - 1)
            if start is None:
                start = self.canceled.start_of(end - 1)
            if start is None:
                return False
            end = start
        return True

    def free(self, first: int, end: int) -> list[tuple[int, int]]:
        """Intervals neither done, failed, leased nor canceled."""
        return IntervalSet.union((self.done, self.failed, self.leased, self.canceled)).missing(first, end)


def add_usage(text: str, usage: PayloadUsage) -> str:
    """The stored sums of a job with one more report."""
    if not text:
        return (
            f"{usage.payloads} {usage.wall_us} {usage.setup_us} {usage.user_us} {usage.system_us} {usage.rss_kb}"
            f" {usage.read_bytes} {usage.write_bytes}"
        )
    new: tuple[int, ...] = msgspec.structs.astuple(usage)
    old = [int(piece) for piece in text.split(" ")]
    sums = [min(a + b, USAGE_SUM_MAX) for a, b in zip(old, new, strict=True)]
    sums[_RSS] = max(old[_RSS], new[_RSS])
    return " ".join(map(str, sums))


def usage_of(text: str) -> PayloadUsage:
    """Read what `add_usage` wrote."""
    return (
        PayloadUsage(**dict(zip(PayloadUsage.__struct_fields__, map(int, text.split(" ")), strict=True)))
        if text
        else PayloadUsage()
    )


def clean(text: str, limit: int = REASON_MAX) -> str:
    """Bounded, and without NUL, which PostgreSQL's text cannot hold."""
    return text[:limit].replace("\0", "\N{REPLACEMENT CHARACTER}")


IS_SETTLED = "leases.state = 0 AND jobs.state = 2"
"""An ACTIVE lease of a COMPLETED job is settled: `SingleEvents.complete` leaves that out to write one row less. Who
reads a lease gets it from here."""

SELECTED = {
    selected.record.__name__: selected
    for selected in (
        Selected(StoredJob),
        Selected(StoredLease, "leases", {
            "state": f"CASE WHEN {IS_SETTLED} THEN 1 ELSE leases.state END",
            "ended_us": f"CASE WHEN {IS_SETTLED} THEN jobs.ended_us ELSE leases.ended_us END",
        }),
        Selected(StoredKind), Selected(StoredSite), Selected(StoredCampaign), Selected(ArchivedCampaign),
        Selected(StoredFailure), Selected(StoredOutput), Selected(StoredAllocation),
    )
}  # fmt: skip
"""The records that statements name in their SELECT lists."""
