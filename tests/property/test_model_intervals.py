"""Interval sets behave as Python's sets of integers do, whatever is added and removed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidemill.model.intervals import SINGLY_MAX, IntervalSet

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

    @rule(intervals=many)
    def add_all(self, intervals: list[tuple[int, int]]) -> None:
        self.ours.add_all(IntervalSet(intervals))
        self.theirs |= plain(intervals)

    @rule(intervals=many)
    def remove_all(self, intervals: list[tuple[int, int]]) -> None:
        assert self.ours.remove_all(IntervalSet(intervals)) == len(plain(intervals) & self.theirs)
        self.theirs -= plain(intervals)

    @rule(intervals=many, edge=edges)
    def compare(self, intervals: list[tuple[int, int]], edge: tuple[int, int]) -> None:
        other = IntervalSet(intervals)
        assert self.ours.exceeds(other, *edge) == bool(set(range(*edge)) & self.theirs - plain(intervals))
        union = IntervalSet.union((self.ours, IntervalSet(), other))
        assert union == IntervalSet([*self.ours, *intervals])
        assert len(union) == len(self.theirs | plain(intervals))

    @rule(edge=edges)
    def ask(self, edge: tuple[int, int]) -> None:
        events = set(range(*edge))
        assert plain(self.ours.missing(*edge)) == events - self.theirs
        assert plain(self.ours.within(*edge)) == events & self.theirs
        assert self.ours.covers(*edge) == (events <= self.theirs)
        assert self.ours.touches(*edge) == bool(events & self.theirs)
        start = self.ours.start_of(edge[0])
        assert (start is not None) == (edge[0] in self.theirs)
        assert start is None or (self.ours.covers(start, edge[0] + 1) and start - 1 not in self.theirs)

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


@given(st.lists(edges.map(sorted), max_size=12))
def test_intervals_are_read_in_any_order_and_joined(intervals: list[list[int]]) -> None:
    text = ",".join(f"{first}-{last}" for first, last in intervals)

    assert IntervalSet.parse(text) == IntervalSet((first, last + 1) for first, last in intervals)


@st.composite
def scattered(draw: st.DrawFn) -> list[tuple[int, int]]:
    """More intervals than are added or taken out one by one."""
    first, width = draw(st.integers(0, 30)), draw(st.integers(1, 4))
    stride = width + draw(st.integers(1, 5))
    return [
        (first + k * stride, first + k * stride + width) for k in range(SINGLY_MAX + draw(st.integers(1, 50)))
    ]


@settings(max_examples=30)
@given(scattered(), scattered())
def test_many_intervals_are_added_and_taken_out_as_few_are(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    added, removed, events = IntervalSet(one), IntervalSet(one), IntervalSet(other)
    added.add_all(events)

    assert added == IntervalSet([*one, *other])
    assert len(added) == len(plain(one) | plain(other))
    assert removed.remove_all(events) == len(plain(one) & plain(other))
    assert plain(list(removed)) == plain(one) - plain(other)
    assert len(removed) == len(plain(one) - plain(other))


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
