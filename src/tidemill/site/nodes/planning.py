"""From what the site has and wants to what is decided on. Pure: state, limits and `now` in.

The decision itself is `harvest.plan.policies.decide`, which `tidemill simulate` runs, too; `selection` names the
allocations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.batch.contract import split_element
from tidemill.batch.kinds import kind_of
from tidemill.config.site import SiteConfig
from tidemill.harvest.account.harm import OwnNodes
from tidemill.harvest.plan.ours import Holding
from tidemill.harvest.plan.policies import Policy
from tidemill.harvest.plan.sentences import merged_hindrances
from tidemill.harvest.plan.situation import (
    Backlog,
    Decision,
    Limits,
    Situation,
    starts_per_hour,
)
from tidemill.harvest.plan.waves import Binding, nodes_for
from tidemill.harvest.snapshot.counting import with_away, with_pilots
from tidemill.model.figures.awaited import HINDRANCES_MAX, Hindrance
from tidemill.model.machine import Node, NodeState, Snapshot
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site import constants
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes.allocations import GpuUse
from tidemill.site.nodes.selection import Named, Shape
from tidemill.site.staff.drain import pause_text
from tidemill.site.state.site_state import Allocation

NODE_WORK_S_MIN = 30.0
"""A further node is asked for only if each has work for at least this time; starting a pilot takes about a second."""

SUBMITS_MAX = 20
"""Allocations that the embedded batch system is asked for at once."""

SINGLES_MAX = 8
"""Single jobs in one plan where there are no arrays, or their elements could not be shortened: a quarter of
`cluster.calls_per_min_max`."""

DYING_S_MIN, DYING_DEATHS = 120.0, 3.0
"""An allocation that was canceled is gone after this time, or after this multiple of the death time if that is more.
KillWait is 30 s by default (slurm.conf(5)), an epilog of a centre takes a minute; OpenPBS took up to 43 s."""

LIMIT_STEP_US = 60_000_000
"""A new limit may be set to the next full minute (scontrol(1), TimeLimit)."""

NO_NODES: Mapping[str, tuple[str, ...]] = {}
HOLDING_STATES = (NodeState.BUSY, NodeState.SHARED, NodeState.ENDING, NodeState.IDLE)
"""What a node can be shown as while an allocation is on it; from another state it does not come back by itself."""

GROWTH = 2
LACKS_WORK = frozenset((Binding.BACKLOG.value, Binding.SHORT.value, Binding.LEARNING.value))
"""What holds back more nodes where some are idle and the work is not for them."""

STOPPED, CONTESTED, WIDE = "stopped", "contested", "wide"
FAILED_STARTS, WITHDRAWN = "failed_starts", "withdrawn"
"""Why no more nodes are asked for, besides what decisions name (`harvest.plan.waves.Binding`)."""

ALLOCATIONS_MAX = 100_000
"""As `nodes_max` at most: an allocation has a node or more, so that `nodes_max` is the bound of a site."""

HOUR_US = 3_600_000_000
EVER_S = 1e18
NO_BOUND = 1_000_000_000


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """How starting went. `pause_s`: time until one is tried; `tries`: how many then, None = no bound; `why`: for
    people. `hour`: allocations asked for in the last hour. `cause`: `why` in one word, for metrics."""

    pause_s: float = 0.0
    tries: int | None = None
    why: str = ""
    hour: int = 0
    cause: str = FAILED_STARTS


PROMISES = {
    Policy.YIELD: "nodes that other users' jobs need are released",
    Policy.PREEMPT: "the scheduler takes nodes that other users' jobs need",
    Policy.CAPPED: "its jobs end before the next planned start, and none is ended early",
    Policy.WINDOWS: "it uses idle nodes that no waiting job could use, and keeps them until its jobs end",
    Policy.DEMAND: "its jobs wait in the queue and run to their end like any other user's",
}
"""What each policy promises to other users, for people."""


def is_at_work(allocation: Allocation) -> bool:
    """`Allocation.is_at_work`, as a function."""
    return allocation.is_at_work


def has_left(allocation: Allocation) -> bool:
    """Whether its pilots have signed off by themselves: it is about to end, as polls will show."""
    return allocation.is_left and not allocation.canceled_us


def takes_no_work(allocation: Allocation, now_us: int, *, death_s: float) -> bool:
    """Whether it is about to end: its pilots have signed off, or it was canceled and should be gone any moment."""
    is_canceled = allocation.canceled_us and now_us - allocation.canceled_us < dying_us(death_s)
    return bool(is_canceled) or has_left(allocation)


def policy_of(config: SiteConfig) -> Policy:
    """The policy that the configuration names, or the batch system's."""
    if config.harvest.policy is not None:
        return Policy(config.harvest.policy)
    if config.batch == "local":
        return Policy.DEMAND
    return Policy.YIELD if kind_of(config.batch).shows_plan else Policy.WINDOWS


