"""A machine as its batch system shows it at one moment: nodes, all users' jobs, reservations, partitions. Pure data.

Every adapter of `batch/` makes these from what its commands print; `harvest/` reads nothing else. Times are seconds
since 1970, UTC. Host lists are expanded: names of single nodes, interned by the adapter.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class NodeState(StrEnum):
    """What a node can be used for now. The batch system's own word is in `Node.word`."""

    IDLE = "idle"  #: no job is on it, it takes jobs; it may be planned for one (see `Queued.planned_nodes`)
    BUSY = "busy"  #: all of it is used
    SHARED = "shared"  #: part of it is used, the rest may be (see `cores_free`)
    ENDING = "ending"  #: its last job has ended, epilog or kill wait is under way: not free yet
    RESERVED = "reserved"  #: idle, for those of a reservation
    SLEEPING = "sleeping"  #: powered down; the batch system can wake it
    WAKING = "waking"  #: powering up or booting
    AWAY = "away"  #: down, drained, failing, unknown: takes no new job


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node."""

    name: str
    state: NodeState
    cores: int
    memory_mb: int
    cores_free: int  #: 0 unless IDLE or SHARED
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    amounts: tuple[
        str, ...
    ] = ()  #: `scratch>=10gb`: features that jobs ask for, and that use up what there is
    stock: tuple[tuple[str, int], ...] = ()  #: how much it has of what chunks of jobs use up (`JobChunk`)
    memory_free_mb: int = 0  #: 0 unless IDLE or SHARED, and where it is not known
    stock_free: tuple[tuple[str, int], ...] = ()  #: of `stock`; none of what is missing, as far as is known
    devices: tuple[tuple[str, int], ...] = ()
    sharing: str = ""  #: whether jobs share it, in the batch system's word (PBS)
    word: str = ""  #: state as the batch system prints it


class Running(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that holds nodes (running, suspended, completing), of any user."""

    id: str
    name: str
    user: str
    nodes: tuple[str, ...]  #: names; empty where the batch system hides them
    width: int  #: number of nodes
    started_s: float
    ends_s: float  #: by its limit; far in the future where it has none
    submitted_s: float | None = None
    partition: str = ""
    cores: int = 0  #: in all, 0 = unknown
    whole: bool = True  #: it has its nodes for itself
    ours: bool = False  #: an allocation of this site directory, recognised by name and comment


class JobChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a job that fits on one node; several parts may share it. 0 = not asked for."""

    count: int
    cores: int = 0  #: of each
    memory_mb: int = 0
    amounts: tuple[tuple[str, int], ...] = ()  #: what else it uses up of a node's `stock`
    may_share: bool = True  #: False: it is not clear whether a second one fits on the same node


class Queued(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pending job of any user, in the order in which the scheduler considers them (highest priority first)."""

    id: str
    name: str
    user: str
    width: int  #: nodes, at least
    walltime_s: float
    cores: int = 0  #: in all, 0 = unknown
    memory_mb_per_node: int = 0
    submitted_s: float | None = None
    priority: float = 0.0
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  #: all of them are wanted
    is_feature_list_exact: bool = True  #: False: an expression that we do not read; it may want any node
    chunks: tuple[JobChunk, ...] = ()  #: what its width follows from; empty = the width is known
    is_scattered: bool = False  #: each chunk has a node of its own
    planned_s: float | None = None  #: start that the scheduler plans
    planned_nodes: tuple[str, ...] = ()
    reservation: str = ""
    eligible: bool = (
        True  #: False: held, dependent, not begun, or stopped by a limit: could not start on free nodes
    )
    whole: bool = True
    reason: str = ""  #: the batch system's own word
    ours: bool = False


class Reservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Nodes kept for users or for maintenance."""

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    maintenance: bool = False
    usable: bool = False  #: we may run in it


class Partition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A partition or queue. None = no limit, or not reported."""

    name: str
    nodes: tuple[str, ...]
    walltime_max_s: float | None = None
    width_max: int | None = None
    width_min: int = 1
    is_up: bool = True
    is_default: bool = False
    is_shared: bool = False  #: several jobs on one node
    gives_all: bool = False  #: a job holds all devices of its nodes, whatever it asks for
    sharing: str = ""  #: the same in the batch system's own words
    accounts: tuple[str, ...] = ()  #: only jobs of these may run; none = of all
    tier: int = 1  #: a higher one goes first, and may preempt
    preempted: str = ""  #: `cancel`, `requeue`, `suspend` where its jobs may be preempted
    grace_s: float = 0.0
    #: memory of a job that asks for none, by node or by core; 0 = not said: it has all of its nodes
    memory_per_node_mb: int = 0
    memory_per_core_mb: int = 0

    def given_mb(self, node: Node) -> int:
        """Memory that a job gets here which has a whole node and asks for none."""
        given_mb = self.memory_per_node_mb or self.memory_per_core_mb * node.cores
        return min(given_mb, node.memory_mb) if given_mb and node.memory_mb else given_mb or node.memory_mb


class JobCounts(msgspec.Struct, frozen=True, kw_only=True):
    """All users' jobs of a machine in figures. None = the batch system does not show it."""

    submitted: int | None = None  #: ever submitted; starts again at 0 now and then
    ended: int | None = None  #: ever ended; starts again with `submitted`
    waiting: int | None = None  #: now
    running: int | None = None  #: now


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes, running and waiting jobs of a machine at `at_s`. What could not be seen is said in `hidden`, in
    words for people."""

    at_s: float
    nodes: list[Node]
    running: list[Running]
    queued: list[Queued]
    reservations: list[Reservation] = []
    partitions: list[Partition] = []
    plan_age_s: float | None = None  #: since the scheduler last planned, None = unknown
    iteration_s: float = 0.0  #: interval of the scheduler's cycles without an event; 0 = not known
    starts_nothing: str = (
        ""  #: why the batch system starts no job at all now, in words; empty = it starts jobs
    )
    is_order_known: bool = True  #: False: the order of `queued` is a guess; any of them may start first
    are_others_hidden: bool = False  #: regular jobs are not shown, nor which idle nodes are kept for them
    are_jobs_hidden: bool = False  #: regular jobs are among what `hidden` says
    hidden: list[
        str
    ] = []  #: such as `regular jobs (PrivateData=jobs)`: then the plan without us cannot be known

    #: the longest limit that our jobs may ask for besides those of partitions, and the batch system's word for it; None
    #: = none is known
    walltime_max_s: float | None = None
    walltime_by: str = ""
    array_max: int | None = None  #: elements of one array at most; 0 = no arrays, None = no bound is known
    counts: JobCounts | None = None  #: taken before anything else; None = see `BatchSystem.glance`

    @property
    def tells_plan(self) -> bool:
        """Whether the scheduler reports planned starts: it says when it last planned, or a regular job has one."""
        return self.plan_age_s is not None or any(
            job.planned_s is not None and not job.ours for job in self.queued
        )
