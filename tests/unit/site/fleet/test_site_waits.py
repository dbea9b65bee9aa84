"""Jobs that wait for a site's sake, and breakers: closed, open, trying, closed."""

from __future__ import annotations

import random

import msgspec

from tidemill.model.failure import FailureClass
from tidemill.model.trouble import EXAMPLES_MAX, TROUBLES_MAX, Scope
from tidemill.site.fleet.breakers import BREAKERS_MAX, Breaker, Reason, TroubleCause
from tidemill.site.fleet.waits import Waits

S = 1_000_000
HOUR = 3600 * S
DAY = 24 * HOUR
HOST = TroubleCause(FailureClass.CREDENTIAL, Scope.INPUT, "https://dav.example.org")
OTHER = TroubleCause(FailureClass.STAGE_IN, Scope.INPUT, "https://other.example.org")
IMAGE = TroubleCause(FailureClass.IMAGE, Scope.APP, "sim")
EXPIRED = Reason(HOST, "our certificate expired", "renew it")
LOAD = (("sim", 1), 5)


def waits(wait_max_s: float = 3 * 86400, breakers: list[Breaker] | None = None) -> Waits:
    return Waits(wait_max_s, breakers or [], jitter=lambda: 1.0)


def of(cause: TroubleCause):  # type: ignore[no-untyped-def]
    return lambda other: other == cause


def opened(count: int = 3) -> Waits:
    """With this many jobs that wait for an open breaker."""
    them = waits()
    for job in range(1, 4):
        assert them.failed(job, EXPIRED, S)
    for job in range(4, count + 1):
        assert not them.may_try(job, of(HOST), LOAD, S)
    return them


def tried(them: Waits, jobs: range, now_us: int) -> list[int]:
    them.step(now_us)
    return [job for job in jobs if them.may_try(job, of(HOST), LOAD, now_us)]


def test_a_job_is_tried_again_at_once_then_with_pauses_up_to_an_hour() -> None:
    them, now, pauses = waits(wait_max_s=1e9), 0, []
    for _ in range(16):
        assert them.failed(7, Reason(TroubleCause(FailureClass.STAGE_IN, ""), "stale file handle"), now)
        then = now
        while not them.may_try(7, of(OTHER), LOAD, then):
            then += S // 2
        pauses.append((then - now) / S)
        now = then
    assert pauses[:5] == [0, 1, 2, 4, 8]
    assert pauses[-1] == 3600
    assert not [each for each in them.troubles(now) if each.is_open]


def test_three_jobs_open_the_breaker_one_tries_and_its_success_closes_it() -> None:
    them = opened(count=10)
    (shown,) = them.troubles(2 * S)
    assert (shown.is_open, shown.jobs, shown.room) == (True, 10, 0)
    assert tried(them, range(1, 20), 2 * S) == []  # not yet; what comes waits as well
    now = 7 * S
    (trial,) = tried(them, range(1, 20), now)
    assert trial == 4  # one that was not tried yet
    assert tried(them, range(1, 20), now) == [trial]
    them.succeeded(trial, of(HOST), now)
    assert not [each for each in them.troubles(now) if each.is_open]
    assert tried(them, range(1, 20), now) == list(range(1, 20))
    for job in range(1, 20):
        them.succeeded(job, of(HOST), now)
    assert (them.load, them.troubles(now)) == ({}, [])


def test_a_failed_trial_doubles_the_pause_and_another_job_is_next() -> None:
    them, now, trials, pauses = opened(count=6), S, [], []
    for _ in range(14):
        then = now
        while not (found := tried(them, range(1, 7), then)):
            then += S
        assert len(found) == 1
        pauses.append((then - now) / S)
        trials.append(found[0])
        now = then
        assert them.failed(found[0], EXPIRED, now)
    assert pauses[:4] == [5, 10, 20, 40]
    assert pauses[-1] == 3600
    assert set(trials) == {1, 2, 3, 4, 5, 6}


def test_a_job_that_succeeds_in_between_keeps_the_breaker_closed() -> None:
    them = waits()
    for job in range(100):
        assert them.failed(job, EXPIRED, S)
        them.succeeded(1000 + job, of(HOST), S)
    assert not [each for each in them.troubles(S) if each.is_open]


def test_jobs_that_can_never_succeed_do_not_keep_it_open() -> None:
    """Where the breaker is open and none waits that was not tried, the server may send a job for the next try."""
    them = opened()
    (shown,) = them.troubles(2 * S)
    assert shown.room == 1
    assert not them.may_try(99, of(HOST), LOAD, 2 * S)  # it has come
    (shown,) = them.troubles(2 * S)
    assert shown.room == 0
    assert tried(them, range(1, 100), 10 * S) == [99]
    them.succeeded(99, of(HOST), 10 * S)
    assert not any(each.is_open for each in them.troubles(10 * S))


def test_a_breaker_that_opens_again_soon_goes_on_with_its_pause() -> None:
    them, now = opened(), S
    for _ in range(5):
        now += HOUR
        (trial,) = tried(them, range(1, 4), now)
        them.failed(trial, EXPIRED, now)
    now += HOUR
    (trial,) = tried(them, range(1, 4), now)
    them.succeeded(trial, of(HOST), now)
    for job in range(11, 14):
        them.failed(job, EXPIRED, now)
    (shown,) = (each for each in them.troubles(now) if each.is_open)
    assert shown.next_us - now == 5 * 2**6 * S


