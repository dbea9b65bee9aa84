"""Rows of the store as records, and the codes of states. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Width
from tidemill.model.state import JOB_TRANSITIONS, LEASE_TRANSITIONS, JobState, LeaseState
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

USAGE_SUM_MAX = 2**61  #: of what is added to a sum of usage; two of them still are a BIGINT


class StoredJob(msgspec.Struct, gc=False):
    """A row of `jobs`; fields in the order of `jobs_by_id`. `place`: the only site that may have it (pin, or
    where its outputs are); less than 0 = the sites of that ward may."""

    id: int
    kind: int
    spec: int
    state: int
    site: int
    pin: int
    place: int
    home: int
    ready: int
    rank: int
    events: int
    n_done: int
    n_failed: int
    n_leased: int
    done: str
    failed: str
    leased: str
    seed_base: int
    created_us: int
    started_us: int | None
    ended_us: int | None
    reason: str
    name: str
    blocked: int
    attempts: int
    refusals: int
    refused: str
    evidences: int
    delivering: int
    outputs: int
    told: int
    usage: str
    kept: int = 0  #: outputs of done events lie at its home and are not delivered
    delivered: str = ""  #: events whose outputs are all delivered
    sent: str = ""  #: events whose outputs are delivered but for those of merge steps
    deliveries: int = 0  #: that left files
    ends: int = 0  #: the state that it gets once what is done is delivered; 0 = it goes on
    ward: int = 0  #: the ward in which it is; 0 = in none
    moves: int = 0  #: times that it was admitted to a ward
    waits_us: int = 0  #: since when it waits, where that is later than its creation
    n_canceled: int = 0
    canceled: str = ""  #: events that its owner has canceled

    @property
    def waits_since_us(self) -> int:
        """Since when it waits for a site."""
        return max(self.created_us, self.waits_us)

    @property
    def n_left(self) -> int:
        """Events that are neither done, failed nor canceled: a site has them, or they wait for one."""
        return self.events - self.n_done - self.n_failed - self.n_canceled

    @property
    def berth(self) -> int:
        """Its `place` while no site holds outputs of it: its ward, else its pin."""
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

KIND_COLUMNS = ("campaign", "app", "cores", "memory_mb", "devices", "nodes", "ranks", "home", "data")


def kind_of(row: tuple[Any, ...]) -> JobKind:
    """A row of `kinds`, decoded."""
    number, campaign, app, cores, memory_mb, devices, *rest = row
    return JobKind(number, campaign, app, cores, memory_mb, msgspec.json.decode(devices), *rest)


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


def site_of(row: tuple[Any, ...]) -> Site:
    """A row of `sites`, decoded."""
    site = Site(*row[:9])
    site.drained, site.drain_reason, site.named_by = row[12:15]
    site.capacity = msgspec.json.decode(row[9], type=Capacity) if row[9] else None
    site.allocations = msgspec.json.decode(row[10], type=dict[str, int])
    site.offers = {each.name: each for each in msgspec.json.decode(row[11], type=list[AppOffer])}
    return site


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
    rss = max(old[5], new[5])
    new = tuple(min(a + b, USAGE_SUM_MAX) for a, b in zip(old, new, strict=True))
    new = (*new[:5], rss, *new[6:])
    return " ".join(map(str, new))


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
