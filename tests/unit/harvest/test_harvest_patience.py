"""Nodes are not kept for ever for a job that does not take them."""

from __future__ import annotations

from tidemill.harvest.plan.patience import AGAIN_CYCLES, CYCLES, Patience

PATIENCE_S = CYCLES * 30.0


def test_a_job_that_does_not_take_its_idle_nodes_is_left_out_for_a_time() -> None:
    patience = Patience()
    assert patience.on_poll(0.0, ["7", "8"], cycle_s=30.0) == []
    assert patience.on_poll(60.0, ["7", "8"], cycle_s=30.0) == []
    assert patience.on_poll(PATIENCE_S, ["7"], cycle_s=30.0) == ["7"]
    assert patience.left_out(PATIENCE_S) == {"7"}
    later_s = PATIENCE_S + AGAIN_CYCLES * 30.0
    assert patience.left_out(later_s) == frozenset()
    assert patience.on_poll(later_s, ["7"], cycle_s=30.0) == []


def test_a_job_that_lacks_nodes_in_between_is_given_its_time_again() -> None:
    patience = Patience()
    patience.on_poll(0.0, ["7"], cycle_s=30.0)
    patience.on_poll(60.0, [], cycle_s=30.0)
    assert patience.on_poll(130.0, ["7"], cycle_s=30.0) == []


def test_a_slow_scheduler_is_given_four_cycles() -> None:
    patience = Patience()
    patience.on_poll(0.0, ["7"], cycle_s=600.0)
    assert patience.on_poll(2399.0, ["7"], cycle_s=600.0) == []
    assert patience.on_poll(2400.0, ["7"], cycle_s=600.0) == ["7"]


def test_a_scheduler_that_starts_cycles_by_itself_rarely_is_given_one_of_these_as_well() -> None:
    """PBS: nodes that come back start no cycle, so a job may wait for `scheduler_iteration` by itself."""
    patience = Patience()
    patience.on_poll(0.0, ["7"], cycle_s=30.0, iteration_s=600.0)
    assert patience.on_poll(719.0, ["7"], cycle_s=30.0, iteration_s=600.0) == []
    assert patience.on_poll(720.0, ["7"], cycle_s=30.0, iteration_s=600.0) == ["7"]
