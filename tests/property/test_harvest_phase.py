"""Looks keep their pace and come just before the scheduler's cycles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.harvest.plan.phase import lead, pause


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
