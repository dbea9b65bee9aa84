"""Classes of durations: each holds what it should, and the median of a histogram is close to that of its values."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.figures.time_classes import CLASS_MAX, PER_DOUBLING, median_ms, upper_edge_ms


@given(st.integers(0, 60_000_000))
def test_a_duration_lies_in_its_class(ms: int) -> None:
    edge = upper_edge_ms(ms)
    assert edge >= ms
    assert edge <= max(1, ms) * 2 ** (1 / PER_DOUBLING)
    assert upper_edge_ms(edge) == edge, "an edge names its own class"


def test_the_last_class_holds_what_takes_longer() -> None:
    assert upper_edge_ms(10**12) == upper_edge_ms(10**9) == 2 ** (CLASS_MAX // PER_DOUBLING)


@pytest.mark.parametrize("seed", range(5))
def test_the_median_of_a_histogram_is_close_to_that_of_its_values(seed: int) -> None:
    values = [round(each) for each in (random.Random(seed + k).lognormvariate(8, 1) for k in range(1001))]
    found = median_ms(Counter(upper_edge_ms(each) for each in values))
    assert found == pytest.approx(statistics.median(values), rel=0.1)


def test_an_empty_histogram_has_no_median() -> None:
    assert median_ms({}) is None
    assert median_ms({8: 0}) is None
