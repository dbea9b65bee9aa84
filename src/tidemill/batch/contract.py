"""What every batch system does for us. An implementation knows command lines and names, nothing of jobs or fleets.

An adapter raises SiteError for whatever fails outside of it, also for replies that it cannot read: the agent then polls
again later. Any other exception is a bug: it ends the agent, or the command that asked, with a message that names the
extension and a file with the traceback. `tidemill up` starts the agent again after seconds; pilots run on meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from tidemill.model.machine import JobCounts, Node, Snapshot
from tidemill.model.state import AllocationState

ELEMENT = "{allocation}"
"""In a command's words: the allocation's own name (of one element of an array)."""

FAR_FUTURE_S = 4e9
"""The end of what has no limit."""


class BatchSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations to ask for: one, or `count` alike as an array where `BatchKind.has_arrays`.

    `command` runs once on each node, started by the site's launcher where there is more than one; what it prints goes
    to small files. With `count` > 1 the allocations are named by `element_name`.

    An adapter obeys these fields or refuses the submission (SiteError that is not transient): `name`, `command`,
    `nodes`, `cores`, `walltime_s`, `environment`, `count`, `ranks`, `features`, `partition`, `account`; `exclude`, too,
    unless `BatchKind.excludes_nodes` is False; `whole` and `memory_mb` where `whole` is False.

    It may ignore the others. Pilots measure the memory that they have, and leave when they start after `start_by_s`;
    where a batch system has no one word for GPUs, `cluster.directives` ask for them instead of `gpus`. Without `avoid`
    and `leaves_gpus` plain work may hold nodes that work with GPUs waits for; without `polite` other users wait longer.
    """

    name: str  #: unique for ever: the batch system is asked by it, never by its own number
    command: list[str]  #: may contain `ELEMENT`, a placeholder for the allocation's name
    nodes: int
    cores: int  #: of each node
    whole: bool = True  #: False: these cores and this memory of a node, whose others other jobs may use
    memory_mb: int  #: of each node; 0 = do not ask for memory
    walltime_s: float
    gpus: int = 0  #: of each node, where the batch system has one word for them; 0 = do not ask for any
    #: its nodes have GPUs that it must not hold: their cores and memory only, where the batch system can do that
    leaves_gpus: bool = False
    has_gpus: bool = True  #: whether its pilots may be given work for GPUs, as far as is known
    environment: dict[str, str] = {}
    count: int = 1  #: at most `Snapshot.array_max` where that is known
    #: fewer nodes, or a shorter limit, will do, down to these; the broker asks for neither (docs/decisions/0008)
    nodes_min: int | None = None
    walltime_min_s: float | None = None
    signal_before_s: float | None = None  #: send USR1 this many seconds before the end
    start_by_s: float | None = None  #: seconds since 1970: not to be started after that
    comment: str = ""  #: for the centre's staff: who this is and whom to ask
    exclude: tuple[str, ...] = ()  #: nodes not to be used
    #: nodes of other pools, for which it is not meant: kept out where that makes a short command
    avoid: tuple[str, ...] = ()
    avoid_by: tuple[str, ...] = ()  #: features that all nodes of its own pool have, and none of `avoid`
    features: tuple[str, ...] = ()  #: nodes must have all of these
    partition: str = ""  #: empty = the configured one
    account: str = ""  #: empty = the configured one
    polite: bool = (
        True  #: queue behind other users' jobs where the batch system can; False: queue like any job
    )
    ranks: bool = (
        True  #: with several nodes: `command` on each node; False: on the first only (it launches itself)
    )


class Answer(StrEnum):
    """What a batch system reports about an allocation. An unclear answer must never be taken for `GONE`."""

    FOUND = "found"
    GONE = "gone"
    UNCLEAR = "unclear"  #: submitted but unknown: so for `batch.constants.UNKNOWN_S`, then gone


