"""Measurements on nodes, and a site's view of its machine, from the site to the server and on to clients. Parts of the
messages of `wire/api`."""

from __future__ import annotations

import msgspec

from tidemill.model.figures.awaited import Hindrance, QueuedReason

NODES_SHOWN_MAX = 64  #: of an allocation, whose samples are sent one by one
VIEW_SAMPLES_MAX = 2_000  #: of one sync, means included


class NodePoint(msgspec.Struct, frozen=True, array_like=True):
    """One sample. `values` are as `QUANTITIES` of `model/metrics/nodes`; None, or behind their end = unknown."""

    at_us: int  #: end of the interval
    over_us: int  #: its length
    values: list[float | None]


class MountUse(msgspec.Struct, frozen=True, array_like=True):
    """What a node did to a mounted shared file system, in the last sample in which it did anything."""

    mount: str
    ops_per_s: float | None
    retransmissions_per_s: float | None
    read_bytes_per_s: float | None
    write_bytes_per_s: float | None
    rtt_s: float | None
    opens_per_s: float | None = None
    closes_per_s: float | None = None


class NodeSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one node, oldest first. `cores` is of the last one: the busy share of each core as a digit, in tenths
    rounded down; of more than 128 cores neighbours share a digit."""

    node: str
    points: list[NodePoint]
    cores: str = ""
    mounts: list[MountUse] = []


class AllocationSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of an allocation that no answered sync has reported yet. `mean`: of all its nodes, also of those that are
    not sent one by one."""

    allocation: str
    nodes_total: int
    nodes: list[NodeSeries] = []
    mean: list[NodePoint] = []


class SampleReply(msgspec.Struct, kw_only=True):
    """What the server holds of an allocation's samples, each time with the names of its values. Ask the next time with
    `since` = `until`."""

    site: str
    allocation: str
    quantities: list[str]  #: names of the values, in their order
    units: list[str]
    nodes_total: int
    nodes: list[NodeSeries]
    mean: list[NodePoint]
    until: int


class StagingView(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that came into nodes' memory, by the nodes of their allocation: sums since the site's agent started.

    `way`: `peer` (from another node) or `shared` (from the shared file system). Times are those of each file and node.
    `times`: a histogram of them, for medians: files by the upper edge of a class in ms (`model/figures/time_classes`).
    """

    nodes: int
    way: str
    since_us: int
    files: int = 0
    bytes: int = 0
    ms: int = 0
    square_ms: int = 0
    max_ms: int = 0
    times: list[tuple[int, int]] = []


class AwaitedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """What a site's work waits for. Times are microseconds since 1970, 0 = none.

    `asked_us`: since when the oldest allocation is asked for whose pilots are not at work; `next_us`: when the site
    polls its batch system next, at the latest; `why`: why no more nodes are asked for, as the view `waits_for`; of a
    stopped site why, and what ends it. `polled_us`: of the poll that `hindrances` and `queued` are from: `why` in
    figures, and what the batch system says of allocations that wait. `starting`: allocations that run by the word of
    the batch system, and whose pilots have not been heard; `asked`: all whose pilots are not at work.
    """

    asked_us: int = 0
    next_us: int = 0
    why: str = ""
    is_stopped: bool = False
    polled_us: int = 0
    starting: int = 0
    asked: int = 0
    hindrances: list[Hindrance] = []
    queued: list[QueuedReason] = []


class RegularWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Regular jobs of a class that started today (UTC): seconds that they waited in all, and our estimated part of it.

    `size`, `length`: a class of `model.figures.job_classes`, `unknown` where a record does not say.
    """

    size: str
    length: str
    jobs: int
    delayed: int
    wait_s: float
    share_s: float


class MoveSums(msgspec.Struct, frozen=True, kw_only=True):
    """Remote files that the agent moved since it started: `way` `in` to the site, or `out` of it."""

    way: str
    done: int
    failed: int
    bytes: int


class AreaSums(msgspec.Struct, frozen=True, kw_only=True):
    """An area of the site's I/O budget (`[[io]]`). `ops`, `bytes`: what counters of nodes saw since the agent started;
    `over`: reports of pilots that the area was over its budget. A budget is None where the site sets none."""

    area: str
    ops: float
    bytes: float
    over: int
    ops_per_s: float | None = None
    bytes_per_s: float | None = None


class SiteSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of the agent since `since_us`, when it started, at `at_us`. `harm_s`: what regular jobs have waited
    because of Tidemill, in seconds over all jobs; None = the agent does not see the queue of the machine."""

    since_us: int
    at_us: int
    moves: list[MoveSums] = []
    areas: list[AreaSums] = []
    harm_s: float | None = None


class TidePoint(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Nodes of the machine, mean over a minute: used by regular jobs, used by Tidemill, idle, and out of service."""

    minute: int  #: since 1970 UTC
    regular: float
    ours: float
    idle: float
    away: float


class BadNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node in quarantine: the site starts nothing there."""

    node: str
    since_us: int
    until_us: int
    why: str
    evidence: list[str]


class TransferView(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a job on their way: `in` to the site, or `out` from it. `places`: scheme and host only."""

    job: int
    way: str
    names: list[str]  #: the first few files
    places: list[str]
    tries: int  #: that failed before
    #: False: it waits for its next try, for parts that are made again, or as `waits_for` says
    under_way: bool
    waits_for: str = ""


class GrantView(msgspec.Struct, frozen=True, kw_only=True):
    """A grant of the centre, in node-hours."""

    account: str
    granted: float
    used: float
    open: float  #: what running and waiting allocations may still use
    left: float
