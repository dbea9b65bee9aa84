"""Which quantity saturated first, from time series and levels. Pure.

A quantity with a known limit is saturated at the first level whose mean reaches FULL of it. One without is saturated
where it stops growing with the level, if it grew before. Nothing is named without a series that shows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from tidemill_stress import knee
from tidemill_stress.run import Series, StepRun
from tidemill_stress.statistics import mean_sd

FULL = 0.9
GROWTH_MIN = 0.2
"""A quantity that grows by less from the first level to its highest has nothing to do with the jobs; one
that falls again by as much has not reached a limit."""

FLAT = 0.3
"""It has stopped growing if a payload more brings less than this part of what it brought before."""


class Saturated(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity that saturated, and from which level on."""

    title: str
    source: str
    level: float
    evidence: str


def find(steps: Sequence[StepRun]) -> list[Saturated]:
    """Quantities that saturated, the one at the lowest level first."""
    means: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    about: dict[tuple[str, str], Series] = {}
    for each in steps:
        for series in each.series:
            inside = [value for at, value in series.points if each.start_s <= at <= each.end_s]
            if each.status == "measured" and inside:
                means[series.title, series.source].append((each.step.level, mean_sd(inside)[0]))
                about[series.title, series.source] = series
    found = [_judge(about[key], _by_level(rows)) for key, rows in means.items()]
    return sorted((each for each in found if each is not None), key=lambda each: (each.level, each.title))


def _by_level(rows: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """One value for each level, in order: a scan measures each in several passes."""
    levels = sorted({level for level, _ in rows})
    return [(level, mean_sd([value for each, value in rows if each == level])[0]) for level in levels]


def _judge(series: Series, rows: list[tuple[int, float]]) -> Saturated | None:
    full = (
        next(((level, mean) for level, mean in rows if mean >= FULL * series.limit), None)
        if series.limit is not None
        else None
    )
    if full is not None and series.limit is not None:
        of = (
            f"{full[1]:.4g} of {series.limit:.4g} {series.unit}"
            if series.unit
            else f"{full[1] / series.limit:.0%}"
        )
        text = f"mean {of} at level {full[0]}"
        return Saturated(title=series.title, source=series.source, level=full[0], evidence=text)
    levels, values = [float(level) for level, _ in rows], [value for _, value in rows]
    if (
        series.limit is not None
        or len(rows) < 4
        or min(values) <= 0
        or max(values) < (1 + GROWTH_MIN) * values[0]
        or values[-1] < (1 - GROWTH_MIN) * max(values)
    ):
        return None
    best = knee.fit(levels, values)
    if (
        best.before <= 0
        or best.after > FLAT * best.before
        or best.knee >= levels[-2]
        or best.knee <= levels[0]
    ):
        return None
    listed = ", ".join(f"{value:.4g} at {level:g}" for level, value in zip(levels, values, strict=True))
    text = f"grows up to level {best.knee:.1f} and hardly beyond: {listed} {series.unit}".rstrip()
    return Saturated(title=series.title, source=series.source, level=best.knee, evidence=text)
