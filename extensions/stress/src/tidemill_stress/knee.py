"""Where throughput stops growing with the level: the knee, with its interval, and what it recommends. Pure.

The model is a line through the origin up to the knee and a flatter line after it, fitted by least squares of relative
errors. It needs two levels after the knee; with one, only the two levels between which the knee lies are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill_stress.statistics import Estimate, interval, quantile

FLATTER = 0.8
"""After a knee, a payload more brings less than this part of what it brought before, with 95 % confidence."""

COARSE, FINE = 24, 8  #: cells of the grid, and of each cell beside the best


class Fit(msgspec.Struct, frozen=True):
    """A fit: the knee, events/s per payload before it, and after it."""

    knee: float
    before: float
    after: float
    error: float


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """`at` None = none was found; `reason` says why, or what the recommendation rests on."""

    at: Estimate | None
    before: float
    after: float
    recommended: int
    reason: str


def fit(levels: Sequence[float], rates: Sequence[float]) -> Fit:
    """The best knee between the first level and the last but one, on a grid."""
    low, high = levels[0], levels[-2]
    best = _solve(levels, rates, high)
    for cells in (COARSE, COARSE * FINE):
        around = best.knee if cells > COARSE else None
        for k in range(cells):
            at = low + (high - low) * k / cells
            if around is None or abs(at - around) <= (high - low) / COARSE:
                found = _solve(levels, rates, at)
                best = found if found.error < best.error else best
    return best


def _solve(levels: Sequence[float], rates: Sequence[float], knee: float) -> Fit:
    """Least squares of rate = before * min(n, knee) + after * max(0, n - knee), relative to the rates."""
    aa = ab = bb = ay = by = 0.0
    for level, rate in zip(levels, rates, strict=True):
        weight = 1.0 / max(rate, 1e-12) ** 2
        a, b = min(level, knee), max(0.0, level - knee)
        aa, ab, bb = aa + weight * a * a, ab + weight * a * b, bb + weight * b * b
        ay, by = ay + weight * a * rate, by + weight * b * rate
    det = aa * bb - ab * ab
    before, after = (
        (ay / aa, ay / aa)
        if det <= 1e-12 * aa * aa
        else ((ay * bb - by * ab) / det, (by * aa - ay * ab) / det)
    )
    error = sum(
        ((before * min(level, knee) + after * max(0.0, level - knee)) / max(rate, 1e-12) - 1) ** 2
        for level, rate in zip(levels, rates, strict=True)
    )
    return Fit(knee, before, after, error)


def find(levels: Sequence[int], rates: Sequence[Estimate], samples: Sequence[Sequence[float]]) -> Knee:
    """The knee of events/s (of all payloads together) against level. `samples[k]`: bootstrap samples of level k, with
    distances from the value already widened."""
    values = [each.value for each in rates]
    if len(levels) < 3 or min(values, default=0.0) <= 0:
        return _few(levels, rates)
    best = fit(levels, values)
    draws = [fit(levels, [max(each, 1e-9) for each in drawn]) for drawn in zip(*samples, strict=True)]
    ratios = sorted(each.after / each.before if each.before > 0 else 1.0 for each in draws)
    if ratios and quantile(ratios, 0.975) < FLATTER and best.knee < levels[-2]:
        at = interval(best.knee, [each.knee for each in draws])
        recommended = max(1, int(best.knee + 1e-9))
        reason = (
            f"events/s grow by {best.before:.4g} with each payload up to {at.value:.1f} "
            f"({at.low:.1f} to {at.high:.1f}), "
            f"and by {best.after:.4g} beyond"
        )
        return Knee(at=at, before=best.before, after=best.after, recommended=recommended, reason=reason)
    return _at_the_end(levels, rates, best)


def _at_the_end(levels: Sequence[int], rates: Sequence[Estimate], best: Fit) -> Knee:
    """No knee with two levels after it: either between the last two levels, or none."""
    before, last = rates[-2].value / levels[-2], rates[-1]
    if last.high < FLATTER * before * levels[-1] + (1 - FLATTER) * rates[-2].value:
        at = Estimate(min(levels[-1], max(levels[-2], last.value / before)), levels[-2], levels[-1])
        reason = f"events/s stop growing between {levels[-2]} and {levels[-1]}; levels beyond would say where exactly"
        after = (last.value - rates[-2].value) / (levels[-1] - levels[-2])
        return Knee(at=at, before=before, after=after, recommended=levels[-2], reason=reason)
    reason = f"events/s still grow at {levels[-1]}: no knee up to there; higher levels may do more"
    return Knee(at=None, before=best.before, after=best.after, recommended=levels[-1], reason=reason)


def _few(levels: Sequence[int], rates: Sequence[Estimate]) -> Knee:
    if not levels:
        return Knee(at=None, before=0.0, after=0.0, recommended=0, reason="no level was measured")
    if len(levels) == 1:
        reason = f"level {levels[0]} alone was measured, and can be compared with no other"
        return Knee(at=None, before=0.0, after=0.0, recommended=0, reason=reason)
    best = max(range(len(levels)), key=lambda k: rates[k].value)
    enough = next(k for k in range(len(levels)) if rates[k].high >= rates[best].low)
    most = f"level {levels[best]} did the most events/s"
    if enough != best:
        most = f"level {levels[enough]} did as many events/s as level {levels[best]}, within chance"
    reason = f"fewer than three levels cannot show a knee; {most}"
    return Knee(at=None, before=0.0, after=0.0, recommended=levels[enough], reason=reason)


def spanning(rates: Sequence[Estimate]) -> Estimate:
    """One estimate of several measurements: their mean, and an interval that holds theirs. What changed from one to
    the next, which none of them knows by itself, is in it."""
    value = sum(each.value for each in rates) / len(rates)
    return Estimate(value, min(each.low for each in rates), max(each.high for each in rates))


def is_as_good(rate: Estimate, best: Estimate, gain_percent: float) -> bool:
    """Whether the best rate is less than `gain_percent` above this one, or may be so by chance."""
    return rate.high * (1 + gain_percent / 100) >= best.low


def best_slots(
    slots: Sequence[int], rates: Sequence[Estimate], *, gain_percent: float = 0.0
) -> tuple[int, str]:
    """The recommended slots per node of a scan: the fewest over which no number gains `gain_percent` beyond chance."""
    if not slots:
        return 0, "no number of slots was measured"
    best = max(range(len(slots)), key=lambda k: rates[k].value)
    good = (k for k in range(len(slots)) if is_as_good(rates[k], rates[best], gain_percent))
    enough = min(good, key=lambda k: slots[k])
    top = rates[best]
    chosen = rates[enough]
    does = f"they do {chosen.value:.4g} events/s ({chosen.low:.4g} to {chosen.high:.4g})"
    least = f"{gain_percent:g} % less" if gain_percent else "less"
    if enough == best:
        return slots[best], f"{does}, the most; fewer slots do at least {least}, beyond chance"
    most = f"{slots[best]} do the most, {top.value:.4g} ({top.low:.4g} to {top.high:.4g})"
    more = f"{gain_percent:g} % more" if gain_percent else "more"
    return slots[
        enough
    ], f"{does}; {most}, but that is not {more} beyond chance, and fewer slots leave more room"
