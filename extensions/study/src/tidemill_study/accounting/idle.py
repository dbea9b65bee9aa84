"""Idle nodes of a machine's past, as a guest would see them: holes by length, by hour of the week, and over time. Pure.

The k-th idle node is a hole from the moment at which at least k nodes are idle until fewer are. A guest who starts on
every idle node and, when some are needed, releases those that it took last, gets exactly these holes; names of nodes,
which most logs lack, do not matter. Outages of the whole machine are neither idle nor capacity, and end holes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tidemill.batch.log_times import LogClock

EDGES_S = (0, 300, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400)
"""Holes are counted by length from each of these to the next; the last class has no end."""
STEPS = 120
"""Bins of the course of idle nodes over the whole time."""
HOUR_S = 3600


class HoleClass(msgspec.Struct, frozen=True, kw_only=True):
    """Holes of `from_s` to `to_s` (None = no bound): how many, and their node-hours."""

    from_s: int
    to_s: int | None
    holes: int
    node_h: float


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time between `start_s` and `end_s`. `by_hour`: mean idle nodes in each hour of the day, None = never open.

    `by_weekday`: the same for each hour since Monday 00:00. `course`: mean idle nodes in each of STEPS equal bins.
    """

    start_s: int
    end_s: int
    nodes: int
    idle_node_h: float
    capacity_node_h: float
    outage_h: float
    holes: list[HoleClass]
    by_hour: list[float | None]
    by_weekday: list[float | None]
    course: list[float]

    @property
    def share(self) -> float | None:
        """Idle share of the capacity."""
        return self.idle_node_h / self.capacity_node_h if self.capacity_node_h > 0 else None


class Holes:
    """Holes that are open, the newest on top, and sums over those that have closed."""

    def __init__(self) -> None:
        self._open: list[tuple[int, int]] = []  # (since, nodes)
        self._idle = 0
        self.counts = [0] * len(EDGES_S)
        self.node_s = [0] * len(EDGES_S)

    def change(self, at_s: int, idle: int) -> None:
        """Record that `idle` nodes are idle from `at_s` on."""
        if idle > self._idle:
            self._open.append((at_s, idle - self._idle))
            self._idle = idle
        while self._idle > idle:
            since_s, nodes = self._open.pop()
            gone = min(nodes, self._idle - idle)
            self._idle -= gone
            if gone < nodes:
                self._open.append((since_s, nodes - gone))
            self._close(at_s - since_s, gone)

    def _close(self, length_s: int, nodes: int) -> None:
        if length_s <= 0:
            return
        k = 0
        while k + 1 < len(EDGES_S) and length_s >= EDGES_S[k + 1]:
            k += 1
        self.counts[k] += nodes
        self.node_s[k] += nodes * length_s

    def classes(self) -> list[HoleClass]:
        """The sums by length."""
        return [
            HoleClass(
                from_s=edge,
                to_s=EDGES_S[k + 1] if k + 1 < len(EDGES_S) else None,
                holes=self.counts[k],
                node_h=self.node_s[k] / HOUR_S,
            )
            for k, edge in enumerate(EDGES_S)
        ]


def idle_of(
    busy: Iterable[tuple[int, int]],
    *,
    nodes: int,
    span: tuple[int, int],
    outages: Sequence[tuple[int, int]] = (),
    clock: LogClock | None = None,
) -> Idle:
    """What was idle of `nodes` in a span; `busy`: (time, busy nodes from then on), ascending. Times in seconds."""
    clock = clock or LogClock()
    start_s, end_s = span
    holes = Holes()
    week = _Week(clock, nodes)
    step_s = max(1.0, (end_s - start_s) / STEPS)
    course = [0.0] * STEPS
    idle_s = capacity_s = 0
    for at, later, free, is_open in _stretches(busy, nodes=nodes, span=span, outages=outages):
        holes.change(at, free if is_open else 0)
        if not is_open:
            continue
        length_s = later - at
        idle_s += free * length_s
        capacity_s += nodes * length_s
        week.add(at, later, free)
        _spread(course, (at - start_s) / step_s, (later - start_s) / step_s, free)
    holes.change(end_s, 0)
    return Idle(
        start_s=start_s,
        end_s=end_s,
        nodes=nodes,
        idle_node_h=idle_s / HOUR_S,
        capacity_node_h=capacity_s / HOUR_S,
        outage_h=max(0, end_s - start_s - capacity_s / nodes) / HOUR_S,
        holes=holes.classes(),
        by_hour=week.by_hour(),
        by_weekday=week.by_weekday(),
        course=course,
    )


