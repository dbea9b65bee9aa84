"""The broker's policy: what to cancel, to shorten and to submit now. Pure; the simulator runs the same function.

`yielding` holds the policy that releases nodes. The policies here never do: they are references, or the fallback where
more is not possible. The regular job always gets the benefit of the doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from tidemill.harvest.plan.ours import EndOrder
from tidemill.harvest.plan.profile import FreeNodes, ahead, play
from tidemill.harvest.plan.situation import Decision, Situation, Submit
from tidemill.harvest.plan.waves import SENTENCES, Binding, room_of, rounded, wave
from tidemill.harvest.plan.yielding import yields

PLANNED_MAX = 100
"""`windows` avoids the nodes that up to this number of blocked jobs will need, even if the scheduler reserves fewer."""

TITAN_NODES = 18_688
TITAN_BROKERS = 20
TITAN_WIDTH_MIN = 15
TITAN_WIDTH_MAX = 300
TITAN_JOB_S = 6264.0
"""The brokers on Titan, 2016-17: 20 of them, each with one batch job of 15 to 300 of its 18,688 nodes, whose events are
fixed before it starts (100 a node, chosen by the average length of backfill); a job ran for 1.74 h on average. On
another machine the widths are the same shares of it."""


class Policy(StrEnum):
    """How the broker behaves."""

    YIELD = "yield"  #: releases nodes before regular jobs wait
    PREEMPT = "preempt"  #: limits fit the plan; the scheduler takes nodes back by itself
    CAPPED = "capped"  #: limits fit the gaps of the plan; never releases nodes
    TITAN = "titan"  #: some brokers with fixed jobs, sized to the backfill of the moment: the reference
    WINDOWS = "windows"  #: only nodes that no plan needs; never in the way, releases none
    DEMAND = "demand"  #: queues for what the backlog needs, as regular jobs do


def capped(situation: Situation) -> Decision:
    """Fill the gaps of the plan with allocations that end within them; never release nodes."""
    profile, needed = plan_with_us(situation, situation.limits.reservations)
    return filled(situation, profile, min(situation.idle - needed, profile.free[0]))


def preempt(situation: Situation) -> Decision:
    """Limits as in `capped`, by a plan in which Tidemill's nodes count as free: the scheduler takes them at will."""
    held = sum(each.width * each.count for each in situation.holdings if not each.waiting)
    free = situation.idle + situation.ending + held
    profile = ahead(situation.now_s, free, situation.busy, situation.outages)
    outlook = play(
        profile, situation.queue, situation.limits.reservations, is_order_known=situation.is_order_known
    )
    needed = sum(job.width for job in outlook.starts)
    take_ours(profile, situation)
    return filled(situation, profile, min(situation.idle - needed, profile.free[0]))


def windows(situation: Situation) -> Decision:
    """Only idle nodes that no plan needs. Where the plan is hidden, `situation.windows` says which those are."""
    if situation.windows or not situation.knows_plan:
        gaps = staircase_of(situation.windows)
        waiting = sum(each.width * each.count for each in situation.holdings if each.waiting)
        gaps = [(seconds, nodes - waiting) for seconds, nodes in gaps]
        binding = None if situation.knows_plan or gaps else _why_no_window(situation)
        return asked(situation, gaps, situation.idle - waiting, binding)
    profile, needed = plan_with_us(situation, max(PLANNED_MAX, situation.limits.reservations))
    return filled(situation, profile, min(situation.idle - needed, profile.free[0]))


def _why_no_window(situation: Situation) -> Binding:
    if situation.are_others_hidden:
        return Binding.HIDDEN
    return Binding.REGULAR if situation.idle else Binding.IDLE


def titan(situation: Situation) -> Decision:
    """Up to 20 brokers, each with one job of fixed length, as wide as the present backfill; never release nodes."""
    limits, event_s = situation.limits, max(1.0, situation.backlog.event_s)
    job_s = limits.startup_s + event_s * max(1, round((TITAN_JOB_S - limits.startup_s) / event_s))
    walltime_s = rounded(job_s + limits.walltime_step_s - 1, situation)
    profile, needed = plan_with_us(situation, limits.reservations)
    free = min(
        situation.idle - needed,
        next((nodes for seconds, nodes in profile.staircase() if seconds >= walltime_s + limits.cycle_s), 0),
    )
    brokers = min(TITAN_BROKERS, limits.allocations_max) - sum(each.count for each in situation.holdings)
    submits = []
    narrowest = max(1, round(TITAN_WIDTH_MIN * situation.nodes / TITAN_NODES))
    widest = max(narrowest, round(TITAN_WIDTH_MAX * situation.nodes / TITAN_NODES))
    while brokers > 0 and free >= narrowest:
        width = min(free, widest)
        submits.append(Submit(width, 1, walltime_s))
        brokers -= 1
        free -= width
    binding = Binding.ALLOCATIONS if brokers <= 0 else Binding.IDLE
    return Decision(
        submit=submits, waits_for=binding.value, why=f"{brokers} brokers free; {SENTENCES[binding]}"
    )


