"""Sets of event numbers kept as half-open intervals, so that cost grows with gaps and not with events.

Pure. An interval `(first, end)` holds the events `first, first + 1, ..., end - 1`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

SINGLY_MAX = 1_000  #: intervals that are added or taken out one by one: each time, what stands behind moves


class IntervalSet:
    """A set of event numbers. `add` and `remove` cost O(log gaps) plus the gaps they touch.

    >>> done = IntervalSet([(0, 10), (20, 30)])
    >>> done.add(5, 25)
    10
    >>> str(done)
    '0-29'
    """

    __slots__ = ("_count", "_ends", "_firsts")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._count = 0  #: of events: asked far more often than it costs to keep
        for first, end in intervals:
            self.add(first, end)

    def add(self, first: int, end: int) -> int:
        """Add the events `first..end-1`; return how many of them were not in the set before."""
        if first >= end:
            return 0
        firsts, ends = self._firsts, self._ends
        if ends and first == ends[-1]:  # what a running job does almost always: grow at the end
            ends[-1] = end
            self._count += end - first
            return end - first
        low = bisect_left(ends, first)
        high = bisect_right(firsts, end)
        overlap = sum(max(0, min(end, ends[k]) - max(first, firsts[k])) for k in range(low, high))
        merged_first = min(first, firsts[low]) if low < high else first
        merged_end = max(end, ends[high - 1]) if low < high else end
        firsts[low:high] = [merged_first]
        ends[low:high] = [merged_end]
        self._count += end - first - overlap
        return end - first - overlap

    def remove(self, first: int, end: int) -> int:
        """Take the events `first..end-1` out; return how many of them were in the set."""
        if first >= end:
            return 0
        firsts, ends = self._firsts, self._ends
        low = bisect_right(ends, first)
        high = bisect_left(firsts, end)
        if low >= high:
            return 0
        removed = sum(min(end, ends[k]) - max(first, firsts[k]) for k in range(low, high))
        left = [(firsts[low], first)] if firsts[low] < first else []
        right = [(end, ends[high - 1])] if ends[high - 1] > end else []
        kept = left + right
        firsts[low:high] = [a for a, _ in kept]
        ends[low:high] = [b for _, b in kept]
        self._count -= removed
        return removed

    def add_all(self, other: IntervalSet) -> None:
        """Add the events of another set, at the cost of both sets' gaps at most."""
        if len(other._firsts) <= SINGLY_MAX:
            for first, end in other:
                self.add(first, end)
        else:
            joined = IntervalSet.union((self, other))
            self._firsts, self._ends, self._count = joined._firsts, joined._ends, joined._count

    def remove_all(self, other: IntervalSet) -> int:
        """Take the events of another set out, at the cost of this set's gaps at most; how many it had of them."""
        before = self._count
        if len(other._firsts) <= SINGLY_MAX:
            for first, end in other:
                self.remove(first, end)
        else:
            left = [piece for span in self for piece in other.missing(*span)]
            self._firsts = [first for first, _ in left]
            self._ends = [end for _, end in left]
            self._count = sum(self._ends) - sum(self._firsts)
        return before - self._count

    @classmethod
    def union(cls, sets: Iterable[IntervalSet]) -> IntervalSet:
        """The events that are in any of the sets."""
        firsts: list[int] = []
        ends: list[int] = []
        for each in sets:
            firsts += each._firsts
            ends += each._ends
        firsts.sort()  # runs in ascending order, which Python's sort merges
        ends.sort()
        # No set has what is between the end that is k-th and the first event that is k + 1st, if anything is.
        gaps = [(end, first) for end, first in zip(ends, firsts[1:], strict=False) if end < first]
        result = cls()
        if firsts:
            result._firsts = [firsts[0], *(first for _, first in gaps)]
            result._ends = [*(end for end, _ in gaps), ends[-1]]
            result._count = sum(result._ends) - sum(result._firsts)
        return result

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """The intervals of `first..end-1` that are not in the set, ascending."""
        gaps: list[tuple[int, int]] = []
        at = first
        for k in range(bisect_right(self._ends, first), bisect_left(self._firsts, end)):
            if self._firsts[k] > at:
                gaps.append((at, self._firsts[k]))
            at = self._ends[k]
        if at < end:
            gaps.append((at, end))
        return gaps

    def within(self, first: int, end: int) -> list[tuple[int, int]]:
        """The intervals of the set inside `first..end-1`, ascending."""
        if first >= end:
            return []
        return [
            (max(first, self._firsts[k]), min(end, self._ends[k]))
            for k in range(bisect_right(self._ends, first), bisect_left(self._firsts, end))
        ]

    def touches(self, first: int, end: int) -> bool:
        """Whether any event of `first..end-1` is in the set."""
        return first < end and bisect_right(self._ends, first) < bisect_left(self._firsts, end)

    def exceeds(self, other: IntervalSet, first: int, end: int) -> bool:
        """Whether any event of `first..end-1` is in this set and not in the other. Looks from the end backwards, where
        work is left; costs O(log gaps) for each interval that it finds in both."""
        while first < end:
            mine = bisect_left(self._firsts, end) - 1
            if mine < 0 or self._ends[mine] <= first:
                return False
            end = min(end, self._ends[mine])
            theirs = bisect_left(other._firsts, end) - 1
            if theirs < 0 or other._ends[theirs] < end:
                return True
            end = other._firsts[theirs]
        return False

    def start_of(self, event: int) -> int | None:
        """The first event of the interval that has this event; None if the set does not have it."""
        k = bisect_right(self._firsts, event) - 1
        return self._firsts[k] if k >= 0 and event < self._ends[k] else None

    def covers(self, first: int, end: int) -> bool:
        """Whether every event of `first..end-1` is in the set."""
        if first >= end:
            return True
        k = bisect_right(self._firsts, first) - 1
        return k >= 0 and self._ends[k] >= end

    @property
    def gaps(self) -> int:
        """The number of intervals: what the set costs."""
        return len(self._firsts)

    def copy(self) -> IntervalSet:
        """An independent copy."""
        other = IntervalSet()
        other._firsts = self._firsts.copy()
        other._ends = self._ends.copy()
        other._count = self._count
        return other

    @classmethod
    def parse(cls, text: str) -> IntervalSet:
        """Read what `str` wrote: `0-9,12,20-29` (both ends included); the empty text is the empty set.

        Raises ValueError that quotes the piece which is not an interval.
        """
        result = cls()
        firsts, ends = result._firsts, result._ends
        reached = -1  # the end of the last interval: what `str` wrote has a gap before each next one
        for piece in filter(None, text.split(",")):
            first_text, _, last_text = piece.partition("-")
            if not first_text.isdecimal() or not (last_text.isdecimal() or piece == first_text):
                raise ValueError(f"`{piece}` is not an interval such as `0-9` or `12`")
            first, end = int(first_text), int(last_text or first_text) + 1
            if end <= first:
                raise ValueError(f"`{piece}` ends before it starts")
            if first > reached:
                firsts.append(first)
                ends.append(end)
                result._count += end - first
                reached = end
            else:
                result.add(first, end)
                reached = ends[-1]
        return result

    def __contains__(self, event: int) -> bool:
        k = bisect_right(self._firsts, event) - 1
        return k >= 0 and event < self._ends[k]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    def __len__(self) -> int:
        """The number of events, not of intervals."""
        return self._count

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return self._firsts == other._firsts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __str__(self) -> str:
        spans = zip(self._firsts, self._ends, strict=True)
        return ",".join([str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in spans])

    def __repr__(self) -> str:
        return f"IntervalSet.parse({str(self)!r})"
