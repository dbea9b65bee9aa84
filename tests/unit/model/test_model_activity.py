"""Activity agrees with a count of every payload in every interval, also after intervals were joined."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.figures.activity import Changes, Span, activity, add, coarser, counted, course, merge

SPANS = st.lists(
    st.builds(
        lambda start, length, share: Span(start, start + length, length * share // 4, length * share // 8),
        st.integers(0, 40_000_000), st.integers(0, 20_000_000), st.integers(1, 4),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


def changes_of(spans: list[Span]) -> Changes:
    found: Changes = {}
    for span in spans:
        add(found, span, done=1)
    return found


def busy_in(spans: list[Span], begin_s: int, end_s: int) -> Fraction:
    total = Fraction(0)
    for each in spans:
        length = each.ended_us - each.started_us
        inside = min(each.ended_us, end_s * 1_000_000) - max(each.started_us, begin_s * 1_000_000)
        if length and inside > 0:
            total += Fraction(each.busy_us * inside, length)
    return total


@given(SPANS, st.integers(0, 5))
def test_each_interval_has_what_ended_and_ran_in_it(spans: list[Span], times: int) -> None:
    changes = changes_of(spans)
    for _ in range(times):
        changes = coarser(changes)
    found = activity(changes, 2**times)
    assert counted([found]) == len(spans)
    for at in range(0, 64 - 64 % 2**times, 2**times):
        held = [each for each in found.intervals if each.at_s <= at]
        busy = held[-1].busy_us if held else 0
        off = 20 * len(spans)  # each payload's shares are whole microseconds
        assert abs(busy - busy_in(spans, at, at + 2**times)) <= off
        done = sum(each.done for each in found.intervals if each.at_s == at)
        assert done == sum(at <= each.ended_us // 1_000_000 < at + 2**times for each in spans)
    assert sum(line[2] for line in changes.values()) == 0


@given(SPANS, st.integers(1, 30), st.integers(0, 3))
def test_a_course_of_few_bins_has_the_same_sums(spans: list[Span], bins: int, times: int) -> None:
    changes = changes_of(spans)
    for _ in range(times):
        changes = coarser(changes)
    found = course([activity(changes, 2**times)], bins_max=bins)
    assert found is not None
    assert sum(found.done) == len(spans)
    assert len(found.done) <= bins + 1
    busy_us = sum(each.busy_us for each in spans)
    assert abs(sum(found.busy) * found.bin_s * 1e6 - busy_us) < 20 * len(spans) + 1
    assert min(found.busy) >= 0


@given(SPANS, SPANS)
def test_reports_add_up_in_any_order(one: list[Span], two: list[Span]) -> None:
    joined = changes_of(one)
    merge(joined, changes_of(two))
    assert joined == changes_of(two + one)
