"""Whether two runs differ. Pure.

Steps of the same site, level, slots, placement and pass are compared by the ratio of their figures. Its interval is of
both bootstraps, which know payloads and nodes; what changes from day to day at a site is in neither. The bounds of all
rows hold together (Bonferroni), so that one row in twenty does not differ by chance.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec

from tidemill_stress.analysis import Analysis, StepResult
from tidemill_stress.statistics import Estimate

QUANTITIES = ("cpu_wall", "events_wall")


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of B over that of A. `verdict`: `same` (no difference beyond chance), `more`, `less`."""

    title: str
    quantity: str
    a: float
    b: float
    ratio: Estimate
    verdict: str


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared. `only_a`, `only_b`: steps that the other has not measured."""

    a: str
    b: str
    same_test: bool
    differ: bool
    rows: list[RunDifference]
    only_a: list[str]
    only_b: list[str]


def compare(a: Analysis, b: Analysis, *, same_test: bool) -> RunComparison:
    """Compare two results."""
    of_a, of_b = _by_step(a), _by_step(b)
    shared = [key for key in of_a if key in of_b]
    pairs = [(of_a[key], of_b[key], quantity) for key in shared for quantity in QUANTITIES]
    rows = [_row(one, other, quantity, len(pairs)) for one, other, quantity in pairs]
    return RunComparison(
        a=a.id, b=b.id, same_test=same_test, differ=any(each.verdict != "same" for each in rows), rows=rows,
        only_a=[of_a[key].step.title for key in of_a if key not in of_b],
        only_b=[of_b[key].step.title for key in of_b if key not in of_a],
    )  # fmt: skip


def regressions(comparison: RunComparison, worse_percent: float) -> list[RunDifference]:
    """Rows in which B is worse than A by at least `worse_percent`, and beyond chance."""
    return [
        each
        for each in comparison.rows
        if each.verdict == "less" and each.ratio.value <= 1 - worse_percent / 100
    ]


def _by_step(analysis: Analysis) -> dict[tuple[str, int, int, str, int], StepResult]:
    return {
        (each.step.site, each.step.level, each.step.slots, each.step.placement, each.step.pass_): each
        for each in analysis.steps
        if each.figures is not None
    }


def _row(a: StepResult, b: StepResult, quantity: str, rows: int) -> RunDifference:
    one: Estimate = getattr(a.figures, quantity)
    other: Estimate = getattr(b.figures, quantity)
    error = math.hypot(_error(one, a.together), _error(other, b.together))
    value = other.value / one.value if one.value else math.inf
    reach = NormalDist().inv_cdf(1 - 0.025 / max(1, rows)) * error
    ratio = Estimate(value, value * math.exp(-reach), value * math.exp(reach))
    verdict = "less" if ratio.high < 1 else "more" if ratio.low > 1 else "same"
    return RunDifference(
        title=a.step.title, quantity=quantity, a=one.value, b=other.value, ratio=ratio, verdict=verdict
    )


def _error(estimate: Estimate, together: int) -> float:
    """Relative standard error, from the width of an interval that holds together with others."""
    sigmas = 2 * NormalDist().inv_cdf(1 - 0.025 / max(1, together))
    return (estimate.high - estimate.low) / sigmas / estimate.value if estimate.value > 0 else 0.0
