"""What `bench/trace.py` makes of its rounds."""

from __future__ import annotations

import statistics

import pytest
from bench.trace import AGAIN, BARE, Rounds, Took, rank_outside


def rounds(**walls: list[float]) -> Rounds:
    """Of ways with these wall times; CPU times are half of them."""
    return Rounds({way: [Took(wall_s, wall_s / 2) for wall_s in runs] for way, runs in walls.items()})


def test_a_machine_that_is_slower_for_some_rounds_changes_no_ratio() -> None:
    slower = [1.0, 3.0, 1.5, 1.0, 2.0]
    it = rounds(**{BARE: slower, AGAIN: slower, "trace": [1.1 * each for each in slower]})
    assert it.ratios("trace") == pytest.approx([1.1] * 5)
    assert it.noise("trace") == pytest.approx(0)
    assert it.least_wall("trace") == it.least_cpu("trace") == pytest.approx(1.1)


def test_a_ratio_is_to_both_bare_runs_of_its_round() -> None:
    it = rounds(**{BARE: [1.0, 2.0, 1.0], AGAIN: [3.0, 2.0, 1.0], "strace": [4.0, 4.0, 4.0]})
    assert it.ratios("strace") == [2.0, 2.0, 4.0]
    assert statistics.median(it.ratios("strace")) == 2.0
    assert it.noise("strace") == 1.0, "of few rounds the interval is all of them"


@pytest.mark.parametrize(("count", "outside"), [(1, 0), (5, 0), (6, 0), (9, 1), (20, 5), (100, 39)])
def test_values_outside_of_the_interval_of_a_median_are_those_of_the_sign_test(
    count: int, outside: int
) -> None:
    # tables of the sign test, two sides, 5 %
    assert rank_outside(count) == outside
