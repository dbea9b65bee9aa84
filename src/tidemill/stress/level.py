"""How many payloads ran at each moment, and how far that was from the level that was asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.stress.payloads import Payload


class RunningCurve(NamedTuple):
    """The number running: `counts[k]` from `times_s[k]` to the next time."""

    times_s: list[float]
    counts: list[int]


def running(payloads: Sequence[Payload]) -> RunningCurve:
    """The number running over time, from starts and ends. An end and a start at the same moment change nothing."""
    change: dict[float, int] = {}
    for each in payloads:
        change[each.start_s] = change.get(each.start_s, 0) + 1
        change[each.end_s] = change.get(each.end_s, 0) - 1
    times, counts, now = [], [], 0
    for at in sorted(change):
        now += change[at]
        times.append(at)
        counts.append(now)
    return RunningCurve(times, counts)


def mean_running(curve: RunningCurve, start_s: float, end_s: float) -> float:
    """Time-weighted mean of the number running in an interval."""
    if end_s <= start_s:
        return 0.0
    total = 0.0
    ends = [*curve.times_s[1:], float("inf")] if curve.times_s else []
    for at, until, count in zip(curve.times_s, ends, curve.counts, strict=True):
        lap = min(until, end_s) - max(at, start_s)
        if lap > 0:
            total += lap * count
    return total / (end_s - start_s)


def interval_means(curve: RunningCurve, start_s: float, end_s: float, *, interval_s: float) -> list[float]:
    """Time-weighted means of whole intervals of an hour's minutes, say; a shorter rest at the end is left out."""
    whole = int((end_s - start_s) / interval_s + 1e-9)
    integrals = _integrals(curve, [start_s + k * interval_s for k in range(whole + 1)])
    return [(integrals[k + 1] - integrals[k]) / interval_s for k in range(whole)]


def level_error(means: Sequence[float], level: int) -> float | None:
    """The largest relative distance of a mean from the level; None without a mean."""
    return max((abs(each / level - 1) for each in means), default=None)


def _integrals(curve: RunningCurve, at_s: Sequence[float]) -> list[float]:
    """Payload-seconds before each of these times, which rise."""
    found, total, k = [], 0.0, 0
    last, count = (curve.times_s[0], 0) if curve.times_s else (0.0, 0)
    for at in at_s:
        while k < len(curve.times_s) and curve.times_s[k] <= at:
            total += (curve.times_s[k] - last) * count
            last, count = curve.times_s[k], curve.counts[k]
            k += 1
        found.append(total + max(0.0, at - last) * count)
    return found
