"""Glances are quick where they are needed, and cost no more than is promised."""

from __future__ import annotations

import pytest

from tidemill.harvest.plan.pace import (
    BURST_POLLS,
    FIRST_WORK_S,
    LEFT_S,
    CountsChange,
    GlancePace,
    LastMinute,
    OwnJobs,
    awaited_s,
    change_between,
)
from tidemill.model.machine import JobCounts


def pace() -> GlancePace:
    return GlancePace(poll_s=30.0, calls_per_min_max=30.0)


def test_nothing_held_needs_no_glance() -> None:
    assert pace().glance_s(0.0, holds=False) is None


def test_a_quiet_machine_is_glanced_at_every_few_seconds_within_twelve_calls_a_minute() -> None:
    pause_s = pace().glance_s(0.0, holds=True)

    assert pause_s is not None
    assert 5.0 <= pause_s <= 10.0
    assert 60 / pause_s + 4 * 60 / 60 <= 12.0 + 1e-6  # and a quiet poll a minute


def test_many_changes_make_glances_rarer_since_each_causes_a_poll() -> None:
    busy = pace()
    quiet_s = busy.glance_s(0.0, holds=True)
    for at_s in range(0, 1800, 20):
        busy.changed(float(at_s))

    pause_s = busy.glance_s(1800.0, holds=True)
    assert quiet_s is not None
    assert pause_s is not None
    assert pause_s > 1.5 * quiet_s


def test_where_regular_jobs_often_need_our_nodes_more_calls_are_spent() -> None:
    calm, pressed = pace(), pace()
    for at_s in range(0, 1800, 20):
        calm.changed(float(at_s))
        pressed.changed(float(at_s))
        pressed.needed(float(at_s), 1)

    assert (pressed.glance_s(1800.0, holds=True) or 99) < (calm.glance_s(1800.0, holds=True) or 0)


def test_a_site_that_allows_few_calls_is_polled_only() -> None:
    assert GlancePace(poll_s=30.0, calls_per_min_max=6.0).glance_s(0.0, holds=True) is None


def test_zero_switches_glances_off() -> None:
    assert GlancePace(poll_s=30.0, calls_per_min_max=30.0, glance_s=0.0).glance_s(0.0, holds=True) is None


def test_a_burst_of_changes_causes_a_few_polls_at_once_and_then_waits() -> None:
    made = pace()
    assert sum(made.react(100.0) for _ in range(20)) == BURST_POLLS
    assert not made.react(101.0)
    assert made.react(130.0)


def counted(submitted: int, ended: int) -> JobCounts:
    return JobCounts(submitted=submitted, ended=ended)


def now(waiting: int, running: int) -> JobCounts:
    return JobCounts(waiting=waiting, running=running)


@pytest.mark.parametrize(
    ("before", "after", "own", "expected"),
    [
        (counted(5, 2), counted(5, 2), OwnJobs(), False),
        (counted(5, 2), counted(6, 2), OwnJobs(), True),
        (counted(5, 2), counted(8, 2), OwnJobs(submitted=3), False),
        (counted(5, 2), counted(9, 2), OwnJobs(submitted=3), True),
        (counted(5, 2), counted(5, 3), OwnJobs(), True),
        (counted(5, 2), counted(5, 4), OwnJobs(canceled=2), False),
        (counted(5, 2), counted(5, 5), OwnJobs(canceled=2), True),
        (counted(5, 2), counted(5, 3), OwnJobs(canceled=2), False),
        (counted(5, 2), counted(0, 0), OwnJobs(), True),
        (now(1, 4), now(1, 4), OwnJobs(), False),
        (now(1, 4), now(2, 4), OwnJobs(), True),
        (now(1, 4), now(1, 3), OwnJobs(), True),
    ],
)
def test_what_comes_or_ends_is_news_unless_tidemill_did_it(
    before: JobCounts, after: JobCounts, own: OwnJobs, expected: bool
) -> None:
    change = change_between(before, after, own=own, is_queue_empty=False)
    assert change is (CountsChange.NEWS if expected else CountsChange.NONE)


@pytest.mark.parametrize(
    ("before", "after", "own", "expected"),
    [
        (now(1, 3), now(1, 3), OwnJobs(started=1), True),  # ours started, one ended, and one came
        (now(1, 3), now(0, 4), OwnJobs(started=1), False),
        (now(1, 3), now(0, 4), OwnJobs(), True),  # one of ours, or another one
        (now(1, 3), now(1, 4), OwnJobs(started=1), True),
        (now(2, 4), now(2, 4), OwnJobs(withdrawn=1), True),  # we withdrew one, and one came
        (now(2, 4), now(1, 4), OwnJobs(withdrawn=1), False),
        (now(0, 3), now(0, 4), OwnJobs(submitted=1, started=1), False),
        (now(0, 3), now(1, 4), OwnJobs(submitted=1, started=1), True),
    ],
)
def test_what_of_ours_has_left_the_queue_hides_nobody_who_came(
    before: JobCounts, after: JobCounts, own: OwnJobs, *, expected: bool
) -> None:
    change = change_between(before, after, own=own, is_queue_empty=True)
    assert change is (CountsChange.NEWS if expected else CountsChange.NONE)


