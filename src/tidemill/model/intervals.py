"""Sets of event numbers kept as half-open intervals, so that cost grows with gaps and not with events.

Pure. An interval `(first, end)` holds the events `first, first + 1, ..., end - 1`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class IntervalSet:
    """A set of event numbers. `add` and `remove` cost O(log gaps) plus the gaps they touch.

    >>> done = IntervalSet([(0, 10), (20, 30)])
    >>> done.add(5, 25)
    10
    >>> str(done)
    '0-29'
    """

    __slots__ = ("_ends", "_firsts")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in intervals:
            self.add(first, end)

    def add(self, first: int, end: int) -> int:
        """Add the events `first..end-1`; return how many of them were not in the set before."""
        if first >= end:
            return 0
        firsts, ends = self._firsts, self._ends
        if ends and first == ends[-1]:  # what a running job does almost always: grow at the end
            ends[-1] = end
            return end - first
        low = bisect_left(ends, first)
        high = bisect_right(firsts, end)
        overlap = sum(max(0, min(end, ends[k]) - max(first, firsts[k])) for k in range(low, high))
        merged_first = min(first, firsts[low]) if low < high else first
        merged_end = max(end, ends[high - 1]) if low < high else end
        firsts[low:high] = [merged_first]
        ends[low:high] = [merged_end]
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
        return removed

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

    def covers(self, first: int, end: int) -> bool:
        """Whether every event of `first..end-1` is in the set."""
        if first >= end:
            return True
        k = bisect_right(self._firsts, first) - 1
        return k >= 0 and self._ends[k] >= end

    def copy(self) -> IntervalSet:
        """An independent copy."""
        other = IntervalSet()
        other._firsts = self._firsts.copy()
        other._ends = self._ends.copy()
        return other

    @classmethod
    def parse(cls, text: str) -> IntervalSet:
        """Read what `str` wrote: `0-9,12,20-29` (both ends included); the empty text is the empty set.

        Raises ValueError that quotes the piece which is not an interval.
        """
        result = cls()
        for piece in filter(None, text.split(",")):
            first, _, last = piece.partition("-")
            if not first.isdecimal() or not (last.isdecimal() or piece == first):
                raise ValueError(f"`{piece}` is not an interval such as `0-9` or `12`")
            if int(last or first) < int(first):
                raise ValueError(f"`{piece}` ends before it starts")
            result.add(int(first), int(last or first) + 1)
        return result

    def __contains__(self, event: int) -> bool:
        k = bisect_right(self._firsts, event) - 1
        return k >= 0 and event < self._ends[k]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    def __len__(self) -> int:
        """The number of events, not of intervals."""
        return sum(self._ends) - sum(self._firsts)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return self._firsts == other._firsts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __str__(self) -> str:
        return ",".join(str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in self)

    def __repr__(self) -> str:
        return f"IntervalSet.parse({str(self)!r})"
