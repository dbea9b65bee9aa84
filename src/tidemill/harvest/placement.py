"""Which of our nodes to give back: those that the scheduler would have given to the job had we not been there. Pure.

Any of ours would do for the job that starts now. But where it lands decides which nodes stay together, and so which of
the next jobs can start beside those that the scheduler has planned for. Giving back the very nodes keeps the schedule
as it would have been.

Slurm without topology takes, of the runs of neighbouring free nodes, the smallest that suffices, else the largest ones
first, each from its first node on (`_eval_nodes` of plugins/select/cons_tres/job_test.c, 22.05).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def chosen(free: Iterable[int], width: int) -> list[int]:
    """The nodes, as places in the batch system's order, that a job of `width` whole nodes gets of the free ones."""
    runs = _runs(sorted(free))
    found: list[int] = []
    while runs and len(found) < width:
        missing = width - len(found)
        enough = [run for run in runs if len(run) >= missing]
        best = min(enough, key=len) if enough else max(runs, key=len)
        found += best[:missing]
        runs.remove(best)
    return found


def _runs(places: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def preferred(
    nodes: Sequence[str], idle: Iterable[str], ours: Mapping[str, str], widths: Iterable[int]
) -> list[str]:
    """Our allocations on the nodes that jobs of these widths, in this order, would get were ours free, too.

    `nodes`: all, in the batch system's order; `ours`: allocation of one node -> its node.
    """
    place = {name: at for at, name in enumerate(nodes)}
    holder = {place[node]: name for name, node in ours.items() if node in place}
    free = {place[name] for name in idle if name in place} | set(holder)
    found: list[str] = []
    for width in widths:
        taken = chosen(free, width)
        free.difference_update(taken)
        found += [holder[at] for at in taken if at in holder]
    return found
