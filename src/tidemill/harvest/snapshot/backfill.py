"""What Slurm's backfill scheduler plans: which nodes it keeps for which waiting job, and from when on. Pure.

Node counts show whether a job can start. Whether it still starts after Tidemill releases nodes depends on which nodes
it gets and which are kept for the jobs before it. Slurm offers no query for that, so this module repeats Slurm's
calculation for jobs of whole, identical nodes: `_will_run_test` and `_eval_nodes` of select/cons_tres and the loop of
sched/backfill (22.05; without topology, features, licences and reservations).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import or_
from typing import NamedTuple

from tidemill.harvest.plan.situation import Waiting

WINDOW_S = 30.0
"""Ends of jobs within this time are considered together; the window then doubles at each further step."""
BLOCKED_MAX = 10
"""Up to this number of waiting jobs are planned; Slurm plans more (`bf_max_job_test`), but each costs time."""
TRIES_MAX = 100
EVER = float("inf")


class NodesRelease(NamedTuple):
    """Nodes, as places in the batch system's order, that come free at `ends_s` at the latest."""

    ends_s: float
    places: frozenset[int]


class Planned(NamedTuple):
    """A job's start, now or later, and its nodes."""

    at_s: float
    places: frozenset[int]


class _Coming(NamedTuple):
    """Ends in order, and the nodes that are free after each of them. Nodes are the bits of a number, which makes sets
    of thousands cheap."""

    ends_s: list[float]
    nodes: list[int]


class _Kept(NamedTuple):
    begin_s: float
    end_s: float
    nodes: int

    def meets(self, begin_s: float, end_s: float) -> bool:
        return self.begin_s < end_s and self.end_s > begin_s


def planned(
    free: frozenset[int], endings: Iterable[NodesRelease], queue: Iterable[Waiting], now_s: float
) -> dict[str, Planned]:
    """What the jobs of the queue, in its order, get of the nodes that are free and of those that come free.

    Without those that never fit, and without those after BLOCKED_MAX jobs that have to wait.
    """
    queue = list(queue)
    result, free = _at_once(free, queue, now_s)
    running = [NodesRelease(now_s + job.walltime_s, result[job.id].places) for job in queue[: len(result)]]
    queue = queue[len(result) :]
    idle = _bits(free)
    coming = _in_order(idle, [*endings, *running], now_s)
    count = (coming.nodes[-1] if coming.nodes else idle).bit_count()
    kept: list[_Kept] = []
    for job in queue:
        if job.width > count:
            continue
        each = _reserved(job, idle, coming, kept, now_s)
        if each is None:
            continue
        kept.append(each)
        result[job.id] = Planned(each.begin_s, frozenset(_places(each.nodes)))
        if sum(one.begin_s > now_s for one in kept) == BLOCKED_MAX:
            break
    return result


def _at_once(
    free: frozenset[int], queue: Sequence[Waiting], now_s: float
) -> tuple[dict[str, Planned], frozenset[int]]:
    """What starts without a plan, at the next end or submission: in order, until one does not fit. And what is left."""
    found: dict[str, Planned] = {}
    for job in queue:
        if job.width > len(free):
            break
        places = frozenset(chosen(free, job.width))
        found[job.id] = Planned(now_s, places)
        free -= places
    return found, free


def _in_order(idle: int, endings: Iterable[NodesRelease], now_s: float) -> _Coming:
    late_s = now_s + WINDOW_S  # KillWait, by default
    places: dict[float, set[int]] = {}
    for each in endings:
        places.setdefault(each.ends_s if each.ends_s > now_s else late_s, set()).update(each.places)
    ends_s = sorted(places)
    nodes = accumulate((_bits(places[end_s]) for end_s in ends_s), or_, initial=idle)
    return _Coming(ends_s, list(nodes)[1:])


def _reserved(job: Waiting, free: int, coming: _Coming, kept: Sequence[_Kept], now_s: float) -> _Kept | None:
    """The first start beside the jobs before it, tried from each time on at which one of these begins or ends."""
    from_s = now_s
    for _ in range(TRIES_MAX):
        taken = 0
        next_s = EVER
        for one in kept:
            if one.meets(from_s, from_s + job.walltime_s):
                taken |= one.nodes
            for edge_s in one[:2]:
                if from_s < edge_s < next_s:
                    next_s = edge_s
        found = _first(job.width, free, coming, taken=taken, now_s=now_s)
        if found is not None and (begin_s := max(found[0], from_s)) <= next_s:
            end_s = begin_s + job.walltime_s
            nodes = _bits(chosen(_places(found[1]), job.width))
            if not any(one.meets(begin_s, end_s) and one.nodes & nodes for one in kept):
                return _Kept(begin_s, end_s, nodes)
            next_s = begin_s
        if next_s == EVER:
            return None
        from_s = next_s
    return None


def _first(width: int, free: int, coming: _Coming, *, taken: int, now_s: float) -> tuple[float, int] | None:
    """The first start if no other job arrives, and the nodes to choose from: the free ones; if these do not suffice,
    also those that come free by the end of the window."""
    if (free & ~taken).bit_count() >= width:
        return now_s, free & ~taken
    ends_s, last = coming.ends_s, len(coming.ends_s) - 1

    def usable(at: int) -> int:
        return (coming.nodes[at] & ~taken).bit_count()

    steps = range(last + 1)
    before = (free & ~taken).bit_count()
    at = bisect_right(steps, before, key=usable)  # the first end that gives a node
    if at > last:
        return None
    window_s = WINDOW_S
    border_s = ends_s[at] - ends_s[at] % window_s + window_s
    while True:
        at = max(at, bisect_right(ends_s, border_s + window_s) - 1)
        if usable(at) >= width:
            end_s = ends_s[bisect_left(steps, usable(at), key=usable)]
            return end_s, coming.nodes[at] & ~taken
        if at == last:
            return None
        window_s *= 2
        while ends_s[at + 1] > border_s + window_s:
            window_s *= 2


def _bits(places: Iterable[int]) -> int:
    result = 0
    for place in places:
        result |= 1 << place
    return result


def _places(bits: int) -> list[int]:
    digits = bin(bits)[:1:-1]
    result = []
    at = digits.find("1")
    while at >= 0:
        result.append(at)
        at = digits.find("1", at + 1)
    return result


def chosen(free: Iterable[int], width: int) -> list[int]:
    """The nodes that a job of `width` gets of the free ones, fewer where there are fewer: of the runs of neighbours the
    smallest that suffices, else the largest ones first, each from its first node on."""
    # The last one is the first of the largest
    runs = sorted(_runs(sorted(free)), key=lambda run: (len(run), -run[0]))
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