class Ending(StrEnum):
    """Why an allocation ended, as far as the batch system reports it. Only FAILED and LAUNCH are failed starts."""

    NONE = "none"  #: it has not ended
    DONE = "done"  #: its command ended with status 0
    FAILED = "failed"  #: its command ended with another status
    CANCELED = "canceled"  #: ended by order; our log shows whether the order was Tidemill's
    PREEMPTED = "preempted"
    WALLTIME = "walltime"
    NODE = "node"  #: its node failed
    MEMORY = "memory"
    DEADLINE = "deadline"  #: it could not start in time
    LAUNCH = "launch"  #: prolog, boot or start failed
    UNKNOWN = "unknown"  #: it has ended; why was forgotten


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one allocation. `reason` is the batch system's own where it reports one: why the allocation waits
    (people read it as `BatchKind.shown_reason` has it), or why it ended."""

    answer: Answer
    state: AllocationState = AllocationState.LOST  #: where found
    batch_id: str = ""
    ending: Ending = Ending.NONE
    reason: str = ""
    held: str = (
        ""  #: why staff or an account keeps it from starting, in the batch system's word; empty = not held
    )
    hopeless: str = ""  #: why it can never start, in the batch system's word; empty = it may
    nodes: tuple[str, ...] = ()
    started_s: float | None = None
    ends_s: float | None = None  #: by its limit while it runs
    ended_s: float | None = None  #: the batch system's own time of its end; None = it has none
    cores: int = 0  #: that the batch system counts for it, of all its nodes; 0 = it does not say
    gpus: int | None = None  #: the same; None = it does not say: whole nodes have theirs
    requeued: int = 0  #: times that it was started again
    suspended: bool = False  #: its processes are stopped, and its nodes may run another job
    output_tail: str = ""  #: the last lines that a failed command printed
    canceled_by: str = ""  #: the user who ordered its end; empty = it is not known


PLAIN_MAX = 4
"""Limit of the submissions in one `plain`: some batch systems need a command for each."""


def is_shown(statuses: Mapping[str, Status], name: str) -> bool:
    """Whether a reply shows this allocation, living or ended."""
    return name in statuses and statuses[name].answer is Answer.FOUND


class PlainReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the plainest query showed of some allocations, as a check of the reply to the usual query."""

    #: waiting and running allocations -> what the cancel command takes for each, mostly its number
    shown: dict[str, str]
    command: str  #: the plain query, in a form that a user can repeat
    usual: str  #: the query of `status`, in such a form


class CommandCounts(msgspec.Struct, kw_only=True):
    """The commands that Tidemill sent to the batch system since the agent started, and how it is: for limits
    and for metrics."""

    queries: int = 0
    glances: int = 0  # of the queries
    actions: int = 0
    failures: int = 0
    slow: int = 0  #: replies that took over `slow_s`, or a rate limit
    bytes: int = 0
    seconds: float = 0.0
    last_s: float = 0.0  #: how long the last query took
    death_s: float = 0.0  #: from our cancels to free nodes, as measured; 0 = not known
    interval_factor: float = 1.0  #: polls are rarer than configured by this factor


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What `site init` finds out about a machine. Empty = could not be seen; `notes` say why, for people."""

    system: str  #: name and version, such as `Slurm 22.05.8`: the contract suite looks for a digit
    partitions: list[PartitionFacts] = []
    nodes: list[Node] = []  #: as they are now
    accounts: list[str] = []  #: the user's, the default first
    qos: list[str] = []
    array_max: int = 0  #: elements in one array at most; 0 = no arrays. Plans follow `Snapshot.array_max`
    jobs_max: int | None = None  #: of a user at once
    submits_max: int | None = None
    others_hidden: bool = False
    starts_nothing: str = ""  #: why it starts no job at all now, in words; empty = it starts jobs
    preempts: str = ""  #: how the scheduler preempts
    architectures: list[str] = []
    launchers: list[str] = []  #: `srun`, `mpiexec (Open MPI 4.1.4)`
    limits: list[str] = []  #: others of the user's accounts and QOS, in the batch system's words
    is_accounted: bool = False  #: sacct can be asked for past jobs; no other accounting is read
    refused: str = (
        ""  #: why a job of one whole node would be refused now; empty = it would not be, or unknown
    )
    scheduler: dict[str, str] = {}  #: settings that matter to a guest: cycle, resolution, kill wait
    notes: list[str] = []


class PartitionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A partition or queue, summed up."""

    name: str
    is_default: bool = False
    nodes: int = 0
    cores_per_node: int = 0
    memory_mb_per_node: int = 0
    features: list[str] = []
    walltime_max_s: float | None = None
    width_max: int | None = None  #: nodes of a job
    is_shared: bool = False
    sharing: str = ""  #: how nodes are shared, in the batch system's words
    accounts: list[str] = []  #: only jobs of these may run; none = of all
    tier: int = 1
    preempted: str = ""
    usable: bool = True
    why_not: str = ""


class MachineTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as it is now, for allocations of one shape: see `BatchSystem.machine`."""

    nodes: int
    nodes_free: int
    cores_per_node: int
    memory_mb_per_node: int
    devices_per_node: dict[str, int] = {}
    queued: int = 0


class BatchSystem(Protocol):
    """A batch system. Every call is bounded in time and bytes, and raises SiteError (transient or not) when it fails,
    and nothing else (see this module's docstring).

    No call ever touches a job that is not Tidemill's: Tidemill's jobs have one of our names, our comment and our user.
    """

    calls: CommandCounts

    def submit(self, submission: BatchSubmission) -> str:
        """Ask for allocations; their number in the batch system. The same name again is the same allocation."""

    def status(self, names: Collection[str]) -> dict[str, Status]:
        """The status of each of these allocations, by one query whatever their number. Where there is an accounting,
        one query of it covers those that have left the queue."""

    def plain(self, names: Collection[str]) -> PlainReply:
        """Which of these allocations have not ended, by another query than that of `status`, with as few options as
        possible: by number if numbers are known, for PLAIN_MAX submissions at most. An allocation that it does not show
        may still run.

        It is asked for allocations that a reply to `status` should show and does not: a filter, a wrapper or a setting
        of the user may hide them. A batch system that has one command only is asked by it for single numbers, without
        the options, filters and format of `status`; where it shows no single jobs, for all of the user's."""

    def cancel(self, names: Collection[str]) -> None:
        """End these allocations, TERM first, by one call; those that have ended or are unknown are passed over."""

    def shorten(self, ends_s: Mapping[str, float]) -> dict[str, float]:
        """Lower the limits of running allocations so that they end then; the ends that the batch system has set, which
        may be a little later. Those that cannot be shortened are left out."""

    def machine(self) -> MachineTotals:
        """What there is and what is free.

        The agent asks this once, when it starts, of the embedded batch system with the policy `demand`, where it reads
        no snapshots. Of a centre's batch system only the contract suite asks it: the sums of a snapshot will do."""

    def snapshot(self) -> Snapshot:
        """The machine as it is now, by a bounded number of queries."""

    def glance(self) -> JobCounts | None:
        """The jobs of the machine in figures, by one command whose reply does not grow with the queue; None = this
        batch system has no such command."""

    def facts(self) -> Facts:
        """What a newcomer needs to know; slow, for `site init`."""

    def output(self, name: str) -> Path:
        """The file that holds what the allocation printed."""

    def forget(self, names: Collection[str], submissions: Collection[str]) -> None:
        """Delete the files of these allocations, which have ended, and of these submissions, of which none lives; a
        fixed number of operations for each, and no directory is listed. Their names are not asked for any more."""


def element_name(name: str, index: int, count: int) -> str:
    """The name of one allocation of a submission."""
    return name if count == 1 else f"{name}.{index}"


def split_element(name: str) -> tuple[str, int | None]:
    """The inverse of `element_name`: the submission's name and the index, None where it has one allocation."""
    base, dot, index = name.rpartition(".")
    return (base, int(index)) if dot and index.isdecimal() else (name, None)