def death_s_of(measured_s: float) -> float:
    """How long after we cancel an allocation its nodes are free: as measured (0 = not yet), or usual."""
    return measured_s or constants.DEATH_S


def elements_max_of(config: SiteConfig, snapshot: Snapshot | None) -> int:
    """Allocations that one submission may ask for; 1 = there are no arrays, or none are used."""
    if config.batch == "local" or not kind_of(config.batch).has_arrays:
        return 1
    known = None if snapshot is None else snapshot.array_max
    return NO_BOUND if known is None else max(1, known)


def submissions_of(
    count: int, config: SiteConfig, *, policy: Policy, made: int, elements_max: int
) -> list[int]:
    """The submissions that ask for `count` identical allocations, after `made` in the same plan: the count of each.

    Without arrays each allocation has its own. Where the limits of elements cannot be lowered and nodes are yielded,
    the first SINGLES_MAX are single jobs, and arrays hold the rest.
    """
    if elements_max == 1:
        return [1] * count
    singles = 0
    if policy is Policy.YIELD and not kind_of(config.batch).lowers_limits_of_elements:
        singles = min(count, max(0, SINGLES_MAX - made))
    full, rest = divmod(count - singles, elements_max)
    return [1] * singles + [elements_max] * full + ([rest] if rest else [])


def poll_s_of(config: SiteConfig) -> float:
    """The pause between two polls of the machine, while nothing is slow."""
    return constants.LOCAL_POLL_S if config.batch == "local" else constants.CLUSTER_POLL_S


