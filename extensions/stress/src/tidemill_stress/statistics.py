"""Means, intervals and comparisons of levels. Pure, and deterministic for a seed.

Intervals are 95 % intervals of a bootstrap; those of the levels of a run hold together. With
CLUSTERS_MIN nodes or more, nodes are drawn (payloads of one node are alike), widened by Student's t for their number;
with fewer, payloads are drawn within each node, and the interval is one for these nodes. Nodes that were found to be
slow are always kept: the site has exactly those.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from statistics import NormalDist

import msgspec

from tidemill_stress.payloads import Payload
from tidemill_stress.window import Counted

DRAWS = 500
CLUSTERS_MIN = 8
_T975 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 15: 2.13, 20: 2.09,
         30: 2.04, 60: 2.00}  # fmt: skip


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The interval's width relative to the value."""
        return (self.high - self.low) / abs(self.value) if self.value else math.inf

    def holds(self, truth: float) -> bool:
        """Whether the interval holds a value."""
        return self.low <= truth <= self.high


class PayloadSums(msgspec.Struct):
    """Weighted sums over payloads, those that failed included."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    events: float = 0.0

    def add(self, payload: Payload, weight: float) -> None:
        """Add a payload."""
        self.wall_s += weight * payload.wall_s
        self.cpu_s += weight * payload.cpu_s
        self.events += weight * payload.events

    def join(self, other: PayloadSums) -> None:
        """Add other sums."""
        self.wall_s += other.wall_s
        self.cpu_s += other.cpu_s
        self.events += other.events


Figure = Callable[[PayloadSums], float]


def cpu_per_wall(sums: PayloadSums) -> float:
    """CPU seconds per second of a payload."""
    return sums.cpu_s / sums.wall_s if sums.wall_s else 0.0


def events_per_wall(sums: PayloadSums) -> float:
    """Events per second of a payload."""
    return sums.events / sums.wall_s if sums.wall_s else 0.0


class Draws(msgspec.Struct):
    """PayloadSums over all payloads that count, and over each bootstrap sample of them."""

    whole: PayloadSums
    samples: list[PayloadSums]
    widening: float  #: of distances from the value
    method: str

    def estimate(self, figure: Figure, scale: float = 1.0, *, together: int = 1) -> Estimate:
        """A figure with its interval; of `together` such intervals, all hold with 95 % (Bonferroni)."""
        wider = self.widening * NormalDist().inv_cdf(1 - 0.025 / together) / 1.96
        return interval(scale * figure(self.whole), [scale * figure(each) for each in self.samples], wider)


def draw(counted: Counted, *, seed: int, slow: Collection[str] = (), draws: int = DRAWS) -> Draws:
    """Draw bootstrap samples. `slow`: nodes that are kept in every sample."""
    dice = random.Random(seed)
    nodes: dict[str, list[tuple[Payload, float]]] = defaultdict(list)
    for payload, weight in zip(counted.payloads, counted.weights, strict=True):
        nodes[payload.node].append((payload, weight))
    plain = [nodes[name] for name in sorted(nodes) if name not in slow]
    kept = [nodes[name] for name in sorted(nodes) if name in slow]
    whole = _sum([each for group in (*plain, *kept) for each in group])
    if len(plain) >= CLUSTERS_MIN:
        sums = [_sum(group) for group in plain]
        samples = [
            _join([*dice.choices(sums, k=len(sums)), *(_sum(dice.choices(group, k=len(group))) for group in kept)])
            for _ in range(draws)
        ]  # fmt: skip
        count = len(plain)
        widening = student(count - 1) / 1.96 * math.sqrt(count / (count - 1))
        return Draws(whole, samples, widening, f"{count} nodes drawn as clusters")
    groups = [*plain, *kept]
    samples = [
        _sum([each for group in groups for each in dice.choices(group, k=len(group))]) for _ in range(draws)
    ]
    free = max(1, sum(map(len, groups)) - len(groups))
    return Draws(whole, samples, student(free) / 1.96, "payloads drawn within each node")


def interval(value: float, samples: Sequence[float], widening: float = 1.0) -> Estimate:
    """The 95 % interval of bootstrap samples, with distances from the value widened."""
    if not samples:
        return Estimate(value, value, value)
    ordered = sorted(samples)
    low, high = quantile(ordered, 0.025), quantile(ordered, 0.975)
    return Estimate(
        value, value - widening * max(0.0, value - low), value + widening * max(0.0, high - value)
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of sorted values, between neighbours where it falls between them."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    return quantile(sorted(values), 0.5) if values else 0.0


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a sample."""
    if not values:
        return 0.0, 0.0
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1))


def student(free: int) -> float:
    """Student's t for 97.5 % and this many degrees of freedom, from above."""
    if free > 60:
        return 1.96 + 2.5 / free
    return _T975[max(known for known in _T975 if known <= max(1, free))]


def _sum(group: Sequence[tuple[Payload, float]]) -> PayloadSums:
    result = PayloadSums()
    for payload, weight in group:
        result.add(payload, weight)
    return result


def _join(parts: Sequence[PayloadSums]) -> PayloadSums:
    result = PayloadSums()
    for each in parts:
        result.join(each)
    return result
