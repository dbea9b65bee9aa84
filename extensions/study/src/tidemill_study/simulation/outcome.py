"""Runs with and without Tidemill in sums, by class of jobs; `tidemill.harvest.account.waits` compares them. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from tidemill.model.figures.job_classes import LENGTHS, LENGTHS_S, SIZES, size_edges
from tidemill_study.simulation.simulator import Tally, calls_of
from tidemill_study.simulation.swf import Job

CLASS_JOBS_MIN = 100
"""A smaller class joins its neighbour: its mean wait would say nothing."""
SLOWDOWN_RUN_S_MIN = 10.0
"""Bounded slowdown: shorter jobs count as this long (D. Feitelson, Metrics for parallel job scheduling, 2001)."""


class JobClass(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of `nodes_min` to `nodes` nodes that are longer than `over_s` and at most `up_to_s` (None = no bound).

    `name`: as `model.figures.job_classes` has it; of classes that were joined, the upper one's.
    """

    name: str
    jobs: int
    nodes_min: int
    nodes: int
    over_s: float = 0.0
    up_to_s: float | None = None


class JobClasses(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of a workload, ascending, by size, by run time and by limit, and those of both size and run time.

    `both` has (place among `sizes`, place among `lengths`, class); one with few jobs is left out.
    """

    sizes: list[JobClass]
    lengths: list[JobClass]
    limits: list[JobClass]
    both: list[tuple[int, int, JobClass]]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in sums. Lists have one entry for all jobs, then one for each class: sizes, lengths, limits, both."""

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


def classes_of(jobs: Sequence[Job], nodes: int) -> JobClasses:
    """The classes of a workload, none of them nearly empty."""
    everything = sorted(job.width for job in jobs)
    widths = (everything[0], everything[-1]) if everything else (0, 0)
    sizes = [
        JobClass(name=SIZES[last], jobs=len(group), nodes_min=group[0], nodes=group[-1])
        for _, last, group in joined(everything, size_edges(nodes))
    ]
    lengths = _lengths([job.run_s for job in jobs], widths)
    counts = Counter(_places(job, sizes, lengths) for job in jobs)
    both = [
        (
            i,
            j,
            JobClass(
                name=f"{sizes[i].name} {lengths[j].name}",
                jobs=count,
                nodes_min=sizes[i].nodes_min,
                nodes=sizes[i].nodes,
                over_s=lengths[j].over_s,
                up_to_s=lengths[j].up_to_s,
            ),
        )
        for (i, j), count in sorted(counts.items())
        if count >= CLASS_JOBS_MIN
    ]
    limits = _lengths([job.limit_s for job in jobs], widths)
    return JobClasses(sizes=sizes, lengths=lengths, limits=limits, both=both)


def joined(values: Sequence[float], edges: Sequence[float]) -> list[tuple[int, int, list[Any]]]:
    """Ascending values in groups that end at the edges, a nearly empty one joined with its neighbour.

    Of each: the places of its first and of its last edge, and the values.
    """
    merged: list[tuple[int, int, list[Any]]] = []
    begin = 0
    for place, edge in enumerate(edges):
        end = bisect_right(values, edge)
        group = list(values[begin:end])
        begin = max(begin, end)
        if not group:
            continue
        if merged and min(len(group), len(merged[-1][2])) < CLASS_JOBS_MIN:
            first, _, before = merged[-1]
            merged[-1] = (first, place, before + group)
        else:
            merged.append((place, place, group))
    return merged


def _lengths(values: Sequence[int], widths: tuple[int, int]) -> list[JobClass]:
    found = joined(sorted(values), LENGTHS_S)
    return [
        JobClass(
            name=LENGTHS[last],
            jobs=len(group),
            nodes_min=widths[0],
            nodes=widths[1],
            over_s=LENGTHS_S[found[k - 1][1]] if k else 0.0,
            up_to_s=None if math.isinf(LENGTHS_S[last]) else LENGTHS_S[last],
        )
        for k, (_, last, group) in enumerate(found)
    ]


def _places(job: Job, sizes: Sequence[JobClass], lengths: Sequence[JobClass]) -> tuple[int, int]:
    return _place(job.width, [each.nodes for each in sizes]), _place(job.run_s, _ends(lengths))


def _place(value: float, edges: Sequence[float]) -> int:
    return min(bisect_left(edges, value), len(edges) - 1)


def _ends(lengths: Sequence[JobClass]) -> list[float]:
    return [math.inf if each.up_to_s is None else each.up_to_s for each in lengths]


def digest(tally: Tally, jobs: Sequence[Job], classes: JobClasses, *, cpu_s: float) -> RunSummary:
    """A run in sums; `jobs` in the order of `tally.waits_s`."""
    sizes = [each.nodes for each in classes.sizes]
    lengths, limits = _ends(classes.lengths), _ends(classes.limits)
    first_length = 1 + len(sizes)
    first_limit = first_length + len(lengths)
    first_both = first_limit + len(limits)
    both = {(i, j): first_both + k for k, (i, j, _) in enumerate(classes.both)}
    number = first_both + len(classes.both)
    waits, slowdowns, counts = [0.0] * number, [0.0] * number, [0] * number
    for job, wait_s in zip(jobs, tally.waits_s, strict=True):
        slowdown = max(1.0, (wait_s + job.run_s) / max(job.run_s, SLOWDOWN_RUN_S_MIN))
        i, j = bisect_left(sizes, job.width), bisect_left(lengths, job.run_s)
        places = [0, 1 + i, first_length + j, first_limit + bisect_left(limits, job.limit_s)]
        if (i, j) in both:
            places.append(both[i, j])
        for index in places:
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


def share(part: float, whole: float) -> float | None:
    """`part` of `whole`; None of nothing."""
    return part / whole if whole > 0 else None
