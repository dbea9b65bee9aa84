"""How many nodes are busy over time, from the starts and ends of jobs in any order: 8 bytes a start or end.

Ten million jobs of a log need no list that is sorted as a whole: their starts and ends are kept by day, and only one
day is sorted at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise

DAY_S = 86_400
WIDTH_MAX = 1 << 40
_SHIFT = 42
_ZERO = 1 << 41
EMPTY_S_MIN = 7200
"""If a log shows the machine empty for longer than this while a job waited, it was out of service."""


class BusyNodes:
    """Starts and ends of jobs, read again as often as needed. Times are whole seconds, widths below WIDTH_MAX."""

    def __init__(self) -> None:
        self._days: dict[int, array[int]] = {}
        self.jobs = 0

    def add(self, start_s: int, end_s: int, width: int) -> None:
        """A job holds `width` nodes from its start to its end."""
        if end_s <= start_s or not 0 < width < WIDTH_MAX:
            return
        self._put(start_s, width)
        self._put(end_s, -width)
        self.jobs += 1

    def _put(self, at_s: int, change: int) -> None:
        day, second = divmod(at_s, DAY_S)
        known = self._days.get(day)
        if known is None:
            known = self._days[day] = array("q")
        known.append(second << _SHIFT | change + _ZERO)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(time, nodes busy from then on), ascending, where the number changes or a job follows another at once."""
        busy, mask = 0, (1 << _SHIFT) - 1
        for day in sorted(self._days):
            midnight = day * DAY_S
            last = -1
            for each in sorted(self._days[day]):
                second = each >> _SHIFT
                if second != last and last >= 0:
                    yield midnight + last, busy
                last = second
                busy += (each & mask) - _ZERO
            yield midnight + last, busy

    @property
    def span(self) -> tuple[int, int]:
        """The first start and the last end; (0, 0) without jobs."""
        if not self._days:
            return 0, 0
        first, last = min(self._days), max(self._days)
        return (
            first * DAY_S + (min(self._days[first]) >> _SHIFT),
            last * DAY_S + (max(self._days[last]) >> _SHIFT),
        )


def most_busy(timeline: BusyNodes) -> int:
    """The most nodes busy at once."""
    return max((busy for _, busy in timeline), default=0)


def overfull_share(timeline: BusyNodes, nodes: int) -> float:
    """Share of the time in which more nodes are busy than there are."""
    over_s = sum(later - at for (at, busy), (later, _) in pairwise(timeline) if busy > nodes)
    first, last = timeline.span
    return over_s / max(1, last - first)


def empty_spells(timeline: BusyNodes, waits: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, end) of spells over EMPTY_S_MIN without any job, through which a job waited.

    `waits`: (submission, start) of the jobs. A job counts that came in the first half of a spell and started after it:
    a machine that is merely not wanted is empty as well.
    """
    spells = [
        (at, later) for (at, busy), (later, _) in pairwise(timeline) if not busy and later - at > EMPTY_S_MIN
    ]
    if not spells:
        return []
    longest = max(later for _, later in spells)
    waited: set[int] = set()
    first_s = min(at for at, _ in spells)
    for submit_s, start_s in waits:
        if start_s < first_s or submit_s >= longest:
            continue
        for k, (at, later) in enumerate(spells):
            if k not in waited and submit_s < (at + later) // 2 and start_s >= later:
                waited.add(k)
        if len(waited) == len(spells):
            break
    return [spell for k, spell in enumerate(spells) if k in waited]
