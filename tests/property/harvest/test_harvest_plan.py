"""Whatever the machine looks like: after a decision of `yield` the scheduler does what it would do without us."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.harvest.plan.ours import EndOrder, Holding
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.profile import EVER, FreeNodes, ahead, play
from tidemill.harvest.plan.situation import Backlog, Busy, Limits, Outage, Situation, Waiting
from tidemill.harvest.plan.yielding import give_back, make_way

SECONDS = st.integers(1, 500).map(lambda k: k * 60.0)
WIDTHS = st.integers(1, 40)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """A pool with regular jobs, a queue, outages and ours."""
    busy = [Busy(w, e) for w, e in draw(st.lists(st.tuples(WIDTHS, SECONDS), max_size=6))]
    queue = [
        Waiting(str(k), w, s)
        for k, (w, s) in enumerate(draw(st.lists(st.tuples(WIDTHS, SECONDS), max_size=8)))
    ]
    holdings = [
        Holding(key=k, width=w, count=c, waiting=False, started_s=-100.0, ends_s=e, loss_s=loss)
        for k, (w, c, e, loss) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.sampled_from([1, 1, 4]), st.integers(1, 20), SECONDS, st.floats(0, 300)),
                    max_size=5,
                )
            )
        )
    ]
    idle = draw(st.integers(0, 60))
    nodes = idle + sum(b.width for b in busy) + sum(h.width * h.count for h in holdings)
    outages = [Outage(nodes, s, s + 6000) for s in draw(st.lists(SECONDS, max_size=1))]
    return Situation(
        now_s=0.0,
        nodes=nodes,
        idle=idle,
        busy=busy,
        queue=queue,
        outages=outages,
        holdings=holdings,
        backlog=Backlog(node_s=1e12, nodes_max=10**6, event_s=300.0),
        limits=Limits(
            nodes_max=10**6,
            allocations_max=draw(st.sampled_from([10, 10**6])),
            width_max=draw(st.sampled_from([1, 8])),
            startup_s=60.0,
            reservations=draw(st.sampled_from([1, 100])),
        ),
    )


def view(
    situation: Situation,
    *,
    with_us: bool,
    queue: list[Waiting] | None = None,
    reservations: int = 0,
) -> tuple[list[str], dict[str, float]]:
    """What the scheduler does: starts now, planned starts. With us: after the decision, cancelled nodes are free.
    `queue`: in its own order, with so many `reservations`."""
    decision = decide(situation, Policy.YIELD)
    counts = {each.key: each.count for each in situation.holdings}
    widths = {each.key: each.width for each in situation.holdings}
    free = situation.idle
    assert len({each.key for each in decision.cancel}) == len(decision.cancel)
    for each in decision.cancel:
        counts[each.key] -= each.count
        free += each.count * widths[each.key]
        assert counts[each.key] >= 0
    held: list[tuple[float, int]] = []
    for change in decision.shorten:
        counts[change.key] -= change.count
        assert counts[change.key] >= 0
        held.append((change.ends_s + situation.limits.death_s, change.count * widths[change.key]))
    for holding in situation.holdings:
        held.append((holding.ends_s, counts[holding.key] * holding.width))
    if not with_us:
        free += sum(nodes for _, nodes in held)
        held = []
    profile = ahead(0.0, free, [*situation.busy, *(Busy(nodes, at) for at, nodes in held)], situation.outages)
    if queue is None:
        queue, reservations = situation.queue, situation.limits.reservations
    outlook = play(profile, queue, reservations)
    return [job.id for job in outlook.starts], {job.id: at for job, at in outlook.planned}


@settings(max_examples=300, deadline=None)
@given(situations())
def test_after_a_decision_the_scheduler_starts_and_plans_as_if_we_were_not_here(situation: Situation) -> None:
    without = msgspec.structs.replace(
        situation,
        idle=situation.idle + sum(each.width * each.count for each in situation.holdings),
        holdings=[],
    )
    assert view(situation, with_us=True) == view(without, with_us=False)


@settings(max_examples=300, deadline=None)
@given(situations(), st.randoms(use_true_random=False))
def test_where_the_order_is_not_known_whatever_starts_first_starts_as_if_we_were_not_here(
    situation: Situation, random: Random
) -> None:
    """Jobs start in an order that we do not know. PBS without `strict_ordering` reserves nothing; with it, the first
    job that is blocked has a reservation, and starts no later than if we were not here."""
    here = msgspec.structs.replace(situation, is_order_known=False)
    without = msgspec.structs.replace(
        here, idle=here.idle + sum(each.width * each.count for each in here.holdings), holdings=[]
    )
    queue = random.sample(here.queue, len(here.queue))
    for reservations in (0, 1):
        ours = view(here, with_us=True, queue=queue, reservations=reservations)
        assert ours == view(without, with_us=False, queue=queue, reservations=reservations)


def released_to_all(situation: Situation) -> tuple[list[EndOrder], list[EndOrder]]:
    """What is released where each waiting job that could start takes its nodes, however many they are together, and
    each other one the nodes that it would get if it were the first, but not more than the widest of them."""
    held, left = situation.holdings, {each.key: each.count for each in situation.holdings}
    ours = sum(each.count * each.width for each in held)
    profile = ahead(0.0, situation.idle + ours, situation.busy, situation.outages)
    possible = [
        job
        for job in situation.queue
        if job.width <= profile.free[0] and profile.fits(job.width, job.walltime_s)
    ]
    rest = [job for job in situation.queue if job not in possible]
    alone = sorted((profile.earliest(job.width, job.walltime_s), job.width) for job in rest)
    for job in possible:
        profile.reserve(job.width, 0.0, job.walltime_s)
    widest = 0
    for at, width in alone:
        if at < EVER and width > widest:
            profile.reserve(width - widest, at, EVER)
            widest = width
    cancels = give_back(held, left, ours - profile.free[0]) if ours > profile.free[0] else []
    return cancels, make_way(held, left, profile, situation.limits.death_s)


@settings(max_examples=500, deadline=None)
@given(situations())
def test_where_the_order_is_not_known_no_fewer_nodes_are_released_than_all_that_could_start_need(
    situation: Situation,
) -> None:
    """The plan of these jobs ends where they have used up all free nodes: it must not change what is released."""
    here = msgspec.structs.replace(situation, is_order_known=False)
    decision = decide(here, Policy.YIELD)
    cancels, shortens = released_to_all(here)
    needed = {each.key: each.count for each in cancels}
    released = {each.key: each.count for each in decision.cancel}
    if len(cancels) == len(decision.cancel):  # else one more went for a wider one in its place
        assert released == needed
    assert all(released.get(key, 0) >= count for key, count in needed.items())
    assert decision.shorten == shortens


@settings(max_examples=500, deadline=None)
@given(situations(), st.booleans())
def test_who_waits_for_us_could_start_together_on_what_is_idle_and_held(
    situation: Situation, is_order_known: bool
) -> None:
    here = msgspec.structs.replace(situation, is_order_known=is_order_known)
    decision = decide(here, Policy.YIELD)
    widths = {job.id: job.width for job in here.queue}
    held = sum(each.width * each.count for each in here.holdings)
    waits = sum(widths[name] for name in decision.yields_to)
    assert waits <= here.idle + held
    assert held or not decision.yields_to
    assert sum(widths[name] for name in decision.ready) <= here.idle
    assert not set(decision.ready) & set(decision.yields_to)


@settings(max_examples=300, deadline=None)
@given(situations())
def test_what_is_asked_for_is_idle_in_no_ones_way_and_within_the_limits(situation: Situation) -> None:
    decision = decide(situation, Policy.YIELD)
    limits = situation.limits
    ours = sum(each.width * each.count for each in situation.holdings)
    profile = ahead(0.0, situation.idle + ours, situation.busy, situation.outages)
    starts = play(profile, situation.queue, limits.reservations).starts
    asked = sum(each.width * each.count for each in decision.submit)

    assert asked <= max(0, situation.idle - sum(job.width for job in starts))
    assert sum(each.count for each in decision.submit) <= limits.allocations_max
    for each in decision.submit:
        assert limits.width_min <= each.width <= limits.width_max
        assert each.walltime_s >= limits.startup_s * (1 + limits.payback)
        assert each.walltime_s <= limits.walltime_max_s
        longest = max((seconds for seconds, _ in profile.staircase()), default=0.0)
        assert each.walltime_s + limits.cycle_s + limits.death_s <= longest


@given(
    st.integers(0, 50),
    st.lists(st.tuples(st.integers(1, 20), SECONDS), max_size=6),
    st.lists(st.tuples(WIDTHS, SECONDS, SECONDS), max_size=4),
    st.tuples(WIDTHS, SECONDS),
)
def test_the_profile_finds_the_earliest_gap(
    free: int,
    ends: list[tuple[int, float]],
    taken: list[tuple[int, float, float]],
    wanted: tuple[int, float],
) -> None:
    profile = FreeNodes(0.0, free)
    profile.release(sorted((at, width) for width, at in ends))
    for width, start, seconds in taken:
        profile.reserve(width, start, start + seconds)
    width, seconds = wanted

    def free_at(at: float) -> int:
        return free + sum(w for w, e in ends if e <= at) - sum(w for w, s, d in taken if s <= at < s + d)

    points = [0.0, *(e for _, e in ends), *(s for _, s, _ in taken), *(s + d for _, s, d in taken)]

    def fits(start: float) -> bool:
        inside = [start, *(p for p in points if start < p < start + seconds)]
        return all(free_at(p) >= width for p in inside)

    expected = min((p for p in points if fits(p)), default=EVER)
    assert profile.earliest(width, seconds) == expected
    assert profile.fits(width, seconds) == fits(0.0)
