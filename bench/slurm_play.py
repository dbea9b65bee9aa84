"""Which mixes of regular jobs can show who made a job wait? Slurm's scheduling played on a mix, many times.

In some mixes a second decides which of two jobs starts first, and with it minutes of many waits: there a late job does
not show which job took that second. A mix is steady if no job starts more than MOVED_S earlier or later when
jobs run up to VARIED_S longer, come a little later, and cycles have another phase. We take no part in this.

The rules are those of the clusters of `bench/slurm_harvest.py`: in order of submission until one does not fit, at each
end and submission; sched/backfill (`tidemill.harvest.snapshot.backfill`) every CYCLE_S.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import NamedTuple

from bench.slurm_mix import NODES, VARIED_S, RegularJob, mix

from tidemill.harvest.plan.situation import Waiting
from tidemill.harvest.snapshot.backfill import NodesRelease, chosen, planned

CYCLE_S = 2.0
MOVED_S = 30.0
PLAYS = 20
IDLE = (0.15, 0.45)
LATE_S = 0.3  # a submission takes at most this long


class Variation(NamedTuple):
    """How much longer each job runs and how much later it comes, and when the first cycle is."""

    longer_s: Sequence[float]
    later_s: Sequence[float]
    phase_s: float


class _Runs(NamedTuple):
    ends_s: float
    limit_s: float
    nodes: frozenset[int]


class _Play:
    def __init__(self, jobs: Sequence[RegularJob], varied: Variation) -> None:
        self.jobs = jobs
        self.varied = varied
        self.free = frozenset(range(NODES))
        self.queue: list[int] = []
        self.running: dict[int, _Runs] = {}
        self.started_s: dict[str, float] = {}

    def start(self, index: int, nodes: frozenset[int], now_s: float) -> None:
        job = self.jobs[index]
        self.started_s[job.name] = now_s
        ends_s = now_s + job.run_s + self.varied.longer_s[index]
        self.running[index] = _Runs(ends_s, now_s + job.limit_min * 60.0, nodes)
        self.free -= nodes
        self.queue.remove(index)

    def end(self, now_s: float) -> None:
        for index in [index for index, each in self.running.items() if each.ends_s <= now_s]:
            self.free |= self.running.pop(index).nodes

    def schedule(self, now_s: float) -> None:
        while self.queue and self.jobs[self.queue[0]].width <= len(self.free):
            index = self.queue[0]
            self.start(index, frozenset(chosen(self.free, self.jobs[index].width)), now_s)

    def backfill(self, now_s: float) -> None:
        waiting = [
            Waiting(str(index), self.jobs[index].width, self.jobs[index].limit_min * 60.0)
            for index in self.queue
        ]
        endings = [NodesRelease(each.limit_s, each.nodes) for each in self.running.values()]
        for name, plan in planned(self.free, endings, waiting, now_s).items():
            if plan.at_s <= now_s:
                self.start(int(name), plan.places, now_s)


def play(jobs: Sequence[RegularJob], varied: Variation) -> dict[str, float]:
    """When each job starts, in seconds."""
    it = _Play(jobs, varied)
    coming = sorted((job.at_s + varied.later_s[index], index) for index, job in enumerate(jobs))
    cycle_s = varied.phase_s
    while coming or it.queue or it.running:
        moments = [each.ends_s for each in it.running.values()]
        moments += [coming[0][0]] if coming else []
        now_s = min([*moments, cycle_s] if it.queue else moments)
        it.end(now_s)
        while coming and coming[0][0] <= now_s:
            it.queue.append(coming.pop(0)[1])
        it.schedule(now_s)
        if cycle_s <= now_s:
            cycle_s += ((now_s - cycle_s) // CYCLE_S + 1) * CYCLE_S
            it.backfill(now_s)
    return it.started_s


def is_steady(jobs: Sequence[RegularJob], seed: int) -> bool:
    """Whether no job moves by more than MOVED_S in PLAYS plays."""
    zero = [0.0] * len(jobs)
    plain = play(jobs, Variation(zero, zero, CYCLE_S / 2))
    rng = random.Random(f"plays {seed}")
    for _ in range(PLAYS):
        longer = [rng.uniform(0.0, VARIED_S) for _ in jobs]
        later = [rng.uniform(0.0, LATE_S) for _ in jobs]
        varied = play(jobs, Variation(longer, later, rng.uniform(0.0, CYCLE_S)))
        if any(abs(varied[name] - at_s) > MOVED_S for name, at_s in plain.items()):
            return False
    return True


def idle_share(jobs: Sequence[RegularJob], *, since_s: float, until_s: float) -> float:
    """Share of node-seconds without a job between two moments."""
    zero = [0.0] * len(jobs)
    starts = play(jobs, Variation(zero, zero, CYCLE_S / 2))
    busy = sum(
        job.width * max(0.0, min(starts[job.name] + job.run_s, until_s) - max(starts[job.name], since_s))
        for job in jobs
    )
    return 1.0 - busy / (NODES * (until_s - since_s))


def steady_seeds(number: int, *, load: float, seconds: float, since_s: float) -> list[int]:
    """The first seeds, from 1 on, whose mix is steady and leaves a share of IDLE."""

    def found() -> Iterator[int]:
        for seed in count(1):
            jobs = mix(seed, load=load, seconds=seconds)
            share = idle_share(jobs, since_s=since_s, until_s=seconds)
            if IDLE[0] <= share <= IDLE[1] and is_steady(jobs, seed):
                yield seed

    return list(islice(found(), number))
