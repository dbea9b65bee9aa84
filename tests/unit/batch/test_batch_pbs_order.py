"""Which job PBS may look at first."""

from __future__ import annotations

import pytest

from tidemill.batch.pbs.order import priority, read_formula

JOB = {
    "Priority": "7",
    "eligible_time": "00:10:00",
    "Resource_List": {"ncpus": "64", "walltime": "01:00:00", "mem": "2gb", "nodect": "4", "place": "scatter"},
}
QUEUE = {"Priority": "120"}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("ncpus", 64),
        ("5*ncpus + 0.05*walltime", 500),
        ("queue_priority + job_priority / 2", 123.5),
        ("eligible_time", 600),
        ("mem / 1024", 2048),
        ("-nodect ** 2", -16),
        ("min(nodect, 3) + sqrt(ncpus)", 11),
    ],
)
def test_a_formula_is_arithmetic_over_what_users_see(formula: str, value: float) -> None:
    assert priority(JOB, QUEUE, read_formula(formula)) == pytest.approx(value)


@pytest.mark.parametrize(
    "formula",
    ["", "fairshare_perc * 100", "__import__('os').getcwd()", "ncpus if 1 else 0", "((", "1/0", "9**9**9**9",
     "(" * 5000, "place", "[].append(1)"],
)  # fmt: skip
def test_what_cannot_be_read_leaves_the_priority_of_the_queue(formula: str) -> None:
    assert priority(JOB, QUEUE, read_formula(formula)) == 120


def test_a_queue_without_a_priority_has_none() -> None:
    assert priority(JOB, {}, None) == 0