def demand(situation: Situation) -> Decision:
    """Request what the backlog can fill, whether nodes are idle or not, and wait in the queue as regular jobs do."""
    limits = situation.limits
    running = [each for each in situation.holdings if not each.waiting]
    waiting = [each for each in situation.holdings if each.waiting]
    if situation.backlog.nodes_max <= 0:
        return Decision(
            cancel=[EndOrder(each.key, each.count) for each in waiting],
            waits_for=Binding.BACKLOG.value,
            why=SENTENCES[Binding.BACKLOG],
        )
    room = room_of(
        situation,
        running=(sum(each.width * each.count for each in running), sum(each.count for each in running)),
        waiting=(sum(each.width * each.count for each in waiting), sum(each.count for each in waiting)),
    )
    room.waiting = room.allocations
    gap = limits.walltime_max_s + limits.cycle_s + limits.death_s
    submits, binding = wave(situation, [(gap, situation.nodes)], room, idle=situation.nodes)
    return Decision(submit=submits, waits_for=binding.value, why=SENTENCES[binding])


def plan_with_us(situation: Situation, reservations: int) -> tuple[FreeNodes, int]:
    """The profile with all running jobs, Tidemill's too, and the queue played on it; nodes of regular starts now."""
    free = situation.idle + situation.ending
    profile = ahead(situation.now_s, free, situation.busy, situation.outages)
    death_s, now = situation.limits.death_s, situation.now_s
    for each in situation.holdings:
        if not each.waiting:
            profile.reserve(-each.width * each.count, max(now, each.ends_s) + death_s, float("inf"))
    outlook = play(profile, situation.queue, reservations, is_order_known=situation.is_order_known)
    take_waiting(profile, situation)
    return profile, sum(job.width for job in outlook.starts)


def take_ours(profile: FreeNodes, situation: Situation) -> None:
    """Subtract what Tidemill's allocations hold and wait for from a profile that was made without them."""
    now, death_s = situation.now_s, situation.limits.death_s
    for each in situation.holdings:
        if not each.waiting:
            profile.reserve(each.width * each.count, now, max(now, each.ends_s) + death_s)
    take_waiting(profile, situation)


def take_waiting(profile: FreeNodes, situation: Situation) -> None:
    """Subtract Tidemill's waiting allocations from a profile."""
    for each in situation.holdings:
        if each.waiting:
            profile.reserve(each.width * each.count, situation.now_s, max(situation.now_s, each.ends_s))


def filled(situation: Situation, profile: FreeNodes, idle: int) -> Decision:
    """Submit into the gaps of a profile."""
    return asked(situation, profile.staircase(), idle, None)


def asked(
    situation: Situation, gaps: Sequence[tuple[float, int]], idle: int, reason: Binding | None
) -> Decision:
    """Submit into gaps; cancel what waits without a chance. `reason`: why there is no gap, if that is known."""
    running = [each for each in situation.holdings if not each.waiting]
    waiting = [each for each in situation.holdings if each.waiting]
    room = room_of(
        situation,
        running=(sum(each.width * each.count for each in running), sum(each.count for each in running)),
        waiting=(sum(each.width * each.count for each in waiting), sum(each.count for each in waiting)),
    )
    stale = [each for each in waiting if each.width * each.count > situation.idle]
    submits, binding = wave(situation, gaps, room, idle=max(0, idle))
    binding = reason or binding
    if binding is Binding.IDLE and situation.idle:
        binding = Binding.PAYBACK if not gaps else Binding.REGULAR
    return Decision(
        cancel=[EndOrder(each.key, each.count) for each in stale],
        submit=submits,
        waits_for=binding.value,
        why=f"{situation.idle} idle; {SENTENCES[binding]}",
    )


def staircase_of(windows_: Sequence[tuple[int, float]]) -> list[tuple[float, int]]:
    """Windows (nodes, seconds) as gaps (seconds, nodes), ever longer, ever fewer."""
    gaps: list[tuple[float, int]] = []
    most = 0
    for seconds, nodes in sorted(((seconds, nodes) for nodes, seconds in windows_), reverse=True):
        if nodes > most:
            most = nodes
            gaps.append((seconds, nodes))
    return gaps[::-1]


POLICIES: dict[Policy, Callable[[Situation], Decision]] = {
    Policy.YIELD: yields,
    Policy.PREEMPT: preempt,
    Policy.CAPPED: capped,
    Policy.TITAN: titan,
    Policy.WINDOWS: windows,
    Policy.DEMAND: demand,
}


def decide(situation: Situation, policy: Policy) -> Decision:
    """What to do now in one pool.

    Nodes that will soon be free (epilog) belong neither to `idle` nor to a holding but to `busy`, with the time when
    they should be free; those of canceled allocations to `ending`. If a regular job has had enough idle nodes for
    longer than the scheduler needs, and still does not start, it waits for something that is not visible here: leave it
    out of `queue`. Where the plan is not known, every policy but `demand` behaves as `windows`.
    """
    if not situation.knows_plan and policy is not Policy.DEMAND:
        policy = Policy.WINDOWS
    return POLICIES[policy](situation)
