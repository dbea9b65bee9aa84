"""Sums that describe a distribution without its values: number, mean, deviation, extremes, and counts in bins. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

BINS_PER_DECADE = 60


class Spread:
    """A distribution, from sums that add up. Bins are logarithmic, 60 to a decade; values of 0 and less are apart."""

    __slots__ = ("bins", "count", "high", "low", "scatter", "total", "zeros")

    def __init__(self) -> None:
        self.count = self.zeros = 0
        self.total = self.scatter = 0.0
        self.low, self.high = math.inf, -math.inf
        self.bins: dict[int, int] = defaultdict(int)

    def add(self, sums: PieceSums) -> None:
        """Add what a piece of the values sums up to."""
        if not sums.number:
            return
        if self.count:  # as Chan, Golub and LeVeque add variances (1979): sums of squares would cancel
            apart = sums.total / sums.number - self.total / self.count
            self.scatter += apart * apart * self.count * sums.number / (self.count + sums.number)
        self.count += sums.number
        self.total += sums.total
        self.scatter += sums.scatter
        self.low, self.high = min(self.low, sums.low), max(self.high, sums.high)

    def put(self, index: int | None, count: int) -> None:
        """Add values of one bin; None = those of 0 and less."""
        if index is None:
            self.zeros += count
        else:
            self.bins[index] += count

    @property
    def mean(self) -> float | None:
        """The average; None of nothing."""
        return self.total / self.count if self.count else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the sample (n - 1); None of less than two values."""
        if self.count < 2:
            return None
        return math.sqrt(self.scatter / (self.count - 1))

    def quantile(self, share: float) -> float | None:
        """The value below which that share lies, right within a bin (4 %): the bin's middle, inside the extremes."""
        if not self.count:
            return None
        left = share * self.count - self.zeros
        if left <= 0 and self.zeros:
            return max(0.0, self.low)
        for index in sorted(self.bins):
            left -= self.bins[index]
            if left <= 0:
                return min(self.high, max(self.low, edge(index + 0.5)))
        return self.high

    def merged(self, width: int) -> list[HistogramBin]:
        """Counts in bins that are `width` of the fine ones, from the first to the last that has any."""
        wide: dict[int, int] = defaultdict(int)
        for index, count in self.bins.items():
            wide[index // width] += count
        if not wide:
            return []
        return [
            HistogramBin(edge(k * width), edge((k + 1) * width), wide.get(k, 0))
            for k in range(min(wide), max(wide) + 1)
        ]


class PieceSums(NamedTuple):
    """Sums over some values. `scatter`: the sum of the squares of their distances from their mean."""

    number: int
    total: float
    scatter: float
    low: float
    high: float


class HistogramBin(NamedTuple):
    """How many values lie from `low` to below `high`."""

    low: float
    high: float
    number: int


def edge(index: float) -> float:
    """The lower edge of a bin."""
    return float(10.0 ** (index / BINS_PER_DECADE))
