"""Which idle nodes no job needs, and for how long: a staircase of (nodes, seconds), as `showbf` prints it. Pure.

It trusts the scheduler's plan: a node is free until the first planned job, reservation or maintenance that holds it.
Where the plan is incomplete, the regular job gets the benefit of the doubt: if a scheduler does not report when it
planned (PBS, Grid Engine), a waiting job without a planned start may take any node that it can use, at any time. The
staircase does not include what Tidemill could gain by yielding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec

from tidemill.errors import ConfigError, did_you_mean
from tidemill.model.machine import Node, NodeState, Partition, Queued, Reservation, Running, Snapshot

GUARD_S = 90.0
"""Taken off each window: Slurm plans every bf_interval = 30 s in steps of bf_resolution = 60 s by default
(slurm.conf(5), SchedulerParameters)."""

UNLIMITED_S = 365 * 86400.0
"""The length of a window that nothing ends."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes are asked about. `cores`: nodes with this number of free cores count, too; 0 = whole nodes only."""

    partition: str = ""  #: several with commas between; empty = the default one, else all nodes
    reservation: str = ""  #: we run in this one; all others are closed to us
    features: tuple[str, ...] = ()
    cores: int = 0
    exclude: frozenset[str] = frozenset()
    wake_nodes: bool = False
    guard_s: float = GUARD_S
    planned_only: bool = False  #: jobs without a planned start are handled elsewhere


class Until(msgspec.Struct, frozen=True, gc=False):
    """A node is free until then. `by` ends it: `job 17`, `reservation maint`, `time limit of x`; empty = nothing."""

    at_s: float
    by: str


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`nodes` are free for `seconds` from now (the guard is taken off), until `by` needs the first of them."""

    nodes: int
    seconds: float
    until_s: float
    by: str


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """The staircase, longest first, and what it rests on.

    `promised`: idle nodes kept for a job that the snapshot does not show. `unplanned`: ids of eligible jobs that could
    use these nodes and for which the scheduler reports no planned start: they may start at any time.
    """

    at_s: float
    partition: str
    nodes: int  #: that there are, of what is asked about
    idle: int  #: of them, that take a job now
    steps: list[Step]
    promised: int
    unplanned: list[str]
    plan_age_s: float | None
    hidden: list[str]
    starts_nothing: str = ""  #: why the batch system starts no job now: then there is no window
    is_queue_empty: bool = False  #: no job waits: then there is nothing to plan, and the plan may be old


def windows(snapshot: Snapshot, request: Request) -> Windows:
    """The staircase of one partition. Raises ConfigError for a partition that there is not."""
    chosen = partitions(snapshot, request.partition)
    asked = [node for node in snapshot.nodes if is_asked(node, chosen, request)]
    free = free_until(snapshot, request)
    names = {node.name for node in asked}
    return Windows(
        at_s=snapshot.at_s,
        partition=",".join(each.name for each in chosen),
        nodes=len(asked),
        idle=sum(_is_idle(node, request) for node in asked),
        steps=stairs(free.values(), at_s=snapshot.at_s, guard_s=request.guard_s),
        promised=len(_promised(snapshot) & names),
        unplanned=_unplanned(snapshot, asked),
        plan_age_s=snapshot.plan_age_s,
        hidden=snapshot.hidden,
        starts_nothing=snapshot.starts_nothing,
        is_queue_empty=not snapshot.queued,
    )


def stairs(free: Iterable[Until], *, at_s: float, guard_s: float) -> list[Step]:
    """The staircase of these nodes: fewer seconds, more nodes with every step."""
    ends: dict[float, Counter[str]] = {}
    for until in free:
        ends.setdefault(until.at_s, Counter())[until.by] += 1
    steps: list[Step] = []
    nodes = 0
    for end_s in sorted(ends, reverse=True):
        seconds = end_s - at_s - guard_s
        if seconds < 1.0:
            break
        nodes += ends[end_s].total()
        by = min(ends[end_s].items(), key=lambda item: (-item[1], item[0]))[0]
        steps.append(Step(nodes=nodes, seconds=seconds, until_s=end_s, by=by))
    return steps


def free_until(snapshot: Snapshot, request: Request) -> dict[str, Until]:
    """For each node asked about that takes a job now: until when. The guard is not taken off."""
    if snapshot.starts_nothing:
        return {}
    chosen = partitions(snapshot, request.partition)
    taken = _taken(snapshot.running, shared=request.cores > 0) | _promised(snapshot)
    limits = _limits(chosen, snapshot.at_s)
    free: dict[str, Until] = {}
    usable = {
        name
        for each in snapshot.reservations
        if is_open(each, request.reservation, snapshot.at_s)
        for name in each.nodes
    }
    for node in snapshot.nodes:
        if not is_asked(node, chosen, request) or node.name in taken:
            continue
        if _is_idle(node, request) or (node.state is NodeState.RESERVED and node.name in usable):
            limit = _longest(node, limits, snapshot.at_s)
            if limit is not None:
                free[node.name] = limit
    _cut_for_reservations(free, snapshot, request.reservation)
    _cut_for_jobs(free, snapshot)
    if snapshot.plan_age_s is None and not request.planned_only:
        _cut_for_doubts(free, snapshot, request.reservation)
    return free


def partitions(snapshot: Snapshot, names: str) -> list[Partition]:
    """The partitions of these names (commas between); of no name the default one, else all."""
    if not names:
        defaults = [each for each in snapshot.partitions if each.is_default]
        return defaults or snapshot.partitions
    known = {each.name: each for each in snapshot.partitions}
    for name in names.split(","):
        if name not in known:
            raise ConfigError(f"the batch system has no partition `{name}`", hint=did_you_mean(name, known))
    return [known[name] for name in names.split(",")]


def is_asked(node: Node, chosen: Collection[Partition], request: Request) -> bool:
    """Whether a node is one of those asked about, whatever its state."""
    if node.name in request.exclude or not set(request.features) <= set(node.features):
        return False
    return not chosen or any(each.name in node.partitions for each in chosen)


# ---- what is free now ----------------------------------------------------------------------------


def _is_idle(node: Node, request: Request) -> bool:
    if node.state is NodeState.IDLE:
        return True
    if node.state is NodeState.SHARED:
        return 0 < request.cores <= node.cores_free
    return node.state is NodeState.SLEEPING and request.wake_nodes


def _taken(running: Iterable[Running], *, shared: bool) -> set[str]:
    """Nodes of running jobs, even if the node's state, read a moment earlier, does not show the job yet."""
    return {name for job in running if job.whole or not shared for name in job.nodes}


