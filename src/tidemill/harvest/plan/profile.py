"""Free nodes over time, and what a queue does with them: in order, with reservations for those that are blocked. Pure.

Counts only, no names of nodes. This is backfilling as D. Lifka describes it ("The ANL/IBM SP scheduling system", 1995):
jobs start in order while they fit; the first `reservations` that do not fit get the earliest time at which they do (1 =
EASY, many = conservative, as Slurm's sched/backfill up to `bf_max_job_test`), and others may start if nothing that is
reserved starts later because of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemill.harvest.plan.situation import Busy, Outage, Waiting

EVER = float("inf")
WIDTHS_MAX = 64
"""Blocked jobs of an unknown order are planned by width, in this number of groups at most: a plan stays fast."""

OVERDUE_S = 60.0
"""A job past its limit ends any moment: Slurm looks every 30 s, then it has KillWait (30 s by default)."""


class FreeNodes:
    """`free[k]` nodes from `times[k]` to `times[k + 1]`, the last for ever. Negative in outages on busy nodes."""

    __slots__ = ("free", "times")

    def __init__(self, now_s: float, free: int) -> None:
        self.times: list[float] = [now_s]
        self.free: list[int] = [free]

    def release(self, ends: Iterable[tuple[float, int]]) -> None:
        """Add nodes that come free for good: (time, nodes) in order of time. Only on a profile without later steps."""
        times, free = self.times, self.free
        last, now = times[-1], free[-1]
        for at, width in ends:
            now += width
            if at <= last:
                free[-1] = now
            else:
                times.append(at)
                free.append(now)
                last = at

    def reserve(self, width: int, start_s: float, end_s: float) -> None:
        """Use `width` nodes from `start_s` to `end_s` (negative: give them)."""
        times, free = self.times, self.free
        first = self._step(start_s) if start_s > times[0] else 0
        last = self._step(end_s) if end_s < EVER else len(times)
        for k in range(first, last):
            free[k] -= width

    def reserve_now(self, uses: Iterable[tuple[int, float]]) -> None:
        """Use nodes from the profile's beginning: (nodes, seconds) each. As many calls of `reserve`, in one pass."""
        begin = self.times[0]
        ends: dict[float, int] = {}
        for width, seconds in uses:
            end_s = begin + seconds
            ends[end_s] = ends.get(end_s, 0) + width
        for end_s in ends:
            if end_s < EVER:
                self._step(end_s)
        taken = sum(ends.values())
        for k, at in enumerate(self.times):
            taken -= ends.get(at, 0)
            self.free[k] -= taken

    def _step(self, at_s: float) -> int:
        """Index of the step that begins at `at_s`, made if there is none."""
        times = self.times
        k = bisect_left(times, at_s)
        if k == len(times) or times[k] != at_s:
            times.insert(k, at_s)
            self.free.insert(k, self.free[k - 1] if k else self.free[0])
        return k

    def fits(self, width: int, seconds: float) -> bool:
        """Whether `width` nodes are free for `seconds` from the profile's beginning."""
        times, free = self.times, self.free
        end = times[0] + seconds
        for k in range(len(times)):
            if times[k] >= end:
                return True
            if free[k] < width:
                return False
        return True

    def earliest(self, width: int, seconds: float) -> float:
        """First time from which `width` nodes are free for `seconds`; EVER if there is none."""
        times, free = self.times, self.free
        start = EVER
        for k in range(len(times)):
            if start < EVER and times[k] - start >= seconds:
                return start
            if free[k] < width:
                start = EVER
            elif start == EVER:
                start = times[k]
        return start

    def staircase(self) -> list[tuple[float, int]]:
        """How many nodes are free for how long from now: (seconds, nodes), ever longer, ever fewer, the last EVER."""
        steps: list[tuple[float, int]] = []
        begin = self.times[0]
        least = self.free[0]
        for at, free in zip(self.times, self.free, strict=True):
            if free < least:
                if least > 0:
                    steps.append((at - begin, least))
                least = free
                if least <= 0:
                    return steps
        if least > 0:
            steps.append((EVER, least))
        return steps


def startable(profile: FreeNodes, queue: Iterable[Waiting]) -> list[Waiting]:
    """The jobs of a queue that could start now if they were the first of it. A binary search for each job."""
    begin = profile.times[0]
    falls: list[float] = []
    least: list[int] = []  #: minus the fewest nodes that are free until then, and so ascending
    for at, free in zip(profile.times, profile.free, strict=True):
        if not least or -free > least[-1]:
            falls.append(at)
            least.append(-free)
    result = []
    for job in queue:
        k = bisect_right(least, -job.width)
        if k and (k == len(falls) or falls[k] >= begin + job.walltime_s):
            result.append(job)
    return result


