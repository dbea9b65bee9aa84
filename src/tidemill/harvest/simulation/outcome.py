"""What runs with and without us say together: shares, relative changes with bounds, classes of job size. Pure.

A pair is a run without us and one with us on the same jittered workload. A relative change is a ratio of sums over all
pairs, not a mean of ratios: waits are chaotic, and a mean of ratios would be too high by the variance of its
denominator. Bounds are 95 % of Student's t over the pairs, by the residuals of that ratio (W. Cochran, Sampling
Techniques, 3rd edition, section 6.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tidemill.harvest.simulation.simulator import Tally, calls_of
from tidemill.harvest.simulation.swf import Job

CLASS_SHARES = (1 / 64, 1 / 16, 1 / 4, 1.0)
"""Classes of jobs end at these shares of the machine."""
CLASS_JOBS_MIN = 100
"""A smaller class joins its neighbour: its mean wait would say nothing."""
SLOWDOWN_RUN_S_MIN = 10.0
"""Bounded slowdown: jobs count as at least so long (D. Feitelson, Metrics for parallel job scheduling, 2001)."""
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


class SizeClass(msgspec.Struct, frozen=True):
    """Jobs of `nodes_min` to `nodes` nodes."""

    nodes_min: int
    nodes: int
    jobs: int


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in sums. Lists have one entry for all jobs, then one for each class."""

    idle_s: float
    capacity_s: float
    held_s: float
    useful_s: float
    starts: int
    cancels: int
    calls: float  #: commands of the batch system
    kept_s: float  #: node-seconds left idle as headroom
    waits_s: list[float]  #: means
    slowdowns: list[float]  #: means
    cpu_s: float


class RelativeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A relative change with its 95 % bounds; None where it cannot be told (no wait at all, a single pair)."""

    mean: float | None
    low: float | None
    high: float | None


def classes_of(jobs: Sequence[Job], nodes: int) -> list[SizeClass]:
    """Classes by share of the machine, ascending, none of them nearly empty."""
    widths = sorted(job.width for job in jobs)
    groups: list[list[int]] = []
    begin = 0
    for share in CLASS_SHARES:
        edge = max(1, int(nodes * share))
        group = [width for width in widths[begin:] if width <= edge]
        begin += len(group)
        if group:
            groups.append(group)
    merged: list[list[int]] = []
    for group in groups:
        if merged and (len(group) < CLASS_JOBS_MIN or len(merged[-1]) < CLASS_JOBS_MIN):
            merged[-1] += group
        else:
            merged.append(group)
    return [SizeClass(group[0], group[-1], len(group)) for group in merged]


def digest(tally: Tally, jobs: Sequence[Job], classes: Sequence[SizeClass], *, cpu_s: float) -> RunSummary:
    """A run in sums; `jobs` in the order of `tally.waits_s`."""
    waits = [0.0] * (len(classes) + 1)
    slowdowns = [0.0] * (len(classes) + 1)
    counts = [0] * (len(classes) + 1)
    edges = [each.nodes for each in classes]
    for job, wait_s in zip(jobs, tally.waits_s, strict=True):
        slowdown = max(1.0, (wait_s + job.run_s) / max(job.run_s, SLOWDOWN_RUN_S_MIN))
        k = 1 + next(k for k, edge in enumerate(edges) if job.width <= edge)
        for index in (0, k):
            waits[index] += wait_s
            slowdowns[index] += slowdown
            counts[index] += 1
    return RunSummary(
        idle_s=tally.idle_s,
        capacity_s=tally.capacity_s,
        held_s=tally.held_s,
        useful_s=tally.useful_s,
        starts=tally.starts,
        cancels=tally.cancels,
        calls=calls_of(tally),
        kept_s=tally.kept_s,
        waits_s=[total / max(1, count) for total, count in zip(waits, counts, strict=True)],
        slowdowns=[total / max(1, count) for total, count in zip(slowdowns, counts, strict=True)],
        cpu_s=cpu_s,
    )


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


def share(part: float, whole: float) -> float | None:
    """`part` of `whole`; None of nothing."""
    return part / whole if whole > 0 else None