def _promised(snapshot: Snapshot) -> set[str]:
    """Idle nodes that the scheduler keeps for a job, by their word (`planned`, `plnd`), while no job that we see is
    planned for them (Slurm: sinfo(1), NODE STATE CODES)."""
    planned = {name for job in snapshot.queued for name in job.planned_nodes}
    return {
        node.name
        for node in snapshot.nodes
        if node.state in (NodeState.IDLE, NodeState.SHARED)
        and node.name not in planned
        and ("planned" in (word := node.word.lower()) or "plnd" in word)
    }


# ---- until when ----------------------------------------------------------------------------------


def _limits(chosen: Collection[Partition], at_s: float) -> dict[str, Until]:
    """When a job that starts now in a partition must end. Partitions that are down are left out."""
    limits: dict[str, Until] = {}
    for each in chosen:
        if not each.is_up:
            continue
        if each.walltime_max_s is None:
            limits[each.name] = Until(at_s + UNLIMITED_S, "")
        else:
            limits[each.name] = Until(at_s + each.walltime_max_s, f"time limit of {each.name}")
    return limits if chosen else {"": Until(at_s + UNLIMITED_S, "")}


def _longest(node: Node, limits: dict[str, Until], at_s: float) -> Until | None:
    mine = [limits[name] for name in ("", *node.partitions) if name in limits]
    return max(mine, key=lambda until: until.at_s, default=None)


def _cut(free: dict[str, Until], name: str, at_s: float, by: str) -> None:
    until = free.get(name)
    if until is not None and at_s < until.at_s:
        free[name] = Until(at_s, by)


def is_named(reservation: str, name: str) -> bool:
    """Whether a reservation, or none, is the one of this name (PBS: `R17 NAME` is known by either word)."""
    return name in (reservation, *reservation.split())


