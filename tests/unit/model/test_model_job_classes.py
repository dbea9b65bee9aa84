"""Names and bounds of the classes of regular jobs."""

from __future__ import annotations

import math

import pytest

from tidemill.model.figures.job_classes import (
    LENGTHS,
    LENGTHS_S,
    SIZES,
    UNKNOWN,
    length_bounds,
    length_class,
    length_text,
    size_class,
    size_edges,
    size_text,
)


def test_a_size_is_a_share_of_the_machine_with_its_upper_end() -> None:
    assert size_edges(4392) == [68, 274, 1098, 4392]
    assert [size_class(width, 4392) for width in (1, 68, 69, 274, 275, 1098, 1099, 4392)] == [
        *("1/64", "1/64", "1/16", "1/16", "1/4", "1/4", "1", "1")
    ]
    assert size_class(1, 16) == "1/16"  # a single node of a small machine is more than the smallest class
    assert [size_class(1, 6), size_class(5, 48), size_class(40, 48)] == ["1/4", "1/4", "1"]
    assert size_class(9000, 4392) == "1"  # a job that was wider than what a snapshot shows


def test_a_length_is_up_to_its_end() -> None:
    lengths = (0, 300, 300.5, 3600, 3601, 21_600, 21_601, math.inf)
    assert [length_class(each) for each in lengths] == [
        *("5min", "5min", "1h", "1h", "6h", "6h", "longer", "longer")
    ]


@pytest.mark.parametrize(("width", "nodes"), [(0, 100), (4, 0)])
def test_what_a_record_does_not_say_is_unknown(width: int, nodes: int) -> None:
    assert size_class(width, nodes) == UNKNOWN
    assert length_class(None) == UNKNOWN


def test_every_class_has_bounds_and_a_text() -> None:
    assert [length_bounds(each)[1] for each in LENGTHS] == [300, 3600, 21_600, None]
    assert [length_text(*length_bounds(each)) for each in LENGTHS] == [
        *("up to 5 min", "5 min to 1 h", "1 h to 6 h", "over 6 h")
    ]
    assert length_text(0, LENGTHS_S[1]) == "up to 1 h"
    assert length_text(0, None) == "any length"
    assert [size_text(each) for each in SIZES] == [
        "up to 1/64 of the machine",
        "over 1/64, up to 1/16 of the machine",
        "over 1/16, up to 1/4 of the machine",
        "over 1/4, up to all of the machine",
    ]
