"""Whatever happens, glances and the polls that they cause stay within the commands that the site allows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.harvest.plan.headroom import SHARE_MAX, Headroom
from tidemill.harvest.plan.pace import BURST_POLLS, GlancePace


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 300),
    st.floats(1, 120),
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200),
    st.sampled_from([(4,), (5,), (4, 5, 5, 7), (9,)]),
)
def test_an_hour_of_glances_and_reactions_costs_no_more_than_is_allowed(
    calls_max: int, poll_s: float, events: list[tuple[bool, bool]], costs: tuple[int, ...]
) -> None:
    """`costs`: commands of the polls, in turn: 4 on Slurm, 5 and now and then more on PBS."""
    pace = GlancePace(poll_s=poll_s, calls_per_min_max=float(calls_max))
    now_s, calls = 0.0, 0
    k = 0
    while now_s < 3600:
        pause_s = pace.glance_s(now_s, holds=True)
        if pause_s is None:
            assert pace.glance_s(now_s, holds=False) is None
            break
        now_s += pause_s
        calls += 1
        is_change, is_needed = events[k % len(events)] if events else (True, True)
        k += 1
        if is_change:
            pace.changed(now_s)
            pace.needed(now_s, int(is_needed))
            if pace.react(now_s):
                calls += costs[k % len(costs)]
                pace.cost(costs[k % len(costs)])
        assert calls <= 0.75 * calls_max * now_s / 60 + max(costs) * BURST_POLLS + 1


@given(
    st.lists(st.tuples(st.floats(0, 5000), st.integers(-5, 5000)), max_size=100),
    st.integers(-3, 100_000),
    st.floats(0, 300),
    st.floats(0, 60),
)
def test_headroom_is_never_negative_and_never_more_than_its_share(
    arrivals: list[tuple[float, int]], free: int, look_s: float, death_s: float
) -> None:
    headroom, now_s = Headroom(), 1_795_000_000.0
    for after_s, nodes in arrivals:
        now_s += after_s
        headroom.note(now_s, nodes)
        kept = headroom.nodes(now_s, free=free, look_s=look_s, death_s=death_s)
        assert 0 <= kept <= max(1, free * SHARE_MAX)
        assert kept == 0 or kept <= free / 4
