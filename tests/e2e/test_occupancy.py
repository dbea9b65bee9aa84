"""Slots are busy: 1-s ranges over two minutes; and a range that cannot end in time is not started."""

from __future__ import annotations

import pytest
from tests.worlds.home.world import world

from tidemill.model.job import JobSpec, Resources

pytestmark = pytest.mark.slow


@pytest.mark.timeout(240)
def test_slots_are_busy_for_two_minutes_of_one_second_ranges() -> None:
    with world(nodes=1, cores=2) as it:
        spec = JobSpec(command=["/bin/sleep", "1"], events=240, resources=Resources(event_s=1.0))
        it.submit("busy", spec)
        it.wait_campaign("busy", timeout_s=180)
        it.wait_for(
            lambda: any(one.slot_us for one in it.client.allocations()),
            "the pilot has told its occupancy",
            60,
        )
        (one,) = [each for each in it.client.allocations() if each.slot_us]
        assert one.slot_us >= 230 * 1_000_000
        assert one.busy_us / one.slot_us >= 0.99
