"""Policy `yield`: fills idle nodes and releases them before regular jobs need them. Pure.

It works out what the queue would do without Tidemill. Regular jobs that would start now get their nodes: Tidemill's
cheapest allocations end. Allocations in the way of a planned start are shortened to end before it. Nodes that are then
idle for long enough are filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.harvest.plan.ours import EndOrder, Holding
from tidemill.harvest.plan.profile import FreeNodes, ahead, play
from tidemill.harvest.plan.situation import Decision, Situation, Waiting
from tidemill.harvest.plan.waves import SENTENCES, Binding, room_of, wave

LASTS_S = 3600.0
"""The longest time that a gap is assumed to last, also where its end is not planned."""
PASSING = (Binding.STARTS, Binding.SUBMITS, Binding.WAITING)
"""These bounds loosen with time alone."""
PUNCTUAL_S = 1.0
"""An end that is later than this after the planned one is worth a change of the limit."""


Left = dict[int, int]
"""How many of our running allocations are left of each holding while a plan is made, by its key."""


def yields(situation: Situation) -> Decision:
    """Policy `yield`: cancel for jobs that could start now, shorten for planned ones, fill the rest."""
    now, limits = situation.now_s, situation.limits
    held = [each for each in situation.holdings if not each.waiting]
    left = {each.key: each.count for each in held}
    ours = sum(each.count * each.width for each in held)
    profile = ahead(now, situation.idle + situation.ending + ours, situation.busy, situation.outages)
    outlook = play(profile, situation.queue, limits.reservations, is_order_known=situation.is_order_known)
    needed = sum(job.width for job in outlook.starts)
    cancels = give_back(held, left, ours - profile.free[0]) if ours > profile.free[0] else []
    shortens = make_way(held, left, profile, limits.death_s)
    leave(profile, held, left, shortens, limits.death_s)
    spare = max(0, min(situation.idle - needed, profile.free[0]))
    idle = max(0, spare - situation.headroom)
    dropped, waiting = review(profile, situation)
    running = (sum(left[each.key] * each.width for each in held), sum(left.values()))
    submits, binding = wave(
        situation,
        both(profile.staircase(), situation.planned_gaps),
        room_of(situation, running=running, waiting=waiting),
        idle=min(idle, max(0, profile.free[0])),
    )
    if binding in (Binding.IDLE, Binding.NOTHING) and spare > idle:
        binding = Binding.HEADROOM
    if binding is Binding.ALLOCATIONS:
        unfilled = min(idle, profile.free[0]) - sum(each.width * each.count for each in submits)
        changed = {each.key for each in shortens}
        free_to_go = [each for each in held if each.key not in changed]
        cancels += make_room(free_to_go, left, profile, unfilled, situation)
    if binding is Binding.IDLE and situation.idle:
        binding = Binding.OURS if waiting[0] else Binding.REGULAR
    found = yields_of(outlook.starts, idle=situation.idle, held=ours + situation.ending)
    return Decision(
        cancel=dropped + summed(cancels),
        shorten=shortens,
        submit=submits,
        yields_to=found.blocked,
        ready=found.ready,
        waits_for=binding.value,
        why=why(situation, needed, outlook.planned, binding),
        next_s=now + limits.poll_s if binding in PASSING else None,
    )


def both(
    gaps: Sequence[tuple[float, int]], planned: Sequence[tuple[int, float]] | None
) -> Sequence[tuple[float, int]]:
    """How many nodes are free for how long by our count and by the scheduler's plan: (seconds, nodes), ever longer.

    We count nodes; the scheduler has chosen them, and may have planned the idle ones where we would plan others.
    """
    if planned is None:
        return gaps
    theirs = sorted((seconds, nodes) for nodes, seconds in planned)
    steps: list[tuple[float, int]] = []
    first = second = 0
    while first < len(gaps) and second < len(theirs):  # both: ever longer, ever fewer
        (mine_s, mine), (their_s, their) = gaps[first], theirs[second]
        seconds = min(mine_s, their_s)
        steps.append((seconds, min(mine, their)))
        first += mine_s == seconds
        second += their_s == seconds
    return [step for step in steps if step[1] > 0]


class Yields(NamedTuple):
    """Ids of regular jobs that could start now: `ready` on idle nodes alone, `blocked` only on Tidemill's, too."""

    ready: list[str]
    blocked: list[str]


def yields_of(starts: Sequence[Waiting], *, idle: int, held: int) -> Yields:
    """Which of `starts`, taken in order, the idle nodes suffice for, and which wait for nodes of Tidemill.

    `held` counts the nodes that Tidemill holds, and those that are released and not free yet.
    Where the order is not known `starts` may need more nodes than there are. Then those wait for Tidemill that could
    start together on the idle and the held nodes, at least one if any has to wait; where nothing is held, none does.
    """
    ready: list[str] = []
    for job in starts:
        if job.width > idle:
            break
        idle -= job.width
        ready.append(job.id)
    left = idle + held
    if not held or len(ready) == len(starts):
        return Yields(ready, [])
    found: list[str] = []
    for job in starts[len(ready) :]:
        if left <= 0:
            break
        if job.width <= left:
            left -= job.width
            found.append(job.id)
    return Yields(ready, found or [starts[len(ready)].id])


