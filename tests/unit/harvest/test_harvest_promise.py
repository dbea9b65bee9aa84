"""The promise to regular jobs: what an interval shows, by hand."""

from __future__ import annotations

import pytest

from tidemill.harvest.simulation.experiment import ClassResult, PairedWaits, Study, too_little
from tidemill.harvest.simulation.outcome import MeanDelay, RelativeChange, RunSummary, classes_of, delay
from tidemill.harvest.simulation.promise import (
    Judged,
    PromiseState,
    at_best,
    class_bound,
    class_verdict,
    mean_bound,
    mean_verdict,
    promise_of,
)
from tidemill.harvest.simulation.simulator import World
from tidemill.harvest.simulation.swf import Job

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


def classes(jobs: list[Job], nodes: int, mean_s: tuple[float, float]) -> list[ClassResult]:
    """All classes of three pairs of runs, in which each of them waits `mean_s` without us and with us."""
    found = classes_of(jobs, nodes)
    number = 1 + len(found.sizes) + len(found.lengths) + len(found.limits) + len(found.both)

    def runs(mean: float) -> list[RunSummary]:
        return [
            RunSummary(
                idle_s=1, capacity_s=1, held_s=1, useful_s=1, starts=1, cancels=1, calls=1, kept_s=0, cpu_s=0,
                waits_s=[mean + k] * number, slowdowns=[1.0] * number,
            )
            for k in range(3)
        ]  # fmt: skip

    by = PairedWaits(runs(mean_s[0]), runs(mean_s[1]), nodes=nodes).results(found)
    return [*by.sizes, *by.lengths, *by.limits, *by.both]


def test_only_jobs_over_a_quarter_of_the_machine_have_the_bound_of_the_largest() -> None:
    few = [Job(0, 600, 1 + k % 32, 600) for k in range(150)]  # too few for classes: one of 1 to 32 nodes
    many = 4 * [job for job in few if job.width <= 16] + 4 * [job for job in few if job.width > 16]

    assert {(each.bound.text, each.verdict) for each in classes(few, 64, (1000, 1015))} == {
        ("2 % or 15 s", KEPT)
    }
    found = classes(many, 64, (1000, 1015))
    wide = [each for each in found if each.nodes_min > 16]
    # as a class of size, and as one of size and any length
    assert [(each.bound.text, each.verdict) for each in wide] == [("1 %", BROKEN)] * 2
    assert {(each.bound.text, each.verdict) for each in found if each.nodes_min <= 16} == {
        ("2 % or 15 s", KEPT)
    }


def test_a_log_of_few_jobs_keeps_no_promise() -> None:
    few = [Job(0, 600, 1, 600)] * 29

    assert {each.verdict for each in classes(few, 64, (1000, 990))} == {UNSURE}
    assert {each.verdict for each in classes(few, 64, (1000, 1100))} == {BROKEN}
    assert {each.verdict for each in classes([*few, *few[:1]], 64, (1000, 990))} == {KEPT}


def test_there_is_no_verdict_where_submissions_are_not_known() -> None:
    assert {at_best(each, jobs=1000, is_judged=False) for each in PromiseState} == {UNJUDGED}
    found = promise_of(UNJUDGED, [judged("1/64", UNJUDGED), judged("1/64 5min", UNJUDGED, belongs=False)])
    assert (found.verdict.text, found.broken, found.unsure) == ("no verdict", [], [])


@pytest.mark.parametrize(
    ("jobs", "days", "warning"),
    [(99, 20, "99 jobs are too little"), (100, 13, "13.0 days are too little"), (1, 0.5, "1 job and 0.5 days"),
     (100, 14, "")],
)  # fmt: skip
def test_too_few_jobs_or_days_are_warned_of(jobs: int, days: float, warning: str) -> None:
    study = Study(
        world=World(nodes=4, horizon_s=days * 86_400), jobs=[Job(0, 60, 1, 60)] * jobs, policies=[], seeds=1,
        replicas=1, jitter_s=0,
    )  # fmt: skip
    assert warning in " ".join(too_little(study))
    assert bool(too_little(study)) is bool(warning)


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
