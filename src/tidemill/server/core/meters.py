"""Counters and histograms of the running server, for threads. What they are called stands in `model/metrics`."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator

from tidemill.model.metrics import OTHER, SERVER, Sample

_Key = tuple[str, tuple[tuple[str, str], ...]]


class Meters:
    """The server's counters. A label's value that is not in its list, or one too many, counts as `other`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[_Key, float] = {}
        self._times: dict[_Key, list[float]] = {}  #: counts per bucket, then beyond the last, then the sum
        self._values: dict[tuple[str, str], set[str]] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        key = self._key(name, labels)
        with self._lock:
            self._totals[key] = self._totals.get(key, 0.0) + amount

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Put a duration into a histogram."""
        key, buckets = self._key(name, labels), SERVER[name].buckets
        with self._lock:
            found = self._times.get(key)
            if found is None:
                found = self._times[key] = [0.0] * (len(buckets) + 2)
            found[bisect_left(buckets, seconds)] += 1
            found[-1] += seconds

    def _key(self, name: str, labels: dict[str, str]) -> _Key:
        told = []
        for each, rule in SERVER[name].labels.items():
            value = labels[each]
            if rule.values:
                value = value if value in rule.values else OTHER
            else:
                with self._lock:
                    seen = self._values.setdefault((name, each), set())
                    if value not in seen and len(seen) >= rule.most - 1:
                        value = OTHER
                    seen.add(value)
            told.append((each, value))
        return name, tuple(told)

    def samples(self) -> Iterator[Sample]:
        """What was counted so far."""
        with self._lock:
            totals = list(self._totals.items())
            times = [(key, list(counts)) for key, counts in self._times.items()]
        for (name, labels), value in totals:
            yield Sample(name, value, labels)
        for (name, labels), counts in times:
            below = 0.0
            for bound, count in zip(SERVER[name].buckets, counts, strict=False):
                below += count
                yield Sample(f"{name}_bucket", below, (*labels, ("le", f"{bound:g}")))
            total = below + counts[-2]
            yield Sample(f"{name}_bucket", total, (*labels, ("le", "+Inf")))
            yield Sample(f"{name}_sum", counts[-1], labels)
            yield Sample(f"{name}_count", total, labels)