def test_after_the_operators_time_jobs_go_back_and_new_ones_after_their_first_try() -> None:
    them = waits(wait_max_s=86400)
    for job in range(1, 4):
        assert them.failed(job, EXPIRED, S)
    assert them.tend(range(100), DAY - S) == []
    assert them.tend(range(100), DAY + 2 * S) == [1, 2, 3]
    assert not them.failed(9, EXPIRED, DAY + 2 * S)
    assert not them.failed(1, EXPIRED, DAY + 2 * S)


def test_a_trial_that_was_canceled_or_never_ends_makes_room_for_another() -> None:
    them = opened()
    (trial,) = tried(them, range(1, 4), 10 * S)
    them.forget(trial)
    assert len(tried(them, range(1, 4), 10 * S)) == 1
    them.tend(range(100), 10 * S + 2 * HOUR)
    assert len(tried(them, range(1, 4), 10 * S + 2 * HOUR)) == 1


def test_a_trial_that_meets_something_else_waits_for_that() -> None:
    them = opened()
    (trial,) = tried(them, range(1, 4), 10 * S)
    them.failed(trial, Reason(OTHER, "connection refused"), 10 * S)
    assert tried(them, range(1, 4), 11 * S) == [trial]  # for the other cause, whose breaker is closed


def test_an_image_that_fails_on_three_nodes_opens_its_breaker_and_a_payload_closes_it() -> None:
    them = waits()
    reason = Reason(IMAGE, "image `rel`: no such file")
    for node in ("n1", "n1", "n2", "n2"):
        them.failed(1, reason, S, who=node)
    assert not any(each.is_open for each in them.troubles(S))
    them.failed(1, reason, S, who="n3")
    assert any(each.is_open for each in them.troubles(S))
    assert tried(them, range(1, 2), S) == []
    them.step(20 * S)
    assert them.may_try(1, of(IMAGE), LOAD, 20 * S)
    them.succeeded(1, of(IMAGE), 20 * S)  # it could be defined: that says nothing
    assert them.is_trial(1)
    them.granted(1)
    assert not them.load
    assert not them.may_try(1, of(IMAGE), LOAD, 21 * S)  # one event is out
    them.succeeded(1, of(IMAGE), 30 * S, ran=True)
    assert them.may_try(1, of(IMAGE), LOAD, 30 * S)


def test_an_image_that_fails_again_and_again_on_the_only_node_opens_it_too() -> None:
    them = waits()
    for _ in range(10):
        them.failed(1, Reason(IMAGE, "image `rel`: no such file"), S, who="n1")
    assert any(each.is_open for each in them.troubles(S))


def test_breakers_are_taken_up_by_the_next_agent() -> None:
    text = msgspec.json.encode(opened().breakers)
    them = waits(breakers=msgspec.json.decode(text, type=list[Breaker]))
    assert tried(them, range(1, 5), 2 * S) == []
    assert len(tried(them, range(1, 5), 10 * S)) == 1


def test_what_was_mended_is_tried_at_once() -> None:
    them = opened()
    for n in range(1, 10):
        (trial,) = tried(them, range(1, 4), n * 10 * HOUR)
        them.failed(trial, EXPIRED, n * 10 * HOUR)
    now = 90 * HOUR + S
    assert tried(them, range(1, 4), now) == []
    them.hasten(FailureClass.IMAGE, now)
    assert tried(them, range(1, 4), now) == []
    them.hasten(FailureClass.CREDENTIAL, now)
    assert len(tried(them, range(1, 4), now)) == 1


def test_a_clock_that_was_set_back_delays_nothing_for_long() -> None:
    them = waits()
    for job in range(1, 4):
        them.failed(job, EXPIRED, 400 * DAY)
    them.failed(9, Reason(OTHER, "connection refused"), 400 * DAY)
    them.failed(9, Reason(OTHER, "connection refused"), 400 * DAY)
    them.tend(range(10), DAY)
    now = DAY + 2 * HOUR
    them.step(now)
    assert them.may_try(9, of(OTHER), LOAD, now)


def test_what_waits_is_weighed_out_of_the_open_work() -> None:
    them = waits()
    for job, events in ((1, 3), (2, 4)):
        them.failed(job, EXPIRED, S)
        them.may_try(job, of(HOST), (("sim", 1), events), S)
    assert them.load == {("sim", 1): 7}
    them.may_try(1, of(HOST), (("sim", 1), 2), S)
    assert them.load == {("sim", 1): 6}
    them.forget(1)
    them.succeeded(2, of(HOST), S)
    assert them.load == {}


def test_causes_and_examples_are_bounded_whatever_goes_wrong() -> None:
    them, draw = waits(), random.Random(3)
    for job in range(5000):
        host = draw.randrange(400)
        cause = TroubleCause(FailureClass.STAGE_IN, Scope.INPUT, f"https://h{host}.example.org")
        them.failed(job, Reason(cause, "no answer " + "x" * 5000), S)
    assert len(them.breakers) <= BREAKERS_MAX + len(FailureClass)
    shown = them.troubles(S)
    assert len(shown) <= TROUBLES_MAX
    assert max(len(each.examples) for each in shown) <= EXAMPLES_MAX
    assert max(len(each.message) for each in shown) <= 500
    them.tend((), S)
    assert not them.load
    them.tend((), S + DAY)
    assert len([each for each in them.breakers if not each.is_open]) == 0


def test_an_open_breaker_that_no_job_asks_for_is_forgotten() -> None:
    them = opened()
    for job in range(1, 4):
        them.forget(job)
    them.tend((), HOUR)
    assert any(each.is_open for each in them.troubles(HOUR))
    them.tend((), 3 * HOUR)
    assert them.troubles(3 * HOUR) == []
