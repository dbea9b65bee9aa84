"""How many payloads ran at each moment, and how far that was from the level that was asked for. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tidemill_stress.payloads import Payload


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


class Integral:
    """Payload-seconds of a curve up to any time, so that means of many intervals cost little."""

    def __init__(self, curve: RunningCurve) -> None:
        self._curve = curve
        self._sums = [0.0]
        for k in range(1, len(curve.times_s)):
            self._sums.append(
                self._sums[-1] + (curve.times_s[k] - curve.times_s[k - 1]) * curve.counts[k - 1]
            )

    def before(self, at_s: float) -> float:
        """Payload-seconds before a time."""
        k = bisect_right(self._curve.times_s, at_s) - 1
        return self._sums[k] + (at_s - self._curve.times_s[k]) * self._curve.counts[k] if k >= 0 else 0.0

    def mean(self, start_s: float, end_s: float) -> float:
        """Time-weighted mean of the number running in an interval; 0 in an empty one."""
        return (self.before(end_s) - self.before(start_s)) / (end_s - start_s) if end_s > start_s else 0.0


def mean_running(curve: RunningCurve, start_s: float, end_s: float) -> float:
    """Time-weighted mean of the number running in an interval."""
    return Integral(curve).mean(start_s, end_s)


def interval_means(curve: RunningCurve, start_s: float, end_s: float, *, interval_s: float) -> list[float]:
    """Time-weighted means of the whole intervals between two times; a shorter rest at the end is left out."""
    whole, sums = int((end_s - start_s) / interval_s + 1e-9), Integral(curve)
    return [sums.mean(start_s + k * interval_s, start_s + (k + 1) * interval_s) for k in range(whole)]


def level_error(means: Sequence[float], level: int) -> float | None:
    """The largest relative distance of a mean from the level; None without a mean."""
    return max((abs(each / level - 1) for each in means), default=None)
