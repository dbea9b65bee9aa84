"""How long slots were there and how long they were busy is told; `bench/nodes.py` measures the share of it."""

from __future__ import annotations

from tests.worlds.home.world import world

from tidemill.model.job import JobSpec, Resources


def test_busy_time_of_slots_is_told_and_holds_all_that_ran() -> None:
    with world(nodes=1, cores=2) as it:
        spec = JobSpec(command=["/bin/sleep", "0.5"], events=12, resources=Resources(event_s=0.5))
        it.submit("busy", spec)
        it.wait_campaign("busy")
        it.wait_for(
            lambda: any(one.slot_us for one in it.client.allocations()), "the pilot has told its occupancy"
        )
        (one,) = [each for each in it.client.allocations() if each.slot_us]
        assert 12 * 500_000 <= one.busy_us <= one.slot_us
