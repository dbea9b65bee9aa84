"""Interval sets: what they print, what they refuse to read, what they cost."""

from __future__ import annotations

import pytest

from tidemill.model.intervals import IntervalSet


def test_neighbouring_intervals_become_one() -> None:
    done = IntervalSet([(0, 10), (20, 30), (10, 20)])

    assert list(done) == [(0, 30)]


def test_adding_tells_how_many_events_are_new() -> None:
    done = IntervalSet([(0, 10), (20, 30)])

    assert done.add(5, 25) == 10
    assert done.add(5, 25) == 0


def test_an_empty_range_changes_nothing() -> None:
    done = IntervalSet([(3, 5)])

    assert done.add(9, 9) == 0
    assert done.remove(4, 4) == 0
    assert done.missing(7, 7) == []
    assert done.covers(100, 100)
    assert list(done) == [(3, 5)]


def test_single_events_are_written_alone() -> None:
    assert str(IntervalSet([(0, 10), (12, 13), (20, 22)])) == "0-9,12,20-21"
    assert repr(IntervalSet([(4, 5)])) == "IntervalSet.parse('4')"


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1-x", "1--2", "9-3", "1,,x", " 1", "1.5"])
def test_what_is_no_interval_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="`"):
        IntervalSet.parse(text)


def test_the_empty_text_is_the_empty_set() -> None:
    assert not IntervalSet.parse("")
    assert str(IntervalSet()) == ""


def test_a_copy_is_independent() -> None:
    first = IntervalSet([(0, 5)])
    second = first.copy()
    second.add(5, 9)

    assert list(first) == [(0, 5)]
    assert first != second


def test_a_set_is_equal_to_no_other_thing_and_is_no_key() -> None:
    assert IntervalSet() != {}
    with pytest.raises(TypeError):
        hash(IntervalSet())


def test_a_billion_events_done_in_order_are_one_interval() -> None:
    done = IntervalSet()
    for first in range(0, 1_000_000_000, 1_000_000):
        done.add(first, first + 1_000_000)

    assert len(done) == 1_000_000_000
    assert list(done) == [(0, 1_000_000_000)]