def _stretches(
    busy: Iterable[tuple[int, int]], *, nodes: int, span: tuple[int, int], outages: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int, bool]]:
    """(start, end, idle nodes, in service?) of stretches in which nothing changes, cut at outages."""
    at, end_s = span
    service = _Service(outages, at)
    free = nodes
    for when, number in busy:
        if when >= end_s:
            break
        if when > at:
            yield from service.cut(at, when, free)
            at = when
        free = max(0, nodes - number)
    if end_s > at:
        yield from service.cut(at, end_s, free)


class _Service:
    """Whether the machine is in service, from a time on."""

    def __init__(self, outages: Sequence[tuple[int, int]], start_s: int) -> None:
        self._edges = deque(sorted(edge for outage in outages for edge in outage))
        self._is_open = True
        while self._edges and self._edges[0] <= start_s:
            self._turn()

    def _turn(self) -> None:
        self._edges.popleft()
        self._is_open = not self._is_open

    def cut(self, first: int, last: int, free: int) -> list[tuple[int, int, int, bool]]:
        """A stretch in its parts in service and out of it. Stretches come one after the other."""
        if not self._edges or self._edges[0] >= last:
            return [(first, last, free, self._is_open)]
        parts = []
        while self._edges and self._edges[0] < last:
            edge = self._edges[0]
            if edge > first:
                parts.append((first, edge, free, self._is_open))
            first = edge
            self._turn()
        return [*parts, (first, last, free, self._is_open)]


def _spread(bins: list[float], first: float, last: float, value: int) -> None:
    """Add a value that holds between two places, in bins of length 1, to their means."""
    k = min(len(bins) - 1, int(first))
    while first < last and k < len(bins):
        stop = last if k == len(bins) - 1 else min(last, k + 1)
        bins[k] += value * (stop - first)
        first, k = stop, k + 1


class _Week:
    """Idle node-seconds and seconds in service by hour of the week."""

    def __init__(self, clock: LogClock, nodes: int) -> None:
        self._clock = clock
        self._idle_s = [0] * 168
        self._open_s = [0] * 168
        self._hour = (-1, 0)

    def add(self, at: int, later: int, free: int) -> None:
        """Nodes that are idle between two times. Zones differ by quarters of an hour: those are the smallest step."""
        while at < later:
            quarter = at // 900
            if quarter != self._hour[0]:
                self._hour = (quarter, self._clock.hour_of_week(at))
            stop = min(later, (quarter + 1) * 900)
            self._idle_s[self._hour[1]] += free * (stop - at)
            self._open_s[self._hour[1]] += stop - at
            at = stop

    def by_weekday(self) -> list[float | None]:
        return [
            idle / open_s if open_s else None for idle, open_s in zip(self._idle_s, self._open_s, strict=True)
        ]

    def by_hour(self) -> list[float | None]:
        found: list[float | None] = []
        for hour in range(24):
            open_s = sum(self._open_s[hour::24])
            found.append(sum(self._idle_s[hour::24]) / open_s if open_s else None)
        return found


def busy_of_tide(changes: Iterable[tuple[float, int, int]]) -> list[tuple[int, int]]:
    """(time, busy nodes) of a simulated machine's (time, nodes of regular jobs, nodes of guests), without guests."""
    found: list[tuple[int, int]] = []
    for at, regular, _ in changes:
        if found and found[-1][0] == int(at):
            found[-1] = (int(at), regular)
        else:
            found.append((int(at), regular))
    return found
