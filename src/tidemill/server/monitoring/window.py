"""The last samples of each allocation's nodes, as sites sent them: in memory only, bounded, lost with a restart.

A standby of a pair hears no sites, so it has none. For people and stress tests: no decision depends on it.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemill.model.metrics.nodes import QUANTITIES
from tidemill.wire.monitoring import (
    NODES_SHOWN_MAX,
    AllocationSamples,
    MountUse,
    NodePoint,
    NodeSeries,
    SampleReply,
)

SERIES_MAX = 240  #: samples of a node that are kept: two hours at 30 s
POINTS_MAX = 150_000  #: of all sites together, about 40 MB; what was heard of longest ago goes first
ALLOCATIONS_MAX = 5_000
MOUNTS_MAX = 8
TEXT_MAX = 255
CORES_MAX = 128
AT_MAX = 1 << 60
VALUE_MAX = 1e30
MEAN = ""  #: the series of all nodes' means
_UNKNOWN = math.nan


class _Kept(NamedTuple):
    """A sample; `number` is in the order of arrival. Values as floats of 4 bytes: they have four digits."""

    number: int
    at_us: int
    over_us: int
    values: array[float]


class _Series:
    def __init__(self) -> None:
        self.points: deque[_Kept] = deque(maxlen=SERIES_MAX)
        self.cores = ""
        self.mounts: list[MountUse] = []


class _Allocation:
    def __init__(self) -> None:
        self.nodes_total = 0
        self.series: dict[str, _Series] = {}

    @property
    def points(self) -> int:
        return sum(len(each.points) for each in self.series.values())


class SampleWindow:
    """Thread-safe."""

    def __init__(self, *, points_max: int = POINTS_MAX, allocations_max: int = ALLOCATIONS_MAX) -> None:
        self._points_max, self._allocations_max = points_max, allocations_max
        self._lock = threading.Lock()
        self._allocations: dict[tuple[str, str], _Allocation] = {}  #: those heard of last at the end
        self._points = 0
        self._number = 0

    def add(self, site: str, samples: Iterable[AllocationSamples]) -> None:
        """What a site sent. What is too much or malformed is left out."""
        with self._lock:
            for sent in samples:
                if not _is_text(sent.allocation):
                    continue
                key = (site, sent.allocation)
                allocation = self._allocations.pop(key, None) or _Allocation()
                self._allocations[key] = allocation
                allocation.nodes_total = min(max(0, sent.nodes_total), AT_MAX)
                self._points -= allocation.points
                self._add(allocation, NodeSeries(node=MEAN, points=sent.mean))
                for series in sent.nodes:
                    if series.node and _is_text(series.node):
                        self._add(allocation, series)
                self._points += allocation.points
            while len(self._allocations) > self._allocations_max or (
                self._points > self._points_max and len(self._allocations) > 1
            ):
                oldest = self._allocations.pop(next(iter(self._allocations)))
                self._points -= oldest.points

    def _add(self, allocation: _Allocation, sent: NodeSeries) -> None:
        series = allocation.series.get(sent.node)
        if series is None:
            if len(allocation.series) > NODES_SHOWN_MAX:
                return
            series = allocation.series[sent.node] = _Series()
        for point in sent.points[-SERIES_MAX:]:
            if 0 <= point.at_us < AT_MAX and 0 < point.over_us < AT_MAX:
                self._number += 1
                series.points.append(_Kept(self._number, point.at_us, point.over_us, _packed(point.values)))
        if sent.cores.isascii() and sent.cores.isdigit() and len(sent.cores) <= CORES_MAX:
            series.cores = sent.cores
        if sent.mounts:
            series.mounts = [_bounded(each) for each in sent.mounts[:MOUNTS_MAX] if _is_text(each.mount)]

    def reply(self, site: str, allocation: str, *, since: int = 0) -> SampleReply:
        """What came after `since`, the `until` of an earlier reply; 0 = all that is kept. Each series by its time."""
        with self._lock:
            kept = self._allocations.get((site, allocation)) or _Allocation()
            nodes = [
                NodeSeries(node=name, points=found, cores=each.cores, mounts=each.mounts)
                for name, each in sorted(kept.series.items())
                if name != MEAN and (found := _points(each.points, since))
            ]
            mean = _points(kept.series[MEAN].points, since) if MEAN in kept.series else []
            return SampleReply(
                site=site, allocation=allocation, quantities=[each.name for each in QUANTITIES],
                units=[each.unit for each in QUANTITIES], nodes_total=kept.nodes_total, nodes=nodes, mean=mean,
                until=self._number,
            )  # fmt: skip

    def has(self, site: str) -> set[str]:
        """Allocations of a site of which there are samples."""
        with self._lock:
            return {allocation for owner, allocation in self._allocations if owner == site}


def _points(kept: Iterable[_Kept], since: int) -> list[NodePoint]:
    found = [
        NodePoint(each.at_us, each.over_us, _unpacked(each.values)) for each in kept if each.number > since
    ]
    return sorted(found, key=lambda point: point.at_us)


def _packed(values: Sequence[float | None]) -> array[float]:
    def one(value: float | None) -> float:
        return _UNKNOWN if value is None or not 0 <= value <= VALUE_MAX else value

    return array("f", [one(value) for value in values[: len(QUANTITIES)]])


def _unpacked(values: array[float]) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in values]


def _bounded(use: MountUse) -> MountUse:
    rates = _packed([
        use.ops_per_s, use.retransmissions_per_s, use.read_bytes_per_s, use.write_bytes_per_s, use.rtt_s,
        use.opens_per_s, use.closes_per_s,
    ])  # fmt: skip
    return MountUse(use.mount, *_unpacked(rates))


def _is_text(text: str) -> bool:
    return 0 < len(text) <= TEXT_MAX and text.isprintable()
