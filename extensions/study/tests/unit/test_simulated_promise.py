"""The promise to regular jobs, judged by pairs of simulated runs."""

from __future__ import annotations

import pytest

from tidemill.harvest.account.promise import PromiseState
from tidemill_study.simulation.experiment import ClassResult, PairedWaits, Study, too_little
from tidemill_study.simulation.outcome import RunSummary, classes_of
from tidemill_study.simulation.simulator import World
from tidemill_study.simulation.swf import Job

KEPT, BROKEN, UNSURE = PromiseState.KEPT, PromiseState.BROKEN, PromiseState.UNSURE


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
