"""Interval sets behave as Python's sets of integers do, whatever is added and removed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidemill.model.intervals import IntervalSet

EVENT_MAX = 60
edges = st.tuples(st.integers(0, EVENT_MAX), st.integers(0, EVENT_MAX))
many = st.lists(edges, max_size=12)


def plain(intervals: list[tuple[int, int]]) -> set[int]:
    return {event for first, end in intervals for event in range(first, end)}


class AsSets(RuleBasedStateMachine):
    """Every operation on both, always equal."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = IntervalSet()
        self.theirs: set[int] = set()

    @rule(edge=edges)
    def add(self, edge: tuple[int, int]) -> None:
        events = set(range(*edge))
        assert self.ours.add(*edge) == len(events - self.theirs)
        self.theirs |= events

    @rule(edge=edges)
    def remove(self, edge: tuple[int, int]) -> None:
        events = set(range(*edge))
        assert self.ours.remove(*edge) == len(events & self.theirs)
        self.theirs -= events

    @rule(edge=edges)
    def ask(self, edge: tuple[int, int]) -> None:
        events = set(range(*edge))
        assert plain(self.ours.missing(*edge)) == events - self.theirs
        assert plain(self.ours.within(*edge)) == events & self.theirs
        assert self.ours.covers(*edge) == (events <= self.theirs)
        assert self.ours.touches(*edge) == bool(events & self.theirs)

    @invariant()
    def holds_the_same_events(self) -> None:
        assert {event for event in range(-1, EVENT_MAX + 2) if event in self.ours} == self.theirs
        assert len(self.ours) == len(self.theirs)
        assert bool(self.ours) == bool(self.theirs)

    @invariant()
    def intervals_ascend_with_gaps_between(self) -> None:
        ends = -1
        for first, end in self.ours:
            assert ends < first < end
            ends = end


TestAsSets = AsSets.TestCase


@given(many)
def test_what_is_written_is_read_again(intervals: list[tuple[int, int]]) -> None:
    written = IntervalSet(intervals)

    assert IntervalSet.parse(str(written)) == written


@given(many.flatmap(lambda intervals: st.tuples(st.just(intervals), st.permutations(intervals))))
def test_order_of_adding_does_not_matter(orders: tuple[list[tuple[int, int]], list[tuple[int, int]]]) -> None:
    one, other = orders

    assert IntervalSet(one) == IntervalSet(other)


@given(many, edges)
def test_missing_and_within_share_a_range_out(
    intervals: list[tuple[int, int]], edge: tuple[int, int]
) -> None:
    done = IntervalSet(intervals)
    pieces = sorted(done.missing(*edge) + done.within(*edge))

    assert plain(pieces) == set(range(*edge))
    assert sum(end - first for first, end in pieces) == max(0, edge[1] - edge[0])
