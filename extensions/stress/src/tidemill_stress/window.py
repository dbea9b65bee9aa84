"""The steady window of a level, and the payloads that count. Pure.

Only payloads that start and end inside the window count. In a window of W seconds such a payload of L seconds can start
during W - L seconds only, which is why long payloads are seen less often than they run. Each payload that counts
therefore has the weight W / (W - L): then sums are those of all payloads that start in W seconds (Horvitz and Thompson
1952). A payload as long as the window can never count; how long the longest one was is part of the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tidemill_stress.level import Integral, running
from tidemill_stress.payloads import Payload

WEIGHT_MAX = 10.0
"""A payload of more than nine tenths of the window gets no larger weight: one alone would decide the result."""

RULE = "payloads that start and end inside the window, each with the weight W / (W - length), W the window's length"


class WindowFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What the filter did, for the result."""

    start_s: float
    end_s: float
    counted: int
    left_out: dict[str, int]  #: reason -> payloads
    longest_s: float  #: of those counted
    weight_max: float  #: largest weight given
    cut: int  #: payloads whose weight was cut to WEIGHT_MAX
    rule: str = RULE


class Counted(msgspec.Struct, frozen=True):
    """The payloads that count with their weights, those that failed included."""

    payloads: list[Payload]
    weights: list[float]
    filter: WindowFilter


def reached_s(payloads: Sequence[Payload], level: int, *, tolerance: float, for_s: float) -> float | None:
    """When the number running first came within `tolerance` of the level for `for_s` on average; None = never."""
    curve = running(payloads)
    low = level * (1 - tolerance)
    sums = Integral(curve)
    for at, count in zip(curve.times_s, curve.counts, strict=True):
        if count >= low and sums.mean(at, at + for_s) >= low:
            return at
    return None


def counted(payloads: Sequence[Payload], start_s: float, end_s: float) -> Counted:
    """Apply the filter to a window."""
    width, left = end_s - start_s, Counter[str]()
    inside: list[Payload] = []
    for each in payloads:
        if each.end_s <= start_s or each.start_s >= end_s:
            left["ran outside of the window"] += 1
        elif each.start_s < start_s and each.end_s > end_s:
            left["longer than the window"] += 1
        elif each.start_s < start_s:
            left["started before the window"] += 1
        elif each.end_s > end_s:
            left["ended after the window"] += 1
        else:
            inside.append(each)
    free = [width / max(width - each.wall_s, 1e-9) for each in inside]
    weights = [min(WEIGHT_MAX, each) for each in free]
    told = WindowFilter(
        start_s=start_s, end_s=end_s, counted=len(inside), left_out=dict(sorted(left.items())),
        longest_s=max((each.wall_s for each in inside), default=0.0), weight_max=max(weights, default=1.0),
        cut=sum(each > WEIGHT_MAX for each in free),
    )  # fmt: skip
    return Counted(inside, weights, told)