def is_open(reservation: Reservation, ours: str, at_s: float) -> bool:
    """Whether it is the one that we run in, and has begun."""
    is_ours = reservation.usable and is_named(reservation.name, ours)
    return is_ours and reservation.start_s <= at_s < reservation.end_s


def _cut_for_reservations(free: dict[str, Until], snapshot: Snapshot, ours: str) -> None:
    for each in snapshot.reservations:
        if each.end_s <= snapshot.at_s:
            continue
        # Tidemill's jobs in its own reservation end with it; at the start of any other one the nodes must be empty.
        at_s = each.end_s if is_open(each, ours, snapshot.at_s) else max(each.start_s, snapshot.at_s)
        for name in each.nodes:
            _cut(free, name, at_s, f"reservation {each.name}")


def _cut_for_jobs(free: dict[str, Until], snapshot: Snapshot) -> None:
    """Planned starts of others. Our own give way to any."""
    homes = _Homes(node for node in snapshot.nodes if node.name in free)
    seen: set[tuple[object, ...]] = set()
    for job in sorted(snapshot.queued, key=lambda job: job.planned_s or 0.0):
        if job.ours or not job.eligible or job.planned_s is None:
            continue
        at_s, by = max(job.planned_s, snapshot.at_s), f"job {job.id}"
        for name in job.planned_nodes:
            _cut(free, name, at_s, by)
        if job.planned_nodes:
            continue
        # A start without nodes: it may be any that it can use. The first of its kind ends them all.
        kind = _kind(job)
        if kind not in seen:
            seen.add(kind)
            for node in homes.nodes(job):
                _cut(free, node.name, at_s, by)


def _cut_for_doubts(free: dict[str, Until], snapshot: Snapshot, ours: str) -> None:
    """Others that wait without a planned start, where that does not mean that they stand behind the planned ones. Those
    of reservations other than Tidemill's have nodes of their own."""
    if snapshot.are_others_hidden:
        for name in free:
            _cut(free, name, snapshot.at_s, "jobs that are hidden")
    homes = _Homes(node for node in snapshot.nodes if node.name in free)
    seen: set[tuple[object, ...]] = set()
    for job in snapshot.queued:
        kind = _kind(job)
        if job.ours or not job.eligible or job.planned_s is not None or kind in seen:
            continue
        if not is_named(job.reservation, ours):
            continue
        seen.add(kind)
        for node in homes.nodes(job):
            _cut(free, node.name, snapshot.at_s, f"job {job.id}, which has no planned start")


def can_use(job: Queued, node: Node) -> bool:
    """Whether a job could run on a node, as far as the snapshot shows; in doubt, it could."""
    if job.partitions and not set(job.partitions) & set(node.partitions):
        return False
    if job.is_feature_list_exact and not set(job.features) <= {*node.features, *node.amounts}:
        return False
    return job.memory_mb_per_node <= node.memory_mb or node.memory_mb == 0


class _Homes:
    """Nodes by what jobs ask for, so that jobs that name one host each are not compared with all of them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._all = list(nodes)
        self._having: dict[str, list[Node]] = {}
        for node in self._all:
            for word in {*node.features, *node.amounts}:
                self._having.setdefault(word, []).append(node)

    def nodes(self, job: Queued) -> Iterator[Node]:
        """The nodes that a job can use."""
        words = job.features if job.is_feature_list_exact else ()
        few = min((self._having.get(word, []) for word in words), key=len, default=self._all)
        return (node for node in few if can_use(job, node))


def _unplanned(snapshot: Snapshot, nodes: Collection[Node]) -> list[str]:
    """Jobs that could use these nodes and have no planned start. Each kind of job is checked once."""
    homes = _Homes(nodes)
    usable: dict[tuple[object, ...], bool] = {}
    result = []
    for job in snapshot.queued:
        if not job.eligible or job.ours or job.planned_s is not None:
            continue
        kind = _kind(job)
        if kind not in usable:
            usable[kind] = any(homes.nodes(job))
        if usable[kind]:
            result.append(job.id)
    return result


def _kind(job: Queued) -> tuple[object, ...]:
    """The properties that `can_use` examines."""
    return job.partitions, job.features, job.is_feature_list_exact, job.memory_mb_per_node