def test_a_batch_system_whose_polls_cost_more_is_glanced_at_less_often_within_the_same_calls() -> None:
    cheap, dear = pace(), pace()
    for _ in range(200):
        dear.cost(5)
    pause_s = dear.glance_s(0.0, holds=True)
    assert pause_s is not None
    assert pause_s > (cheap.glance_s(0.0, holds=True) or 99)
    assert 60 / pause_s + 5 * 60 / 60 <= 12.0 + 1e-6


def test_polls_that_cost_more_than_usual_are_paid_from_those_that_changes_may_cause() -> None:
    made = pace()
    for _ in range(2):  # 12 of 16 commands; the next poll is expected to be one of five
        assert made.react(100.0)
        made.cost(6)
    assert not made.react(100.0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (counted(5, 2), counted(5, 2), CountsChange.NONE),
        (counted(5, 2), counted(5, 3), CountsChange.FREED),
        (counted(5, 2), counted(6, 3), CountsChange.NEWS),
        (now(0, 4), now(0, 4), CountsChange.NONE),
        (now(0, 4), now(0, 3), CountsChange.FREED),
        (now(0, 4), now(1, 3), CountsChange.NEWS),
        (now(0, 4), now(0, 5), CountsChange.NONE),
        (now(1, 4), now(1, 5), CountsChange.NEWS),
    ],
)
def test_an_end_that_nobody_waits_for_has_time_until_the_next_regular_poll(
    before: JobCounts, after: JobCounts, expected: CountsChange
) -> None:
    assert change_between(before, after, own=OwnJobs(), is_queue_empty=True) is expected


@pytest.mark.parametrize(
    ("before", "after", "own", "expected"),
    [
        (counted(5, 2), counted(5, 4), OwnJobs(canceled=2), CountsChange.NONE),
        (counted(5, 2), counted(5, 5), OwnJobs(canceled=2), CountsChange.FREED),
        (now(0, 4), now(0, 2), OwnJobs(canceled=2), CountsChange.NONE),
        (now(0, 4), now(0, 1), OwnJobs(canceled=2), CountsChange.FREED),
        (now(2, 4), now(0, 4), OwnJobs(canceled=2, withdrawn=2), CountsChange.NONE),
        (now(1, 4), now(0, 4), OwnJobs(started=1), CountsChange.FREED),  # ours started, another ended
    ],
)
def test_nodes_that_tidemill_itself_released_are_not_to_be_filled(
    before: JobCounts, after: JobCounts, own: OwnJobs, expected: CountsChange
) -> None:
    assert change_between(before, after, own=own, is_queue_empty=True) is expected


@pytest.mark.parametrize(
    ("has_new_work", "has_grown", "living", "left", "expected"),
    [
        (True, False, 0, 0, FIRST_WORK_S),
        (True, False, 2, 2, FIRST_WORK_S),
        (False, False, 2, 2, LEFT_S),
        (False, False, 0, 0, None),
        (True, False, 2, 1, None),
        (False, False, 2, 1, None),
        (False, True, 2, 1, FIRST_WORK_S),
        (False, True, 2, 2, LEFT_S),
    ],
)
def test_work_is_polled_for_where_no_allocation_could_take_it_or_too_few(
    has_new_work: bool, has_grown: bool, living: int, left: int, expected: float | None
) -> None:
    assert awaited_s(has_new_work=has_new_work, has_grown=has_grown, living=living, left=left) == expected


def test_commands_of_the_last_minute_are_counted_whenever_they_were_made() -> None:
    last = LastMinute()
    for now_s, total, expected in (
        (1000.0, 4, 4), (1030.0, 9, 9), (1060.0, 9, 5), (1089.9, 9, 5), (1090.0, 9, 0), (1090.0, 11, 2)
    ):  # fmt: skip
        assert last.commands(now_s, total) == expected
        last.note(now_s, total)
        assert last.commands(now_s, total) == expected, "the question changes nothing, nor does the note"


def test_work_that_waits_gets_no_poll_that_would_pass_the_bound_of_a_minute() -> None:
    made = pace()
    assert not made.hurry(100.0, last_minute=19)
    assert made.hurry(100.0, last_minute=18)
