"""How much longer jobs waited, by pairs of runs or of days: relative changes and delays with bounds. Pure.

A pair is a run without Tidemill and one with it on the same workload. A relative change is a ratio of sums over all
pairs, not a mean of ratios: waits are chaotic, and a mean of ratios would be too high by the variance of its
denominator. Bounds are 95 % of Student's t over the pairs, by the residuals of that ratio (W. Cochran, Sampling
Techniques, 3rd edition, section 6.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

STUDENT = (
    *(
        12.706,
        4.303,
        3.182,
        2.776,
        2.571,
        2.447,
        2.365,
        2.306,
        2.262,
        2.228,
        2.201,
        2.179,
        2.160,
        2.145,
        2.131,
    ),
    *(
        2.120,
        2.110,
        2.101,
        2.093,
        2.086,
        2.080,
        2.074,
        2.069,
        2.064,
        2.060,
        2.056,
        2.052,
        2.048,
        2.045,
        2.042,
    ),
)
"""97.5 % of Student's t for 1 to 30 degrees of freedom."""


class RelativeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A relative change with its 95 % bounds; None if it cannot be determined (no wait at all, a single pair)."""

    mean: float | None
    low: float | None
    high: float | None


class MeanDelay(msgspec.Struct, frozen=True, kw_only=True):
    """How many seconds longer jobs wait on average, with 95 % bounds; a single pair has none (None)."""

    mean: float
    low: float | None
    high: float | None


def delay(before: Sequence[float], after: Sequence[float]) -> MeanDelay:
    """How many seconds more `after` is than `before`, paired."""
    number = len(before)
    differences = [y - x for x, y in zip(before, after, strict=True)]
    mean = sum(differences) / number
    if number < 2:
        return MeanDelay(mean=mean, low=None, high=None)
    variance = sum((each - mean) ** 2 for each in differences) / (number - 1)
    half = student(number - 1) * math.sqrt(variance / number)
    return MeanDelay(mean=mean, low=mean - half, high=mean + half)


def change(before: Sequence[float], after: Sequence[float]) -> RelativeChange:
    """How much more `after` is than `before`, paired."""
    total, number = sum(before), len(before)
    if total <= 0:
        return RelativeChange(mean=None, low=None, high=None)
    ratio = sum(after) / total
    if number < 2:
        return RelativeChange(mean=ratio - 1, low=None, high=None)
    residuals = (y - ratio * x for x, y in zip(before, after, strict=True))
    variance = sum(each * each for each in residuals) / (number - 1)
    half = student(number - 1) * math.sqrt(variance * number) / total
    return RelativeChange(mean=ratio - 1, low=ratio - 1 - half, high=ratio - 1 + half)


def student(freedom: int) -> float:
    """97.5 % of Student's t."""
    return STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96 + 2.45 / freedom