def backlog_of(demand: Demand, limits: Limits) -> Backlog:
    """The work in nodes. Whatever there is, is worth one allocation."""
    if demand.events <= 0:
        return Backlog(node_s=0.0, nodes_max=0, event_s=demand.range_s)
    cores = max(1, demand.cores)
    slots = max(1, cores // max(1, demand.slot_cores))
    by_slots = math.ceil(demand.events / slots)
    core_s = demand.core_s + demand.behind_core_s
    by_work = math.ceil(core_s / (cores * NODE_WORK_S_MIN))
    bound_by = Binding.BACKLOG
    if by_work < by_slots:
        bound_by = Binding.LEARNING if demand.is_guessed else Binding.SHORT
    least = max(1, limits.width_min)
    node_s, nodes = core_s / cores, max(least, min(by_slots, by_work))
    if demand.more:  # more is leased as soon as there are nodes for it
        node_s, nodes = EVER_S, max(nodes, limits.nodes_max)
    least_s = max(limits.payback * limits.startup_s, demand.range_s, 1.0)
    return Backlog(
        node_s=max(node_s, least_s * least), nodes_max=nodes, event_s=demand.range_s, bound_by=bound_by.value
    )


def work_of(demand: Demand, limits: Limits) -> Backlog:
    """The work in nodes, parted by what it needs. What the server has beyond what is leased counts as what is leased
    does, and as plain work where there are both kinds."""
    part = demand.on_gpus
    if part is None:
        return backlog_of(demand, limits)
    rest = msgspec.structs.replace(
        demand,
        events=demand.events - part.events,
        core_s=demand.core_s - part.core_s,
        behind_core_s=demand.behind_core_s - part.behind_core_s,
    )
    return msgspec.structs.replace(backlog_of(rest, limits), on_gpus=backlog_of(part, limits))


class WorkSize(NamedTuple):
    """How many nodes the open work was for when it was decided on, by `limits`, and whether that left nodes idle."""

    nodes: int
    limits: Limits
    left_idle: bool


def size_of(work: Backlog, limits: Limits, decisions: Iterable[Decision]) -> WorkSize:
    """The size of the work on which these decisions were made, one for each pool."""
    return WorkSize(_nodes_of(work, limits), limits, any(each.waits_for in LACKS_WORK for each in decisions))


def has_grown(before: WorkSize, work: Backlog, *, held: int) -> bool:
    """Whether idle nodes should be asked for before the next regular poll: the work is for twice as many as it was for
    before and as are `held`, so that a campaign of any size causes few such polls."""
    return before.left_idle and _nodes_of(work, before.limits) >= GROWTH * max(before.nodes, held)


def _nodes_of(work: Backlog, limits: Limits) -> int:
    on_gpus = 0 if work.on_gpus is None else nodes_for(work.on_gpus, limits)
    return min(limits.nodes_max, nodes_for(work, limits) + on_gpus)


class GpuAsk(NamedTuple):
    """Allocations alike that a plan asks for: (nodes, number, walltime_s), and what they have of GPUs."""

    nodes: int
    number: int
    walltime_s: float
    gpus: GpuUse


def by_gpus(submit: Sequence[tuple[int, int, float]], shape: Shape) -> list[GpuAsk]:
    """What a plan submits, parted into what work with GPUs is for and what leaves the GPUs of its nodes to others."""
    if shape.has_gpus is None:
        return [GpuAsk(*each, GpuUse.ALL) for each in submit]
    if not shape.has_gpus:
        return [GpuAsk(*each, GpuUse.NONE) for each in submit]
    left, asks = shape.gpu_nodes, []
    for nodes, count, walltime_s in submit:
        first = min(count, -(-left // nodes)) if left > 0 else 0
        left -= first * nodes
        parts = (
            GpuAsk(nodes, first, walltime_s, GpuUse.ALL),
            GpuAsk(nodes, count - first, walltime_s, GpuUse.LEAVE),
        )
        asks += [part for part in parts if part.number]
    return asks


def features_apart(inside: Sequence[Node], outside: Sequence[Node]) -> tuple[str, ...]:
    """Features that all of `inside` have, and none of `outside` has all of; empty = there are none."""
    if not inside or not outside:
        return ()
    common = set(inside[0].features).intersection(*(node.features for node in inside[1:]))
    kinds = {node.features for node in outside}
    for each in sorted(common):
        if not any(each in kind for kind in kinds):
            return (each,)
    return () if any(common <= set(kind) for kind in kinds) else tuple(sorted(common))


def anything(limits: Limits) -> Backlog:
    """The backlog of a site that only observes: as if there were always work."""
    return Backlog(node_s=EVER_S, nodes_max=limits.nodes_max, event_s=1.0)


def pause_s_of(failed: int, since_s: float, *, config: SiteConfig) -> float:
    """Seconds until the next start may be tried after `failed` failed ones, the last `since_s` ago: doubled with each,
    and bounded, so that tries never stop."""
    if not failed:
        return 0.0
    longest_s = min(constants.START_BACKOFF_S * 2 ** min(failed - 1, 30), constants.START_BACKOFF_MAX_S)
    return float(max(0.0, longest_s - since_s))


def withdrawn_starts(pause_s: float, now_us: int) -> Starts | None:
    """What may be started in a pause after others canceled allocations that waited; None = there is none."""
    if pause_s <= 0:
        return None
    until_us = now_us + int(pause_s * 1e6) + 999_999  # shown to the second: it changes with each cancel only
    return Starts(pause_s=pause_s, why=pause_text(until_us), cause=WITHDRAWN)


def starts_left(starts: Starts, config: SiteConfig, *, nodes: int, policy: Policy) -> int:
    """How many starts the hourly bound and failed starts still allow: none, a few to try, or what the hour leaves.

    The hourly bound protects the users of harvested machines: it does not apply where allocations queue like any job.
    """
    if starts.pause_s > 0:
        return 0
    tries = NO_BOUND if starts.tries is None else starts.tries
    if policy is Policy.DEMAND:
        return tries
    return max(0, min(tries, starts_per_hour(nodes, constants.STARTS_PER_NODE_HOUR) - starts.hour))


def with_hour(starts: Starts, asked: Sequence[tuple[int, int]], config: SiteConfig, *, nodes: int) -> Starts:
    """`starts` with what was asked for in the last hour, oldest first: (microseconds since 1970, allocations). Where
    that is as much as the hourly bound allows, the reason is the bound, with the time of the next start."""
    hour = sum(count for _, count in asked)
    starts = msgspec.structs.replace(starts, hour=hour)
    bound = starts_per_hour(nodes, constants.STARTS_PER_NODE_HOUR)
    over = hour - bound
    if over < 0 or starts.pause_s > 0 or policy_of(config) is Policy.DEMAND:
        return starts
    next_us = 0
    for at_us, count in asked:
        over -= count
        if over < 0:
            next_us = at_us + HOUR_US
            break
    why = f"all {bound} starts of an hour are used up; the next at {clock.utc_text(next_us)}"
    return msgspec.structs.replace(starts, why=why, cause=Binding.STARTS.value)


def local_situation(
    config: SiteConfig, demand: Demand, *, nodes: int, holdings: list[Holding], starts: Starts
) -> Situation:
    """The embedded batch system as a pool without others, at the time 0. `nodes` of as many cores as `demand` has in
    `cores`."""
    limits = Limits(
        nodes_max=min(config.nodes_max, nodes),
        allocations_max=ALLOCATIONS_MAX,
        walltime_max_s=config.walltime_s,
        walltime_min_s=1.0,
        walltime_step_s=1.0,
        startup_s=0.0,
        payback=0.0,
        waiting_per_idle=EVER_S,
        starts_left=starts_left(starts, config, nodes=nodes, policy=Policy.DEMAND),
        submits_max=SUBMITS_MAX,
        poll_s=constants.LOCAL_POLL_S,
        cycle_s=0.0,
        death_s=0.0,
    )
    return Situation(
        now_s=0.0,
        nodes=nodes,
        idle=nodes,
        busy=[],
        queue=[],
        outages=[],
        holdings=holdings,
        backlog=backlog_of(msgspec.structs.replace(demand, more=False), limits),
        limits=limits,
    )


def group_by_start(allocations: Sequence[Allocation]) -> list[Holding]:
    """Holdings at the time 0, by width: what runs, oldest first, and what waits, newest first."""
    groups: dict[tuple[bool, int], list[Allocation]] = {}
    for allocation in allocations:
        waits = allocation.state is not AllocationState.ACTIVE
        groups.setdefault((waits, allocation.nodes), []).append(allocation)
    result = []
    for key, ((waits, width), members) in enumerate(groups.items()):
        names = [a.name for a in members]
        result.append(
            Holding(
                key=key,
                width=width,
                count=len(members),
                waiting=waits,
                started_s=0.0,
                ends_s=members[0].walltime_s,
                names=tuple(names[::-1] if waits else names),
            )
        )
    return result


def end_us_of(allocation: Allocation, *, batch: str) -> int:
    """When it ends, as a plan may rely on: by the limit that the batch system reports; 0 = not known.

    An ordered end counts only where the batch system has set it, if need be to the next minute. So one that it refused
    is ordered again. What keeps its limit, as elements of arrays on PBS do and all jobs of Grid Engine, ends because
    its pilots leave.
    """
    ends_us, ordered_us = allocation.ends_us, allocation.ordered_end_us
    keeps_limit = False
    if batch != "local":
        kind, is_element = kind_of(batch), split_element(allocation.name)[1] is not None
        keeps_limit = not kind.lowers_limits or (is_element and not kind.lowers_limits_of_elements)
    if ordered_us and (keeps_limit or ends_us - ordered_us <= LIMIT_STEP_US):
        return min(ends_us, ordered_us) if ends_us else ordered_us
    return ends_us


class OnTheirWay(NamedTuple):
    """Names of allocations that were canceled and have not ended: `dying`, which should be gone any moment, and
    `stuck`, which run although they should have gone long ago."""

    dying: set[str]
    stuck: set[str]


def dying_us(death_s: float) -> int:
    """Time (us) in which what is canceled should be gone: its usual death time a few times over."""
    return int(max(DYING_S_MIN, DYING_DEATHS * death_s) * 1e6)


def on_their_way(allocations: Iterable[Allocation], now_us: int, *, death_s: float) -> OnTheirWay:
    """Who holds nothing that could be released once more.

    The nodes of those that are dying go to whom they were canceled for, so that no other allocation ends instead, also
    where the batch system has not confirmed the cancel and it is sent again. Those that are stuck count like regular
    jobs: others end instead.
    """
    result = OnTheirWay(set(), set())
    for a in allocations:
        if a.canceled_us and now_us - a.canceled_us < dying_us(death_s):
            result.dying.add(a.name)
        elif a.canceled_us and a.state is AllocationState.ACTIVE:
            result.stuck.add(a.name)
    return result


def just_ended(before: Snapshot | None, now: Snapshot) -> dict[str, tuple[str, ...]]:
    """Our allocations that the last snapshot showed and this one does not, with their nodes then."""
    if before is None:
        return {}
    here = {job.name for job in now.running if job.ours}
    return {job.name: job.nodes for job in before.running if job.ours and job.name not in here}


def own_nodes(allocations: Iterable[Allocation]) -> OwnNodes:
    """The nodes of allocations that yield: those of pools, not those for payloads that span nodes."""
    held: set[str] = set()
    released: dict[str, float] = {}
    for each in allocations:
        if not each.pool:
            continue
        if each.state is AllocationState.ACTIVE:
            held.update(each.hosts)
        elif each.state in ALLOCATION_FINAL and each.ended_us:
            released |= {host: max(released.get(host, 0.0), each.ended_us / 1e6) for host in each.hosts}
    return OwnNodes(frozenset(held), released)


def without_dying(
    snapshot: Snapshot, names: Container[str], ended: Mapping[str, tuple[str, ...]] = NO_NODES
) -> tuple[Snapshot, frozenset[str]]:
    """The machine as it will be without these allocations, and which of its idle nodes they still hold now.

    `ended`: see `just_ended`. Batch systems are asked for nodes first and for jobs after that: of what ends in between,
    the nodes are shown in use by no job. Counted as other users' nodes, each would cost an allocation more. Those that
    are shown idle can be filled at once.
    """
    stays = [job for job in snapshot.running if not (job.ours and job.name in names)]
    if len(stays) == len(snapshot.running) and not ended:
        return snapshot, frozenset()
    kept = {name for job in stays for name in job.nodes}
    left = {name for job in snapshot.running for name in job.nodes if name not in kept}
    late = {name for nodes in ended.values() for name in nodes if name not in kept}
    replace = msgspec.structs.replace
    ending: set[str] = set()
    nodes = list(snapshot.nodes)
    for k, node in enumerate(nodes):
        is_late = node.name in late and node.state is not NodeState.IDLE
        if (node.name in left or is_late) and node.state in HOLDING_STATES:
            nodes[k] = replace(node, state=NodeState.IDLE, cores_free=node.cores)
            ending.add(node.name)
    return replace(snapshot, running=stays, nodes=nodes), frozenset(ending)


def causes_of(plans: Sequence[Named], starts: Starts, *, wide_waits: bool) -> list[str]:
    """Why no more nodes are asked for, one word for each cause: for metrics, whose labels must be few."""
    causes = [
        starts.cause if plan.waits_for != plan.decision.waits_for else plan.decision.waits_for
        for plan in plans
    ]
    return sorted({*(cause for cause in causes if cause), *([WIDE] if wide_waits else [])})


def _with_others(hindrance: Hindrance, *, away: int, bare: int) -> Hindrance:
    """The hindrance with nodes of none of its pools: `away` are down or drained, `bare` are idle and have no GPUs."""
    nodes = hindrance.nodes
    if nodes is not None and nodes.are_for_gpus:
        return msgspec.structs.replace(hindrance, nodes=msgspec.structs.replace(nodes, bare=bare))
    return msgspec.structs.replace(hindrance, nodes=with_away(nodes, away))


def hindrances_of(plans: Sequence[Named], *others: str | None, away: int = 0) -> list[Hindrance]:
    """Why no more nodes are asked for, in figures: one entry for each cause, those of the pools first. `others`: causes
    as sentences; `away`: nodes that are down or drained, which belong to no pool."""
    found = merged_hindrances(Hindrance(cause=plan.waits_for, nodes=plan.nodes) for plan in plans)
    idle = Binding.IDLE.value
    bare = sum(plan.nodes.idle for plan in plans if plan.nodes is not None and plan.shape.has_gpus is False)
    found = [_with_others(each, away=away, bare=bare) if each.cause == idle else each for each in found]
    return [*found, *(Hindrance(cause=each) for each in others if each)][:HINDRANCES_MAX]


def as_reported(
    plans: Sequence[Named], allocations: Mapping[str, Allocation], held: Collection[str]
) -> list[Named]:
    """The plans with the figures of their poll as it is known now: nodes where pilots have begun since are in use by
    Tidemill, those that they have left are not, and not free yet. `held`: the allocations that ran at that poll."""
    begun: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for each in allocations.values():
        is_over = each.state in ALLOCATION_FINAL
        if each.name in held and (is_over or each.is_left):
            left[each.pool] += each.nodes
        elif each.name not in held and each.is_at_work and not is_over:
            begun[each.pool] += each.nodes
    result = []
    for plan in plans:
        pool, counts = plan.shape.pool, plan.nodes
        if counts is not None and (begun[pool] or left[pool]):
            plan = msgspec.structs.replace(
                plan, nodes=with_pilots(counts, begun=begun[pool], left=left[pool])
            )
        result.append(plan)
    return result


def for_others(decision: Decision, snapshot: Snapshot) -> Decision:
    """The decision as it concerns other users: yielding to Tidemill's own wide jobs is left out."""
    ours = {job.id for job in snapshot.queued if job.ours}
    yields_to = [name for name in decision.yields_to if name not in ours]
    return msgspec.structs.replace(decision, yields_to=yields_to) if ours else decision
