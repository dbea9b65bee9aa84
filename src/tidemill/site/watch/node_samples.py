"""What pilots measured on their nodes, until the server has it: single samples, and means over all nodes.

Held in memory only, and bounded: the samples of NODES_SHOWN_MAX nodes of an allocation and of SHOWN_MAX in all,
SAMPLES_MAX of them while the server is unreachable. They are lost when the agent ends: only charts depend on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import TidemillError
from tidemill.log import Log
from tidemill.model.metrics import Sample
from tidemill.model.metrics.nodes import QUANTITIES
from tidemill.model.state import AllocationState
from tidemill.node.journal import allocation_of
from tidemill.node.monitor import MonitorFiles, mounts_of, rounded, values_of
from tidemill.site.state.site_state import SiteState
from tidemill.wire.monitoring import (
    NODES_SHOWN_MAX,
    VIEW_SAMPLES_MAX,
    AllocationSamples,
    MountUse,
    NodePoint,
    NodeSeries,
)
from tidemill.wire.node import Sampled

SHOWN_MAX = 1_500
SAMPLES_MAX = 20_000
READ_S_MAX = 10.0
READ_S_MIN = 0.5
NODES_MAX = 50_000  #: whose last values are kept for the metrics
BINS_MAX = 16  #: intervals of one allocation whose mean is not complete yet
AHEAD_MAX = 2  #: intervals that a node's clock may be ahead of the agent's
STALE_INTERVALS = 3.0
Values = Sequence[float | None]
_log = Log("monitor")


class Means:
    """Means over nodes, by intervals of a fixed length. Pure."""

    def __init__(self, interval_us: int) -> None:
        self._interval_us = interval_us
        self._bins: dict[int, tuple[list[float], list[int]]] = {}
        self._closed = -1

    def add(self, at_us: int, values: Values, *, now_us: int) -> None:
        """Add a node's sample, unless its interval's mean was already reported or its time lies in the future."""
        number, present = at_us // self._interval_us, now_us // self._interval_us
        if self._closed > present + AHEAD_MAX:
            self._closed = -1  # the agent's clock was set back
        if not self._closed < number <= present + AHEAD_MAX:
            return
        if number not in self._bins and len(self._bins) >= BINS_MAX:
            return
        sums, counts = self._bins.setdefault(number, ([0.0] * len(QUANTITIES), [0] * len(QUANTITIES)))
        for place, value in enumerate(values):
            if value is not None:
                sums[place] += value
                counts[place] += 1

    def complete(self, now_us: int) -> Iterator[NodePoint]:
        """The means of intervals that ended at least one interval ago: what came meanwhile is in them."""
        for number in sorted(self._bins):
            if (number + 2) * self._interval_us > now_us:
                break
            sums, counts = self._bins.pop(number)
            self._closed = number
            yield NodePoint(
                (number + 1) * self._interval_us,
                self._interval_us,
                [rounded(total / n) if n else None for total, n in zip(sums, counts, strict=True)],
            )


class _Entry(NamedTuple):
    """What the server does not have yet; `node` empty: a mean."""

    number: int
    allocation: str
    node: str
    point: NodePoint
    cores: str = ""
    mounts: tuple[MountUse, ...] = ()


class UnsentSamples:
    """Samples that the server does not have yet, the oldest first; the oldest go where there are too many. Pure."""

    def __init__(self) -> None:
        self._waiting: deque[_Entry] = deque(maxlen=SAMPLES_MAX)
        self._number = 0
        self._sent = 0

    def add(self, allocation: str, node: str, point: NodePoint, sampled: Sampled | None = None) -> None:
        """Another sample, or mean."""
        self._number += 1
        cores = sampled.cores if sampled is not None else ""
        mounts = tuple(mounts_of(sampled)) if sampled is not None else ()
        self._waiting.append(_Entry(self._number, allocation, node, point, cores, mounts))

    def next_samples(self, totals: dict[str, int]) -> list[AllocationSamples]:
        """The next for the server, at most VIEW_SAMPLES_MAX. `totals`: nodes of each allocation."""
        chosen = list(islice(self._waiting, VIEW_SAMPLES_MAX))
        self._sent = chosen[-1].number if chosen else 0
        allocations: dict[str, dict[str, list[_Entry]]] = {}
        for entry in chosen:
            allocations.setdefault(entry.allocation, {}).setdefault(entry.node, []).append(entry)
        return [
            AllocationSamples(
                allocation=name,
                nodes_total=totals.get(name, 0),
                nodes=[_series(node, entries) for node, entries in nodes.items() if node],
                mean=[entry.point for entry in nodes.get("", ())],
            )
            for name, nodes in allocations.items()
        ]

    def received(self) -> None:
        """The server has what was taken last."""
        while self._waiting and self._waiting[0].number <= self._sent:
            self._waiting.popleft()


def _series(node: str, entries: list[_Entry]) -> NodeSeries:
    mounts = next((entry.mounts for entry in reversed(entries) if entry.mounts), ())
    return NodeSeries(
        node=node, points=[entry.point for entry in entries], cores=entries[-1].cores, mounts=list(mounts)
    )


class NodeSamples:
    """Reads what leads and pilots wrote, and keeps it for the server and for the metrics."""

    def __init__(
        self,
        fleets: Path,
        interval_s: float,
        state: Callable[[], SiteState],
        *,
        on_sample: Callable[[str], object] | None = None,
    ) -> None:
        """`fleets`: the directory of the fleets; `state`: of the site, now; `on_sample`: called with the allocation of
        each sample."""
        self._directory, self._state, self._on_sample = fleets, state, on_sample
        self.interval_s = interval_s
        self.unsent = UnsentSamples()
        self._files: dict[str, MonitorFiles] = {}
        self._means: dict[str, Means] = {}
        self._latest: dict[str, dict[str, tuple[float, Values]]] = {}  #: by allocation and node
        self._shown: dict[str, set[str]] = {}
        self._shown_total = 0
        self._next_s = 0.0
        self._total = 0

    def step(self, *, now_s: float, now_us: int) -> None:
        """Read what is new when it is time, by both clocks. Cost: an open of two files for each fleet with a lead."""
        if not self.interval_s or now_s < self._next_s:
            return
        self._next_s = now_s + min(READ_S_MAX, max(READ_S_MIN, self.interval_s / 3))
        open_fleets = [each.name for each in self._state().fleets.values() if each.finished_us is None]
        self._files = {
            name: self._files.get(name) or MonitorFiles(self._directory / name / "monitor")
            for name in open_fleets
        }
        for name, files in self._files.items():
            try:
                self._add(files.read(), now_s, now_us)
            except TidemillError as error:
                _log.warning("monitor.unreadable", fleet=name, reason=error.message)
        for allocation, means in self._means.items():
            for point in means.complete(now_us):
                self.unsent.add(allocation, "", point)
        self._forget(now_s)

    def _add(self, samples: Iterable[Sampled], now_s: float, now_us: int) -> None:
        running = self._state().allocations
        nodes = sum(map(len, self._latest.values()))
        for sampled in samples:
            name = allocation_of(sampled.p)
            if name not in running or not sampled.node:
                continue  # not from a node of a running allocation
            if self._on_sample is not None:
                self._on_sample(name)
            values = values_of(sampled)
            self._total += 1
            latest = self._latest.setdefault(name, {})
            if sampled.node in latest or nodes < NODES_MAX:
                nodes += sampled.node not in latest
                latest[sampled.node] = (now_s, values)
            self._means.setdefault(name, Means(int(self.interval_s * 1e6))).add(
                sampled.at_us, values, now_us=now_us
            )
            if self._is_shown(name, sampled.node):
                self.unsent.add(
                    name, sampled.node, NodePoint(sampled.at_us, sampled.over_us, values), sampled
                )

    def _is_shown(self, allocation: str, node: str) -> bool:
        shown = self._shown.setdefault(allocation, set())
        if node in shown:
            return True
        if len(shown) >= NODES_SHOWN_MAX or self._shown_total >= SHOWN_MAX:
            return False
        shown.add(node)
        self._shown_total += 1
        return True

    def _forget(self, now_s: float) -> None:
        """Nodes that have not been heard for some intervals, and allocations that have ended."""
        limit_s = now_s - STALE_INTERVALS * max(self.interval_s, READ_S_MAX)
        for name, latest in list(self._latest.items()):
            for node in [node for node, (at_s, _) in latest.items() if at_s < limit_s]:
                del latest[node]
            allocation = self._state().allocations.get(name)
            if not latest and (allocation is None or allocation.state is not AllocationState.ACTIVE):
                self._shown_total -= len(self._shown.pop(name, ()))
                del self._latest[name]
                self._means.pop(name, None)

    def next_samples(self) -> list[AllocationSamples]:
        """What the server does not have, for the next view."""
        return self.unsent.next_samples({name: len(latest) for name, latest in self._latest.items()})

    def samples(self) -> Iterator[Sample]:
        """Metrics: means over the nodes that were heard in the last intervals."""
        if not self.interval_s:
            return
        values = [values for latest in self._latest.values() for _, values in latest.values()]
        yield Sample("tidemill_node_samples_total", self._total)
        yield Sample("tidemill_node_sampled_nodes", len(values))
        for place, each in enumerate(QUANTITIES):
            known = [value for row in values if (value := row[place]) is not None]
            if known:
                yield Sample(each.metric, sum(known) / len(known), each.labels)
