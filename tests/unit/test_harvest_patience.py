"""Nodes are not kept for ever for a job that does not take them."""

from __future__ import annotations

from tidemill.harvest.patience import AGAIN_S, PATIENCE_S_MIN, Patience


def test_a_job_that_does_not_take_its_idle_nodes_is_left_out_for_a_time() -> None:
    patience = Patience()
    assert patience.look(0.0, ["7", "8"], cycle_s=30.0) == []
    assert patience.look(60.0, ["7", "8"], cycle_s=30.0) == []
    assert patience.look(PATIENCE_S_MIN, ["7"], cycle_s=30.0) == ["7"]
    assert patience.left_out(PATIENCE_S_MIN) == {"7"}
    later_s = PATIENCE_S_MIN + AGAIN_S
    assert patience.left_out(later_s) == frozenset()
    assert patience.look(later_s, ["7"], cycle_s=30.0) == []


def test_a_job_that_lacks_nodes_in_between_is_given_its_time_again() -> None:
    patience = Patience()
    patience.look(0.0, ["7"], cycle_s=30.0)
    patience.look(60.0, [], cycle_s=30.0)
    assert patience.look(130.0, ["7"], cycle_s=30.0) == []


def test_a_slow_scheduler_is_given_three_cycles() -> None:
    patience = Patience()
    patience.look(0.0, ["7"], cycle_s=600.0)
    assert patience.look(1799.0, ["7"], cycle_s=600.0) == []
    assert patience.look(1800.0, ["7"], cycle_s=600.0) == ["7"]
