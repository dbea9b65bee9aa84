"""When an allocation ends whose limit was to be lowered: for plans, and for its pilots."""

from __future__ import annotations

import msgspec

from tidemill.model.state import AllocationState
from tidemill.site.fleet.fleets import end_us_of as leaves_us
from tidemill.site.fleet.fleets import orders_of
from tidemill.site.nodes.planning import end_us_of
from tidemill.site.state import site_state

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US


def allocation(name: str = "tm-s-e1-1", **changes: object) -> site_state.Allocation:
    """One that runs since 1 h on our clock, for 2 h."""
    found = site_state.Allocation(
        name=name,
        fleet="f",
        nodes=1,
        cores=4,
        state=AllocationState.ACTIVE,
        intended_us=1,
        walltime_s=7200.0,
        started_us=HOUR_US,
        ends_us=3 * HOUR_US,
    )
    return msgspec.structs.replace(found, **changes)


def ends(*allocations: site_state.Allocation) -> dict[str, int]:
    """What pilots of these are sent."""
    state = site_state.SiteState(site="s", allocations={a.name: a for a in allocations})
    return {end.allocation: end.at_us for end in orders_of(state, "f", now_us=HOUR_US)[1]}


def test_a_plan_does_not_rely_on_an_end_that_the_batch_system_has_not_set() -> None:
    refused = allocation(shortened_us=2 * HOUR_US)
    for batch in ("slurm", "pbs"):
        assert end_us_of(refused, batch=batch) == 3 * HOUR_US, "so that the next plan orders it again"
    taken = allocation(shortened_us=2 * HOUR_US, ends_us=2 * HOUR_US)
    assert end_us_of(taken, batch="slurm") == 2 * HOUR_US
    rounded = allocation(shortened_us=2 * HOUR_US - 1, ends_us=2 * HOUR_US + 59 * SECOND_US)
    assert end_us_of(rounded, batch="slurm") == 2 * HOUR_US - 1, "not ordered at each poll again"
    assert end_us_of(allocation(), batch="slurm") == 3 * HOUR_US


def test_elements_of_pbs_arrays_end_because_their_pilots_leave() -> None:
    element = allocation("tm-s-e1-1.7", shortened_us=2 * HOUR_US)
    assert end_us_of(element, batch="pbs") == 2 * HOUR_US
    assert end_us_of(element, batch="slurm") == 3 * HOUR_US, "where elements have limits of their own"


def test_pilots_leave_by_the_ordered_end_whatever_the_batch_system_did_with_it() -> None:
    element = allocation("tm-s-e1-1.7", shortened_us=2 * HOUR_US)
    earlier = allocation("tm-s-e1-2", shortened_us=2 * HOUR_US, ends_us=2 * HOUR_US - 30 * SECOND_US)
    assert ends(element, earlier, allocation("tm-s-e1-3")) == {
        "tm-s-e1-1.7": 2 * HOUR_US,
        "tm-s-e1-2": 2 * HOUR_US - 30 * SECOND_US,
    }
    assert ends(msgspec.structs.replace(element, told_end_us=2 * HOUR_US)) == {}


def test_what_was_requeued_has_its_whole_limit_again() -> None:
    again = allocation(shortened_us=HOUR_US // 2)
    assert leaves_us(again) == end_us_of(again, batch="pbs") == 3 * HOUR_US
    waits = allocation(shortened_us=2 * HOUR_US, started_us=0, ends_us=0, state=AllocationState.QUEUED)
    assert leaves_us(waits) == 0
    assert ends(waits) == {}
