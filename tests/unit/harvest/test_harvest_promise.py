"""The promise to regular jobs: what an interval shows, by hand."""

from __future__ import annotations

import pytest

from tidemill.harvest.account.promise import (
    Judged,
    PromiseState,
    at_best,
    class_bound,
    class_verdict,
    mean_bound,
    mean_verdict,
    promise_of,
)
from tidemill.harvest.account.waits import MeanDelay, RelativeChange, delay

KEPT, BROKEN, UNSURE = PromiseState.KEPT, PromiseState.BROKEN, PromiseState.UNSURE
UNJUDGED = PromiseState.UNJUDGED


def change(low: float | None, high: float | None) -> RelativeChange:
    mean = None if low is None or high is None else (low + high) / 2
    return RelativeChange(mean=mean, low=low, high=high)


def later(low: float | None, high: float | None) -> MeanDelay:
    return MeanDelay(mean=0.0 if low is None or high is None else (low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("relative", "seconds", "verdict"),
    [
        (change(-0.01, 0.019), later(-50, 95), KEPT),  # 2 % of a long wait
        (change(0.2, 0.4), later(4, 14.9), KEPT),  # 15 s where jobs hardly wait
        (change(0.021, 0.1), later(16, 80), BROKEN),  # the class of small jobs in half a year of a machine
        (change(0.01, 0.1), later(16, 80), UNSURE),
        (change(0.021, 0.1), later(14, 80), UNSURE),
        (change(None, None), later(1, 15), KEPT),  # nobody waits without us
        (change(None, None), later(15.1, 20), BROKEN),
        (change(None, None), later(None, None), UNSURE),  # a single pair
    ],
)
def test_a_class_may_wait_2_percent_or_15_seconds_longer_whichever_is_larger(
    relative: RelativeChange, seconds: MeanDelay, verdict: PromiseState
) -> None:
    assert class_verdict(relative, seconds) is verdict


def test_the_largest_jobs_may_wait_1_percent_longer_whatever_the_seconds() -> None:
    assert class_verdict(change(0.001, 0.009), later(10, 900), is_largest=True) is KEPT
    assert class_verdict(change(0.011, 0.019), later(1, 2), is_largest=True) is BROKEN
    assert class_verdict(change(0.001, 0.011), later(1, 2), is_largest=True) is UNSURE
    assert class_verdict(change(None, None), later(1, 2), is_largest=True) is KEPT


def test_there_is_no_verdict_where_submissions_are_not_known() -> None:
    assert {at_best(each, jobs=1000, is_judged=False) for each in PromiseState} == {UNJUDGED}
    found = promise_of(UNJUDGED, [judged("1/64", UNJUDGED), judged("1/64 5min", UNJUDGED, belongs=False)])
    assert (found.verdict.text, found.broken, found.unsure) == ("no verdict", [], [])


def test_the_bound_of_a_row_says_what_its_verdict_is_by() -> None:
    assert class_bound(change(0.0, 0.1), is_largest=True).text == "1 %"
    assert class_bound(change(None, None), is_largest=True).text == "15 s"  # nobody waits without us
    assert mean_bound(change(-0.1, 0.1)).text == "0 %"
    assert mean_bound(change(None, None)).text == "15 s"


def test_the_mean_may_not_grow() -> None:
    assert mean_verdict(change(-0.02, -0.001), later(-9, -1)) is KEPT
    assert mean_verdict(change(-0.02, 0.001), later(-9, 1)) is UNSURE
    assert mean_verdict(change(0.001, 0.002), later(1, 2)) is BROKEN
    assert mean_verdict(change(None, None), later(1, 2)) is KEPT


def judged(name: str, verdict: PromiseState, *, belongs: bool = True) -> Judged:
    return Judged(name=name, verdict=verdict, belongs=belongs)


def test_one_class_that_surely_breaks_it_breaks_it_however_small() -> None:
    found = promise_of(KEPT, [judged("1/64", KEPT), judged("1/64 5min", BROKEN, belongs=False)])
    assert (found.verdict, found.broken, found.unsure) == (BROKEN, ["1/64 5min"], [])


def test_classes_that_are_too_small_to_show_it_do_not_keep_it_from_being_kept() -> None:
    found = promise_of(KEPT, [judged("1/64", KEPT), judged("1/64 5min", UNSURE, belongs=False)])
    assert (found.verdict, found.unsure) == (KEPT, ["1/64 5min"])
    assert promise_of(KEPT, [judged("1/64", UNSURE)]).verdict is UNSURE
    assert promise_of(UNSURE, [judged("1/64", KEPT)]).unsure == ["all"]
    assert promise_of(BROKEN, [judged("1/64", KEPT)]).broken == ["all"]


def test_a_mean_delay_has_bounds_of_student_over_the_pairs() -> None:
    found = delay([100.0, 200.0, 300.0], [110.0, 190.0, 330.0])
    # differences 10, -10, 30: mean 10, s = 20; half = 4.303 * 20 / sqrt(3)
    assert found.mean == pytest.approx(10)
    assert found.low == pytest.approx(10 - 49.687, abs=1e-3)
    assert found.high == pytest.approx(10 + 49.687, abs=1e-3)
    assert delay([1.0], [3.0]) == MeanDelay(mean=2.0, low=None, high=None)
