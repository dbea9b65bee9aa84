"""Wide allocations: of exact width, never beyond what we may hold, given up when nothing needs them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.site.fleet.wide import HeldWide, Need, WideBounds, plan_wide

NEEDS = st.lists(
    st.builds(
        Need,
        nodes=st.integers(1, 40),
        events=st.integers(0, 2000),
        work_s=st.floats(0, 1e7),
        longest_s=st.floats(0, 1e5),
    ),
    max_size=5,
    unique_by=lambda need: need.nodes,
)
BOUNDS = st.builds(
    WideBounds,
    nodes_max=st.integers(0, 100),
    walltime_max_s=st.floats(60, 1e5),
    starts=st.integers(0, 30),
)


@st.composite
def held_of(draw: st.DrawFn) -> list[HeldWide]:
    count = draw(st.integers(0, 8))
    return [
        HeldWide(
            name=f"a{number}",
            nodes=draw(st.integers(1, 40)),
            is_waiting=draw(st.booleans()),
            is_useful=draw(st.booleans()),
        )
        for number in range(count)
    ]


@given(NEEDS, held_of(), BOUNDS)
def test_what_is_asked_for_is_wanted_and_within_bounds(
    needs: list[Need], held: list[HeldWide], bounds: WideBounds
) -> None:
    plan = plan_wide(needs, held, bounds)
    by_name = {each.name: each for each in held}
    events = {need.nodes: need.events for need in needs}
    assert all(by_name[name].is_waiting or not events.get(by_name[name].nodes, 0) for name in plan.cancel)
    kept = [each for each in held if each.name not in plan.cancel]
    asked = sum(ask.nodes * ask.count for ask in plan.submit)
    assert not asked or asked + sum(each.nodes for each in kept) <= bounds.nodes_max
    assert sum(ask.count for ask in plan.submit) <= bounds.starts
    for ask in plan.submit:
        assert ask.count > 0
        assert ask.walltime_s <= bounds.walltime_max_s
        mine = sum(each.nodes == ask.nodes and each.is_useful for each in kept)
        assert mine + ask.count <= events[ask.nodes]
    for each in kept:
        assert not each.is_waiting or (each.is_useful and events.get(each.nodes, 0) > 0)


@given(NEEDS, held_of(), BOUNDS)
def test_after_a_plan_is_carried_out_nothing_more_is_to_do(
    needs: list[Need], held: list[HeldWide], bounds: WideBounds
) -> None:
    first = plan_wide(needs, held, bounds)
    then = [each for each in held if each.name not in first.cancel]
    then += [
        HeldWide(name=f"n{ask.nodes}.{number}", nodes=ask.nodes, is_waiting=True)
        for ask in first.submit
        for number in range(ask.count)
    ]
    limited = sum(ask.count for ask in first.submit) == bounds.starts
    again = plan_wide(needs, then, bounds)
    assert not again.cancel
    assert limited or not again.submit


def test_a_thousand_jobs_of_one_shape_share_few_allocations() -> None:
    need = Need(nodes=4, events=1000, work_s=1000 * 60.0, longest_s=90.0)
    bounds = WideBounds(nodes_max=1000, walltime_max_s=86400.0, starts=100)
    (ask,) = plan_wide([need], [], bounds).submit
    assert (ask.nodes, ask.count) == (4, 2)
    assert ask.walltime_s == 45060.0  # half of the work, with slack and a start


def test_a_width_that_never_fits_says_so() -> None:
    need = Need(nodes=4, events=1, work_s=60.0, longest_s=90.0)
    held = [HeldWide(name="a", nodes=3, is_waiting=False)]
    other = Need(nodes=3, events=1, work_s=60.0, longest_s=90.0)
    plan = plan_wide([need, other], held, WideBounds(nodes_max=6, walltime_max_s=3600.0, starts=5))
    assert plan.submit == []
    assert plan.cancel == []
    assert plan.waits_for == "4 nodes at once: 3 of 6 that Tidemill may hold are taken"


def test_an_allocation_without_work_makes_room() -> None:
    need = Need(nodes=4, events=1, work_s=60.0, longest_s=90.0)
    held = [HeldWide(name="a", nodes=3, is_waiting=False)]
    plan = plan_wide([need], held, WideBounds(nodes_max=6, walltime_max_s=3600.0, starts=5))
    assert plan.cancel == ["a"]
    assert [(ask.nodes, ask.count) for ask in plan.submit] == [(4, 1)]
    assert plan_wide([], held, WideBounds(nodes_max=6, walltime_max_s=3600.0, starts=5)).cancel == []
