"""From what the site has and wants to one decision, and from the decision to names. Pure: state, limits and `now` in.

The decision itself is `harvest.plan.decide`, the function that `tidemill simulate` runs.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

import msgspec

from tidemill.config.site import SiteConfig
from tidemill.harvest.placement import Preferred, Starting, kept_from, preferred
from tidemill.harvest.plan import Policy
from tidemill.harvest.pools import Pool
from tidemill.harvest.situation import Backlog, Decision, Holding, Limits, Situation
from tidemill.model.machine import NodeState, Queued, Snapshot
from tidemill.model.state import AllocationState
from tidemill.site.state import Allocation

NODE_WORK_S_MIN = 30.0
"""A further node is asked for only if each has at least so much work; starting a pilot takes about a second."""

POLL_S = 30.0
"""Pause between two looks at a centre's machine: 2-3 % of a typical run of 20 minutes and more."""

SUBMITS_MAX = 20
"""Allocations submitted at once where there are no arrays."""

DYING_US = 20_000_000
"""An allocation that was told to end is gone after so long: KillWait and epilog are 30 s at most by default, ours exits
at once."""

STOPPED, WIDE, FAILED_STARTS = "stopped", "wide", "failed_starts"
"""Why no more nodes are asked for, besides what decisions name (`harvest.waves.Binding`)."""

EVER_S = 1e18
NO_BOUND = 1_000_000_000


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What waits or runs, summed over jobs: events that are not done, their core-seconds, cores of the widest slot
    and of a node, seconds of a typical range. `more`: the server has more for us than what is leased."""

    events: int
    core_s: float
    slot_cores: int
    cores: int = 1
    range_s: float = 1.0
    more: bool = False


class Starts(msgspec.Struct, frozen=True, kw_only=True):
    """How starting went. `pause_s`: none is tried for so long; `tries`: then so many, None = no bound; `why` tells it
    to people. `hour`: allocations asked for in the last hour."""

    pause_s: float = 0.0
    tries: int | None = None
    why: str = ""
    hour: int = 0


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool's nodes are like, and how to ask for them."""

    pool: str
    cores: int
    memory_mb: int
    partition: str = ""
    features: tuple[str, ...] = ()


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A holding and the allocations in it, the one to go first in front."""

    holding: Holding
    names: list[str]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A decision in counts, and who should go first of those that cost alike."""

    decision: Decision
    favored: Preferred = Preferred([], [], [])


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with names. `submit`: (nodes, count, walltime_s)."""

    shape: Shape
    situation: Situation
    decision: Decision
    cancel: list[str]
    ends_s: dict[str, float]
    submit: list[tuple[int, int, float]]
    waits_for: str

    @property
    def acts(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.cancel or self.ends_s or self.submit)


def policy_of(config: SiteConfig) -> Policy:
    """The policy that the configuration names, or the batch system's."""
    if config.harvest.policy is not None:
        return Policy(config.harvest.policy)
    defaults = {"local": Policy.DEMAND, "slurm": Policy.YIELD}
    return defaults.get(config.batch, Policy.WINDOWS)  # the others do not show what they plan


def poll_s_of(config: SiteConfig) -> float:
    """The pause between two looks at the machine, while nothing is slow."""
    return config.harvest.poll_s or (config.batch_poll_s if config.batch == "local" else POLL_S)