def give_back(holdings: Sequence[Holding], left: Left, nodes: int) -> list[EndOrder]:
    """End Tidemill's cheapest allocations until `nodes` are free, with as few nodes too many as possible."""
    order = sorted(holdings, key=lambda each: (each.loss_of_node_s, each.ends_s, each.key))
    chosen: list[tuple[Holding, int]] = []
    for each in order:
        if nodes <= 0:
            break
        count = min(left[each.key], -(-nodes // each.width))
        if count:
            chosen.append((each, count))
            nodes -= count * each.width
    cancels = []
    for each, count in reversed(
        chosen
    ):  # the dearest first: those that the later ones have made needless stay
        spared = min(count, -nodes // each.width) if nodes < 0 else 0
        nodes += spared * each.width
        if count > spared:
            left[each.key] -= count - spared
            cancels.append(EndOrder(each.key, count - spared))
    return cancels[::-1]


def summed(cancels: Sequence[EndOrder]) -> list[EndOrder]:
    """One entry for each holding."""
    counts: dict[int, int] = {}
    for each in cancels:
        counts[each.key] = counts.get(each.key, 0) + each.count
    return [EndOrder(key, count) for key, count in counts.items()]


def make_way(holdings: Sequence[Holding], left: Left, profile: FreeNodes, death_s: float) -> list[EndOrder]:
    """Shorten Tidemill's allocations so that they never hold more nodes than are free; those first that end first."""
    alive = sorted((each for each in holdings if left[each.key]), key=lambda each: each.ends_s)
    nodes = sum(left[each.key] * each.width for each in alive)
    shortens: list[EndOrder] = []
    first = 0
    for at, free in zip(profile.times[1:], profile.free[1:], strict=True):
        while first < len(alive) and alive[first].ends_s + death_s <= at + PUNCTUAL_S:
            nodes -= left[alive[first].key] * alive[first].width
            first += 1
        surplus = nodes - max(0, free)
        while surplus > 0 and first < len(alive):
            each = alive[first]
            count = min(left[each.key], -(-surplus // each.width))
            shortens.append(EndOrder(each.key, count, max(profile.times[0], at - death_s)))
            surplus -= count * each.width
            nodes -= count * each.width
            left[each.key] -= count
            first += left[each.key] == 0
    return shortens


def make_room(
    holdings: Sequence[Holding], left: Left, profile: FreeNodes, unfilled: int, situation: Situation
) -> list[EndOrder]:
    """No allocation may be added, yet nodes are idle: end the one that costs least, if a wider one in its place pays.

    What ends loses its work in flight, and its nodes start anew; what is won is the idle nodes' time until they are
    needed.
    """
    limits = situation.limits
    restart_s = limits.startup_s + limits.cycle_s + limits.death_s
    candidates = [each for each in holdings if left[each.key] and each.width < limits.width_max]
    if not candidates or unfilled < limits.width_min:
        return []
    each = min(candidates, key=lambda one: ((one.loss_of_node_s + restart_s) * one.width, one.key))
    lasts_s = min(LASTS_S, max(s for s, nodes in profile.staircase() if nodes >= unfilled))
    if unfilled * lasts_s < limits.payback * (each.loss_of_node_s + restart_s) * each.width:
        return []
    left[each.key] -= 1
    return [EndOrder(each.key, 1)]


def leave(
    profile: FreeNodes, holdings: Sequence[Holding], left: Left, shortens: Sequence[EndOrder], death_s: float
) -> None:
    """Subtract the nodes that Tidemill holds, by the new ends, from the profile; count shortened ones as held again.

    Nodes that Tidemill releases between two steps count from the next step on. That leaves the number of nodes that are
    free *until* a step unchanged, and later queries need only that number.
    """
    by_key = {each.key: each for each in holdings}
    ends = [(each.ends_s, left[each.key] * each.width) for each in holdings if left[each.key]]
    for change in shortens:
        each = by_key[change.key]
        ends.append((change.ends_s, change.count * each.width))
        left[each.key] += change.count
    ends.sort()
    nodes = sum(width for _, width in ends)
    first, count = 0, len(ends)
    free = profile.free
    for k, at in enumerate(profile.times):
        while k and first < count and ends[first][0] + death_s <= at:
            nodes -= ends[first][1]
            first += 1
        if not nodes:
            break
        free[k] -= nodes


def review(profile: FreeNodes, situation: Situation) -> tuple[list[EndOrder], tuple[int, int]]:
    """Cancel Tidemill's waiting allocations that no longer fit; (nodes, allocations) that stay come off the profile."""
    cancels: list[EndOrder] = []
    nodes = allocations = 0
    begin = profile.times[0]
    delay_s = situation.limits.death_s
    for each in situation.holdings:
        if not each.waiting:
            continue
        seconds = each.ends_s - begin + delay_s
        stays = 0
        if fitting := room_for(profile, seconds):
            stays = min(each.count, fitting // each.width)
        if stays < each.count:
            cancels.append(EndOrder(each.key, each.count - stays))
        if stays:
            profile.reserve(stays * each.width, begin, begin + seconds)
            nodes += stays * each.width
            allocations += stays
    return cancels, (nodes, allocations)


def room_for(profile: FreeNodes, seconds: float) -> int:
    """Nodes that are free for `seconds` from now."""
    return next((nodes for length, nodes in profile.staircase() if length >= seconds), 0)


def why(situation: Situation, needed: int, planned: Sequence[tuple[Waiting, float]], binding: Binding) -> str:
    """The decision in figures, for people."""
    text = f"{situation.idle} idle, {needed} for regular jobs that can start now"
    if planned:
        job, at = planned[0]
        text += f", {job.width} planned in {at - situation.now_s:.0f} s"
    return f"{text}; {SENTENCES[binding]}"
