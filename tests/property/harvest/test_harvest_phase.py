"""Looks keep their pace and come just before the scheduler's cycles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.harvest.plan.phase import (
    LAST_CALL_S,
    ONE_MORE,
    REACTION_S,
    glance_offsets,
    lead,
    pause,
    until_glance,
)


@given(st.floats(1, 300), st.floats(0, 600), st.floats(1, 120), st.floats(0, 30))
def test_nobody_waits_longer_for_a_look_than_the_interval_says(
    poll_s: float, age_s: float, cycle_s: float, lead_s: float
) -> None:
    found = pause(poll_s, plan_age_s=age_s, cycle_s=cycle_s, lead_s=lead_s)

    assert poll_s / 2 - 1e-6 <= found <= 1.1 * poll_s + 1e-6


@given(st.floats(1, 300), st.floats(0, 600), st.floats(0.1, 1), st.floats(0, 30))
def test_looks_soon_come_a_lead_before_a_cycle(
    poll_s: float, age_s: float, share: float, lead_s: float
) -> None:
    """With cycles not rarer than looks: from the second look on."""
    cycle_s = poll_s * share
    for _ in range(2):
        found = pause(poll_s, plan_age_s=age_s, cycle_s=cycle_s, lead_s=lead_s)
        age_s = (age_s + found) % cycle_s

    cycles = (age_s + lead_s) / cycle_s
    assert cycles == pytest.approx(round(cycles), abs=1e-6)


def test_without_knowledge_of_the_cycle_the_pace_is_kept() -> None:
    assert pause(30, plan_age_s=None, cycle_s=30, lead_s=lead(5)) == 30
    assert (
        pause(30, plan_age_s=23, cycle_s=30, lead_s=lead(5)) == 31
    )  # 54 s after the last cycle, 6 before the next
    assert (
        pause(30, plan_age_s=10, cycle_s=30, lead_s=lead(5)) == 22
    )  # as far away is the next look, in step then


@given(st.floats(0.1, 100), st.floats(1, 120), st.floats(0, 30))
def test_glances_of_a_cycle_are_no_closer_on_average_than_the_pause_says(
    pause_s: float, cycle_s: float, lead_s: float
) -> None:
    offsets = glance_offsets(pause_s, cycle_s=cycle_s, lead_s=lead_s)

    assert len(offsets) <= cycle_s / pause_s + ONE_MORE
    assert len(set(offsets)) == len(offsets)
    assert all(-cycle_s < each < cycle_s for each in offsets)
    if offsets:
        assert -lead_s in offsets
    if len(offsets) > 1:
        assert -LAST_CALL_S in offsets


@given(st.floats(0.5, 60), st.none() | st.floats(0, 600), st.floats(1, 120), st.floats(0, 30))
def test_the_next_glance_is_never_at_once_and_never_later_than_a_cycle_or_the_pause(
    pause_s: float, age_s: float | None, cycle_s: float, lead_s: float
) -> None:
    found = until_glance(pause_s, plan_age_s=age_s, cycle_s=cycle_s, lead_s=lead_s)

    assert min(pause_s, REACTION_S / 2) <= found <= max(pause_s, cycle_s + REACTION_S)


def test_glances_by_the_cycle_of_thirty_seconds() -> None:
    assert glance_offsets(7.5, cycle_s=30.0, lead_s=6.0) == pytest.approx([-6, -1, 7.333, 15.667], abs=1e-3)
    assert glance_offsets(20.0, cycle_s=30.0, lead_s=6.0) == [-6.0]
    assert glance_offsets(0.4, cycle_s=2.0, lead_s=1.3) == []