def backlog_of(demand: Demand, limits: Limits) -> Backlog:
    """The work in nodes. Whatever there is, is worth one allocation."""
    if demand.events <= 0:
        return Backlog(node_s=0.0, nodes_max=0, event_s=demand.range_s)
    cores = max(1, demand.cores)
    slots = max(1, cores // max(1, demand.slot_cores))
    by_slots = math.ceil(demand.events / slots)
    by_work = math.ceil(demand.core_s / (cores * NODE_WORK_S_MIN))
    least = max(1, limits.width_min)
    node_s, nodes = demand.core_s / cores, max(least, min(by_slots, by_work))
    if demand.more:  # more is leased as soon as there are nodes for it
        node_s, nodes = EVER_S, max(nodes, limits.nodes_max)
    least_s = max(limits.payback * limits.startup_s, demand.range_s, 1.0)
    return Backlog(node_s=max(node_s, least_s * least), nodes_max=nodes, event_s=demand.range_s)


def anything(limits: Limits) -> Backlog:
    """The backlog of a site that only observes: as if there were always work."""
    return Backlog(node_s=EVER_S, nodes_max=limits.nodes_max, event_s=1.0)


def pause_s_of(failed: int, since_s: float, *, config: SiteConfig) -> float:
    """Seconds until the next start may be tried after so many failed ones, the last `since_s` ago: doubled with each,
    bounded, so that trying never stops."""
    if not failed:
        return 0.0
    longest_s = min(config.start_backoff_s * 2 ** min(failed - 1, 30), config.start_backoff_max_s)
    return float(max(0.0, longest_s - since_s))


def starts_left(starts: Starts, config: SiteConfig, *, nodes: int, policy: Policy) -> int:
    """How many starts the hourly bound and failed starts still allow: none, a few to try, or what the hour leaves.

    The hourly bound is for machines that others use: it does not hold where we queue like anybody else.
    """
    if starts.pause_s > 0:
        return 0
    tries = NO_BOUND if starts.tries is None else starts.tries
    if policy is Policy.DEMAND:
        return tries
    return max(0, min(tries, int(config.harvest.starts_per_node_hour * nodes) - starts.hour))


def local_situation(
    config: SiteConfig, demand: Demand, *, nodes: int, groups: Sequence[Group], starts: Starts
) -> Situation:
    """The embedded batch system as a pool without others, at the time 0. `nodes` of as many cores as `demand` has in
    `cores`."""
    limits = Limits(
        nodes_max=min(config.nodes_max, nodes),
        allocations_max=config.harvest.allocations_max,
        walltime_max_s=config.walltime_s,
        walltime_min_s=1.0,
        walltime_step_s=1.0,
        startup_s=0.0,
        payback=0.0,
        waiting_per_idle=EVER_S,
        starts_left=starts_left(starts, config, nodes=nodes, policy=Policy.DEMAND),
        submits_max=SUBMITS_MAX,
        poll_s=config.batch_poll_s,
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
        holdings=[group.holding for group in groups],
        backlog=backlog_of(msgspec.structs.replace(demand, more=False), limits),
        limits=limits,
    )


def group_by_start(allocations: Sequence[Allocation]) -> list[Group]:
    """Holdings at the time 0, by width: what runs, oldest first, and what waits, newest first."""
    groups: dict[tuple[bool, int], list[Allocation]] = {}
    for allocation in allocations:
        waits = allocation.state is not AllocationState.ACTIVE
        groups.setdefault((waits, allocation.nodes), []).append(allocation)
    found = []
    for key, ((waits, width), members) in enumerate(groups.items()):
        holding = Holding(
            key=key,
            width=width,
            count=len(members),
            waiting=waits,
            started_s=0.0,
            ends_s=members[0].walltime_s,
        )
        names = [a.name for a in members]
        found.append(Group(holding=holding, names=names[::-1] if waits else names))
    return found


def dying(allocations: Iterable[Allocation], now_us: int) -> set[str]:
    """Names of those that we told to end and that should be gone any moment: they hold nothing that could be given
    back once more. What does not go in time counts again, and is told again."""
    return {a.name for a in allocations if a.canceled_us and now_us - a.canceled_us < DYING_US}


def without_dying(snapshot: Snapshot, names: Container[str]) -> Snapshot:
    """The machine with these allocations of ours as somebody's jobs that end now."""
    replace = msgspec.structs.replace
    return replace(
        snapshot,
        running=[
            replace(job, ours=False, ends_s=snapshot.at_s) if job.ours and job.name in names else job
            for job in snapshot.running
        ],
    )


def causes_of(plans: Sequence[Named], *, wide_waits: bool) -> list[str]:
    """Why no more nodes are asked for, one word for each cause: for metrics, whose labels must be few."""
    causes = [
        FAILED_STARTS if plan.waits_for != plan.decision.waits_for else plan.decision.waits_for
        for plan in plans
    ]
    return sorted({*(cause for cause in causes if cause), *([WIDE] if wide_waits else [])})


def for_others(decision: Decision, snapshot: Snapshot) -> Decision:
    """The decision as what it is for others: that our pilots make room for our own wide jobs is nobody's wait."""
    ours = {job.id for job in snapshot.queued if job.ours}
    yields_to = [name for name in decision.yields_to if name not in ours]
    return msgspec.structs.replace(decision, yields_to=yields_to) if ours else decision


def preferred_of(snapshot: Snapshot, pool: Pool, decision: Decision) -> Preferred:
    """Our allocations on the pool's nodes that the regular jobs that start there now would get without us."""
    starting = {*decision.ready, *decision.yields_to}
    if not starting:
        return Preferred([], [], [])
    known = {job.id: job for job in snapshot.queued}
    jobs: list[Starting] = []
    before: list[Queued] = []
    for job in pool.situation.queue:
        queued = known.get(job.id)
        if job.id in starting:
            avoid = frozenset[str]() if queued is None else kept_from(queued, before, snapshot.at_s)
            jobs.append(Starting(job.id, job.width, avoid))
        elif queued is not None:
            before.append(queued)
    return preferred(
        [node.name for node in snapshot.nodes],
        [node.name for node in snapshot.nodes if node.state is NodeState.IDLE and node.name in pool.nodes],
        {
            job.name: job.nodes[0]
            for job in snapshot.running
            if job.ours and len(job.nodes) == 1 and job.nodes[0] in pool.nodes
        },
        jobs,
    )


def given_back(
    decision: Decision, groups: Sequence[Group], favored: Preferred, *, event_s: float
) -> list[str]:
    """Who goes: as many as decided, the cheapest, but of those that cost alike (within an event) the favored ones, and
    those that are needed in any case, also if that is more than was decided in counts.

    `favored`: running allocations of one node on the nodes that the scheduler would have taken.
    """
    counts = {order.key: order.count for order in decision.cancel}
    ours = {group.holding.key: group for group in groups}
    going = [name for key, count in counts.items() for name in ours[key].names[:count]]
    single = [group for group in groups if not group.holding.waiting and group.holding.width == 1]
    ended = [group for group in single if counts.get(group.holding.key)]
    there = {name for group in single for name in group.names}
    needed = [name for name in favored.needed if name in there]
    if not ended:
        return going + needed
    dearest_s = max(group.holding.loss_s for group in ended) + event_s
    alike = {name for group in single if group.holding.loss_s <= dearest_s for name in group.names}
    replaced = {name for group in ended for name in group.names[: counts[group.holding.key]]}
    better = needed + [name for name in favored.names if name in alike and name not in needed]
    better = better[: max(len(replaced), len(needed))]
    rest = [name for name in going if name in replaced and name not in better]
    return (
        [name for name in going if name not in replaced]
        + better
        + rest[: max(0, len(replaced) - len(better))]
    )


def ends_of(decision: Decision, groups: Sequence[Group], cancel: Sequence[str]) -> dict[str, float]:
    """Who is shortened, to which end: what goes is not shortened, too.

    Others may go than were decided in counts. Those that go instead of being shortened leave as many the less to be
    shortened: one too many, and the scheduler plans anew, on nodes that the job which starts now was to have. Those
    that stay for them are shortened where they would end later.
    """
    counts = {order.key: order.count for order in decision.cancel}
    gone = set(cancel)
    left = {group.holding.key: [name for name in group.names if name not in gone] for group in groups}
    spared = [
        (group.holding.ends_s, name)
        for group in groups
        for name in group.names[: counts.get(group.holding.key, 0)]
        if name not in gone
    ]
    more = {
        group.holding.key: sum(name in gone for name in group.names) - counts.get(group.holding.key, 0)
        for group in groups
    }
    ends_s: dict[str, float] = {}
    for each in decision.shorten:
        instead = max(0, min(each.count, more[each.key]))
        more[each.key] -= instead
        for _ in range(min(each.count - instead, len(left[each.key]))):
            ends_s[left[each.key].pop()] = each.ends_s
        for end_s, name in spared[:instead]:
            if end_s > each.ends_s:
                ends_s[name] = each.ends_s
        del spared[:instead]
    return ends_s


def with_names(
    shape: Shape, situation: Situation, *, choice: Choice, groups: Sequence[Group], starts_wait: str
) -> Named:
    """Who it is that goes or ends earlier."""
    favored = choice.favored
    more = [job for job in favored.jobs if job not in choice.decision.yields_to]
    decision = msgspec.structs.replace(choice.decision, yields_to=[*choice.decision.yields_to, *more])
    cancel = given_back(decision, groups, favored, event_s=situation.backlog.event_s)
    ends_s = ends_of(decision, groups, cancel)
    is_held_back = bool(starts_wait) and not decision.submit and decision.waits_for == "starts"
    return Named(
        shape=shape,
        situation=situation,
        decision=decision,
        cancel=cancel,
        ends_s=ends_s,
        submit=[(each.width, each.count, each.walltime_s) for each in decision.submit],
        waits_for=starts_wait if is_held_back else decision.waits_for,
    )
