"""Which of our nodes to give back: those that the scheduler would have given to the job had we not been there. Pure.

Any of ours would do for the job that starts now. But where it lands decides which nodes stay together, and so which of
the next jobs can start beside those that the scheduler has planned for. Giving back the very nodes keeps the schedule
as it would have been. A job that would still run when one before it is planned to start can have only the nodes that
are not planned for that one: there it is these that go, whatever they cost, since no other helps.

Slurm without topology takes, of the runs of neighbouring free nodes, the smallest that suffices, else the largest ones
first, each from its first node on (`_eval_nodes` of plugins/select/cons_tres/job_test.c, 22.05).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill.model.machine import Queued


def chosen(free: Iterable[int], width: int) -> list[int]:
    """The nodes, as places in the batch system's order, that a job of `width` whole nodes gets of the free ones."""
    runs = sorted(
        _runs(sorted(free)), key=lambda run: (len(run), -run[0])
    )  # the last one: the first of the largest
    found: list[int] = []
    while runs and len(runs[-1]) < width - len(found):
        found += runs.pop()
    missing = width - len(found)
    enough = [run for run in runs if len(run) >= missing] if missing > 0 else []
    if enough:
        found += min(enough, key=lambda run: (len(run), run[0]))[:missing]
    return found


def _runs(places: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


class Starting(NamedTuple):
    """A job that would start now. `avoid`: nodes that the scheduler keeps for jobs before it, until later than this one
    would end; on the others it starts at once."""

    id: str
    width: int
    avoid: frozenset[str] = frozenset()


class Preferred(NamedTuple):
    """`names`: our allocations that the scheduler would have jobs start on, in the order of the jobs. `needed`: those
    of them without which a job does not start whatever else is free, and `jobs`: these jobs."""

    names: list[str]
    needed: list[str]
    jobs: list[str]


def preferred(
    nodes: Sequence[str], idle: Iterable[str], ours: Mapping[str, str], jobs: Iterable[Starting]
) -> Preferred:
    """Our allocations on the nodes that these jobs, in this order, would get were ours free, too.

    `nodes`: all, in the batch system's order; `ours`: allocation of one node -> its node.
    """
    place = {name: at for at, name in enumerate(nodes)}
    holder = {place[node]: name for name, node in ours.items() if node in place}
    free = {place[name] for name in idle if name in place} | set(holder)
    found = Preferred([], [], [])
    for job in jobs:
        allowed = free - {place[name] for name in job.avoid if name in place}
        is_confined = len(job.avoid) > 0 and len(allowed) >= job.width
        taken = chosen(allowed if is_confined else free, job.width)
        free.difference_update(taken)
        names = [holder[at] for at in taken if at in holder]
        found.names.extend(names)
        if is_confined and len(allowed - holder.keys()) < job.width:
            found.needed.extend(names)
            found.jobs.append(job.id)
    return found


def kept_from(job: Queued, before: Iterable[Queued], at_s: float) -> frozenset[str]:
    """Nodes that a job cannot have now: the scheduler plans a job before it to start there while this one would run."""
    return frozenset(
        name
        for other in before
        if other.planned_s is not None and other.planned_s < at_s + job.walltime_s
        for name in other.planned_nodes
    )
