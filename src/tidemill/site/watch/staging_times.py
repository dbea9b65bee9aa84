"""How long inputs took to reach nodes' memory, by the nodes of their allocation: sums since the
agent started. Decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from tidemill.model.figures.time_classes import upper_edge_ms
from tidemill.node.journal import allocation_of
from tidemill.wire.monitoring import StagingView
from tidemill.wire.node import Noted, Record

TOPIC = "stage"
WAYS = frozenset({"peer", "shared"})
LINES_MAX = 100
"""Different numbers of nodes and ways that are told apart: those that come first."""


class Sized(Protocol):
    """An allocation, as far as it matters here."""

    @property
    def nodes(self) -> int:
        """How many it has."""
        ...


class StagingTimes:
    """Takes pilots' records of files that came. `since_us`: when it began."""

    def __init__(self, since_us: int) -> None:
        self.since_us = since_us
        self._sums: dict[tuple[int, str], list[int]] = {}  #: files, bytes, ms, their squares, most ms
        self._times: dict[
            tuple[int, str], Counter[int]
        ] = {}  #: files by the upper edge of their time's class

    def on_records(self, records: Iterable[Record], allocations: Mapping[str, Sized]) -> None:
        """Add what pilots note; of an allocation that is not known nothing."""
        for record in records:
            if type(record) is Noted and record.topic == TOPIC and record.mode in WAYS:
                allocation, ms = allocations.get(allocation_of(record.p)), record.numbers.get("ms")
                if allocation is not None and ms is not None and ms >= 0:
                    self._add((allocation.nodes, record.mode), ms, record.numbers.get("bytes", 0))

    def _add(self, key: tuple[int, str], ms: int, size_bytes: int) -> None:
        if key not in self._sums and len(self._sums) >= LINES_MAX:
            return
        sums = self._sums.setdefault(key, [0] * 5)
        for k, value in enumerate((1, size_bytes, ms, ms * ms)):
            sums[k] += value
        sums[4] = max(sums[4], ms)
        self._times.setdefault(key, Counter())[upper_edge_ms(ms)] += 1

    def views(self) -> list[StagingView]:
        """The sums as they stand."""
        return [
            StagingView(
                nodes=nodes, way=way, since_us=self.since_us, files=files, bytes=size_bytes, ms=ms,
                square_ms=square, max_ms=most, times=sorted(self._times[nodes, way].items()),
            )
            for (nodes, way), (files, size_bytes, ms, square, most) in sorted(self._sums.items())
        ]  # fmt: skip
