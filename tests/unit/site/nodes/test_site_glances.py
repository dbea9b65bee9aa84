"""What a glance leads to: a poll at once, rarer polls, or none at all where it shows nothing."""

from __future__ import annotations

from tidemill.errors import SiteError
from tidemill.harvest.plan.pace import BURST_POLLS, QUIET_POLLS, GlancePace, OwnJobs
from tidemill.model.machine import JobCounts
from tidemill.site.nodes.batch_calls import Glanced
from tidemill.site.nodes.glances import AGAIN_S, AWAY_S, NOT_OFFERED, Glances


def glances() -> Glances:
    made = Glances(GlancePace(poll_s=30.0, calls_per_min_max=30.0))
    made.polling(0.0, at_once=False)
    made.polled(JobCounts(submitted=5, ended=2))
    return made


def shows(submitted: int, ended: int = 2) -> Glanced:
    return Glanced(counts=JobCounts(submitted=submitted, ended=ended))


def test_an_arrival_since_the_poll_causes_a_poll_at_once() -> None:
    made = glances()
    assert not made.apply(shows(5), 8.0)
    assert made.apply(shows(6), 16.0)
    made.polling(16.1, at_once=True)
    assert not made.apply(shows(6), 24.0)


def test_what_tidemill_submitted_itself_causes_none() -> None:
    made = glances()
    made.acted(OwnJobs(submitted=3))
    assert not made.apply(shows(8), 8.0)
    assert made.apply(shows(9), 16.0)


def test_what_tidemill_canceled_itself_causes_none_and_what_others_end_does() -> None:
    made = glances()
    made.acted(OwnJobs(canceled=2))
    assert not made.apply(shows(5, ended=4), 8.0)
    assert made.apply(shows(5, ended=5), 16.0)
    made.polling(16.0, at_once=True)
    made.is_queue_empty = True
    assert not made.apply(shows(5, ended=6), 24.0)


def test_nodes_that_become_free_are_filled_at_the_next_regular_poll_which_is_not_put_off() -> None:
    made = glances()
    made.is_queue_empty = True
    made.glancing(8.0)
    assert not made.apply(shows(5, ended=2), 8.0)
    assert made.poll_factor(8.0, holds=True) == QUIET_POLLS
    assert not made.apply(shows(5, ended=3), 16.0)
    assert made.poll_factor(16.0, holds=True) == 1.0
    assert not made.apply(shows(5, ended=3), 24.0)  # it stays so until the poll
    assert made.poll_factor(24.0, holds=True) == 1.0
    made.polling(30.0, at_once=False)
    assert made.poll_factor(30.0, holds=True) == QUIET_POLLS


def test_a_change_that_the_bound_defers_is_polled_for_later() -> None:
    made = glances()
    for k in range(int(BURST_POLLS)):
        made.apply(shows(6 + k), 1.0)
    assert not made.apply(shows(20), 1.0)
    assert made.apply(shows(20), 60.0)


def test_a_change_whose_poll_has_failed_is_polled_for_again() -> None:
    made = glances()
    assert made.apply(shows(6), 8.0)
    made.polling(8.1, at_once=True)
    made.missed()
    assert made.poll_factor(8.2, holds=True) == 1.0
    assert made.apply(shows(6), 16.0)


def test_what_came_before_the_first_glance_does_not_wait_for_a_quiet_poll() -> None:
    made = Glances(GlancePace(poll_s=30.0, calls_per_min_max=30.0))
    made.polling(0.0, at_once=False)
    made.polled(None)
    made.glancing(8.0)
    assert not made.apply(shows(6), 8.0)
    assert made.poll_factor(8.0, holds=True) == 1.0
    assert made.apply(shows(6), 16.0)


def test_polls_are_rarer_only_while_glances_show_that_nothing_changes() -> None:
    made = glances()
    assert made.poll_factor(1.0, holds=True) == 1.0
    made.glancing(8.0)
    made.apply(shows(5), 8.0)
    assert made.poll_factor(8.0, holds=True) == QUIET_POLLS
    assert made.poll_factor(8.0, holds=False) == 1.0
    for _ in range(9):
        made.apply(shows(6), 9.0)
        made.apply(shows(7), 9.0)
    assert made.poll_factor(9.0, holds=True) == 1.0


def test_a_glance_follows_the_last_look_after_the_pause_that_is_decided_then() -> None:
    made = glances()
    asked: list[float] = []

    def until(pause_s: float) -> float:
        asked.append(pause_s)
        return 3.0

    def is_due(now_s: float, *, holds: bool = True) -> bool:
        made.schedule(now_s, holds=holds, until=until)
        return made.is_due(now_s)

    assert not made.is_due(99.0), "nothing is due that has no time"
    assert not is_due(10.0)
    assert not is_due(12.9)
    assert is_due(13.0)
    made.glancing(13.0)
    assert not is_due(13.0)
    assert is_due(16.0)
    made.polling(16.0, at_once=False)
    assert not is_due(16.5)
    assert asked == [7.5, 7.5, 7.5]
    assert not is_due(99.0, holds=False)


def test_where_glances_fail_the_machine_is_polled_as_configured_and_the_reason_is_kept() -> None:
    made = glances()
    denied = SiteError("`sdiag` ended with status 1: denied", transient=False)
    assert not made.apply(Glanced(error=denied), 8.0)
    assert "denied" in made.why_not
    assert made.pause_s(9.0, holds=True) is None
    assert made.poll_factor(9.0, holds=True) == 1.0
    assert made.pause_s(8.0 + AGAIN_S, holds=True) is not None
    made.apply(Glanced(), 8.0 + AGAIN_S)
    assert made.why_not == NOT_OFFERED
    made.apply(shows(5), 20.0 + 2 * AGAIN_S)
    assert made.why_not == ""


def test_a_glance_during_an_outage_is_tried_again_soon() -> None:
    made = glances()
    made.apply(Glanced(error=SiteError("`qstat -B` ended with status 255: cannot connect")), 8.0)
    assert made.pause_s(8.0 + AWAY_S - 1, holds=True) is None
    assert made.pause_s(8.0 + AWAY_S, holds=True) is not None


def test_what_tidemill_did_in_two_steps_between_two_glances_counts_together() -> None:
    made = glances()
    made.acted(OwnJobs(submitted=2))
    made.acted(OwnJobs(submitted=1, started=1))
    assert not made.apply(shows(8), 8.0)