class Outlook(NamedTuple):
    """What a queue does: jobs that start now, and (job, planned start) of the blocked ones that have a reservation."""

    starts: list[Waiting]
    planned: list[tuple[Waiting, float]]


def ahead(now_s: float, free: int, busy: Sequence[Busy], outages: Sequence[Outage]) -> FreeNodes:
    """The profile of `free` nodes now, more when those of `busy` reach their limits, fewer in outages."""
    profile = FreeNodes(now_s, free)
    soon = now_s + OVERDUE_S
    ends = [(each.ends_s if each.ends_s > now_s else soon, each.width) for each in busy]
    ends.sort()
    profile.release(ends)
    for outage in outages:
        if outage.end_s > now_s:
            profile.reserve(outage.width, max(now_s, outage.start_s), outage.end_s)
    return profile


def play(
    profile: FreeNodes, queue: Sequence[Waiting], reservations: int, *, is_order_known: bool = True
) -> Outlook:
    """What the queue does now, in order; `profile` then holds those starts and reservations, too.

    It ends where no later job could change anything, so it costs one comparison a job at most once all reservations
    are made. Where the order is not known it is as `in_any_order` has it, whatever the number of `reservations`.
    """
    if not is_order_known:
        return in_any_order(profile, queue)
    starts: list[Waiting] = []
    planned: list[tuple[Waiting, float]] = []
    begin = profile.times[0]
    free = profile.free[0]
    left = reservations
    for job in queue:
        width = job.width
        if width <= free and profile.fits(width, job.walltime_s):
            starts.append(job)
            profile.reserve(width, begin, begin + job.walltime_s)
            free = profile.free[0]
        elif left:
            at = profile.earliest(width, job.walltime_s)
            if at < EVER:
                left -= 1
                profile.reserve(width, at, at + job.walltime_s)
                planned.append((job, at))
        elif free <= 0:
            break
    return Outlook(starts, planned)


def in_any_order(profile: FreeNodes, queue: Sequence[Waiting]) -> Outlook:
    """What the queue may do now if any of its jobs may be the first of it; `profile` then holds that.

    Every job starts that could if it were the first. Together they may need more nodes than are free: `profile` holds
    them up to the first that leaves no node free, because whatever is decided on a profile without free nodes does not
    depend on more of them. Each blocked job gets a reservation where it would have one as the first, before any other
    starts: were it planned behind those that may start, Tidemill would hold its nodes for longer, the scheduler would
    plan it later, too, and others would start ahead of it (64 nodes, jobs of up to 12 h: 17 % longer waits).
    """
    possible = startable(profile, queue)
    first = {id(job) for job in possible}
    planned = _each_alone(profile, [job for job in queue if id(job) not in first])
    profile.reserve_now(_until_used_up(possible, profile.free[0]))
    widest = 0
    for job, at in planned:
        if job.width > widest:
            profile.reserve(job.width - widest, at, EVER)
            widest = job.width
    return Outlook(possible, planned)


def _each_alone(profile: FreeNodes, blocked: Iterable[Waiting]) -> list[tuple[Waiting, float]]:
    """(Job, its start if it were the first), the earliest first: the widest job of each group of like widths, which
    counts as starting when the narrowest and shortest of the group would."""
    shortest: dict[int, Waiting] = {}
    for job in blocked:
        known = shortest.get(job.width)
        if known is None or job.walltime_s < known.walltime_s:
            shortest[job.width] = job
    widths = sorted(shortest)
    size = -(-len(widths) // WIDTHS_MAX) or 1
    planned = []
    for k in range(0, len(widths), size):
        group = widths[k : k + size]
        at = profile.earliest(group[0], min(shortest[width].walltime_s for width in group))
        if at < EVER:
            planned.append((shortest[group[-1]], at))
    planned.sort(key=lambda each: each[1])
    return planned


def _until_used_up(jobs: Iterable[Waiting], free: int) -> list[tuple[int, float]]:
    """(nodes, seconds) of the first of `jobs` that need all free nodes, of all jobs if these need fewer."""
    used: list[tuple[int, float]] = []
    for job in jobs:
        used.append((job.width, job.walltime_s))
        free -= job.width
        if free <= 0:
            break
    return used
