"""Many paired runs of the simulator: seeds, replicas, processes; the report that `tidemill simulate` prints."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec

from tidemill.harvest.account.promise import (
    Judged,
    Promise,
    PromiseState,
    WaitBound,
    at_best,
    class_bound,
    mean_bound,
    promise_of,
    verdict_of,
)
from tidemill.harvest.account.waits import MeanDelay, RelativeChange, change, delay
from tidemill.harvest.plan.policies import Policy
from tidemill.model.figures.job_classes import size_edges
from tidemill.model.quantities import counted_text
from tidemill_study.simulation.outcome import JobClass, JobClasses, RunSummary, classes_of, digest, share
from tidemill_study.simulation.simulator import HOUR_S, SimulatedMachine, Tally, World
from tidemill_study.simulation.swf import Job

REPLICA_JOBS = 170_000
"""Each seed replays up to about this number of jobs: shorter logs, whose mean waits are noisier, get more replicas."""
REPLICAS_MAX = 24
JOBS_FEW = 100
DAYS_FEW = 14
"""A log with fewer jobs, or of less time, says little of a machine: verdicts come with a warning."""
REFERENCE_SHARE = 4
"""Policies for comparison run on one of this number of replicas."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a simulation: machine, jobs, policies."""

    world: World
    jobs: list[Job]
    policies: list[Policy]
    seeds: int
    replicas: int
    jitter_s: int
    workers: int = 1
    has_submissions: bool = (
        True  #: whether the log says when its jobs were submitted; waits mean nothing otherwise
    )


class SeedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one seed: without us, and of each policy the first ones of them."""

    without: list[RunSummary]
    policies: dict[str, list[RunSummary]]


class ClassResult(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a class: how their mean wait changes, relatively (`low` and `high`: 95 %) and in seconds (`delay_s`).

    `name` is the class of size, of length, or both (`model.figures.job_classes`); `over_s` and `up_to_s` (None = no
    bound) are the bounds of length, of run times or, in `by_limit`, of requests.
    """

    name: str
    nodes: int
    nodes_min: int
    over_s: float
    up_to_s: float | None
    jobs: int
    wait_change: float | None
    low: float | None
    high: float | None
    delay_s: MeanDelay
    wait_s: float
    wait_without_s: float
    slowdown: float
    slowdown_without: float
    slowdown_change: RelativeChange
    bound: WaitBound
    verdict: PromiseState


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy reaches. Shares are of the idle node-hours of the runs without us, on the same workloads."""

    useful: float | None
    useful_low: float | None
    useful_high: float | None
    useful_same_run: float | None
    occupied: float | None
    wait_change: RelativeChange
    slowdown_change: RelativeChange
    wait_s: float
    wait_without_s: float
    by_size: list[ClassResult]
    starts_per_h: float
    cancels_per_h: float
    calls_per_min: float  #: commands of the batch system: glances, polls, actions
    headroom: float | None  #: node-seconds that were kept idle for small jobs, of the idle ones without us
    idle_share: float | None
    seconds: float
    pairs: int
    delay_s: MeanDelay
    by_length: list[ClassResult]
    by_limit: list[ClassResult]
    by_size_and_length: list[ClassResult]
    mean_bound: WaitBound
    promise: Promise


def too_little(study: Study) -> list[str]:
    """Warnings that a log is too short to say much of its machine."""
    few = []
    if len(study.jobs) < JOBS_FEW:
        few.append(counted_text(len(study.jobs), "job"))
    if study.world.horizon_s < DAYS_FEW * 86_400:
        few.append(f"{study.world.horizon_s / 86_400:.1f} days")
    if not few:
        return []
    return [
        f"{' and '.join(few)} are too little to judge a machine by: waits and the promise need at least "
        f"{JOBS_FEW} jobs and {DAYS_FEW} days"
    ]


def replicas_for(jobs: int) -> int:
    """Replicas of a seed, by the length of the log."""
    return max(1, min(REPLICAS_MAX, REPLICA_JOBS // max(1, jobs)))


def runs_of(policy: Policy, replicas: int) -> int:
    """On how many replicas of a seed a policy is run."""
    return replicas if policy is Policy.YIELD else -(-replicas // REFERENCE_SHARE)


def jittered(jobs: Sequence[Job], name: str, jitter_s: int) -> list[Job]:
    """The workload of a replica: each job comes up to `jitter_s` later."""
    chance = random.Random(f"jitter {name}")
    moved = [job._replace(submit_s=job.submit_s + chance.randint(0, jitter_s)) for job in jobs]
    moved.sort(key=lambda job: job.submit_s)
    return moved


def horizon_of(jobs: Sequence[Job]) -> float:
    """Until when nodes are counted: the last submission; of a log of less than a day, the end of its last job."""
    last = max(job.submit_s for job in jobs)
    return float(last if last >= 86400 else max(job.submit_s + job.run_s for job in jobs))


def run_seed(study: Study, seed: int) -> SeedRuns:
    """All runs of a seed."""
    classes = classes_of(study.jobs, study.world.nodes)
    without: list[RunSummary] = []
    found: dict[str, list[RunSummary]] = {policy.value: [] for policy in study.policies}
    for replica in range(study.replicas):
        name = f"{seed}.{replica}"
        jobs = jittered(study.jobs, name, study.jitter_s)
        without.append(timed(study.world, jobs, classes, name=name, policy=None))
        for policy in study.policies:
            if replica < runs_of(policy, study.replicas):
                run = timed(study.world, jobs, classes, name=name, policy=policy)
                found[policy.value].append(run)
    return SeedRuns(without=without, policies=found)


def timed(
    world: World, jobs: Sequence[Job], classes: JobClasses, *, name: str, policy: Policy | None
) -> RunSummary:
    """One run and its CPU seconds."""
    began = time.process_time()
    tally = SimulatedMachine(world, jobs, policy=policy, seed=name).run()
    return digest(tally, jobs, classes, cpu_s=time.process_time() - began)


def tide_of(study: Study, policy: Policy | None) -> Tally:
    """One run (the first of seed 1) with its nodes over time; `policy` None: without us."""
    machine = SimulatedMachine(
        study.world, jittered(study.jobs, "1.0", study.jitter_s), policy=policy, seed="1.0"
    )
    machine.keep_tide = True
    return machine.run()


def run_all(study: Study) -> list[SeedRuns]:
    """All seeds, on `workers` processes."""
    seeds = range(1, study.seeds + 1)
    if study.workers <= 1 or study.seeds == 1:
        return [run_seed(study, seed) for seed in seeds]
    with ProcessPoolExecutor(min(study.workers, study.seeds)) as pool:
        return list(pool.map(partial(run_seed, study), seeds))


def results_of(study: Study, runs: Sequence[SeedRuns]) -> dict[str, Result]:
    """The figures of each policy, over all pairs of all seeds."""
    return {policy.value: result_of(study, runs, policy) for policy in study.policies}


def result_of(study: Study, runs: Sequence[SeedRuns], policy: Policy) -> Result:
    """The figures of one policy."""
    with_us = [run for each in runs for run in each.policies[policy.value]]
    without = [run for each in runs for run in each.without[: len(each.policies[policy.value])]]
    waits = PairedWaits(without, with_us, nodes=study.world.nodes, is_judged=study.has_submissions)
    by = waits.results(classes_of(study.jobs, study.world.nodes))
    idle_s = sum(run.idle_s for run in without)
    useful_s = sum(run.useful_s for run in with_us)
    bounds = change([run.idle_s for run in without], [run.useful_s for run in with_us])
    hours = len(with_us) * study.world.horizon_s / HOUR_S
    return Result(
        useful=share(useful_s, idle_s),
        useful_low=None if bounds.low is None else 1 + bounds.low,
        useful_high=None if bounds.high is None else 1 + bounds.high,
        useful_same_run=share(useful_s, sum(run.idle_s for run in with_us)),
        occupied=share(sum(run.held_s for run in with_us), idle_s),
        wait_change=change([run.waits_s[0] for run in without], [run.waits_s[0] for run in with_us]),
        slowdown_change=change([run.slowdowns[0] for run in without], [run.slowdowns[0] for run in with_us]),
        wait_s=mean([run.waits_s[0] for run in with_us]),
        wait_without_s=mean([run.waits_s[0] for run in without]),
        by_size=by.sizes,
        starts_per_h=sum(run.starts for run in with_us) / hours,
        cancels_per_h=sum(run.cancels for run in with_us) / hours,
        calls_per_min=sum(run.calls for run in with_us) / hours / 60,
        headroom=share(sum(run.kept_s for run in with_us), idle_s),
        idle_share=share(idle_s, sum(run.capacity_s for run in without)),
        seconds=sum(run.cpu_s for run in [*with_us, *without]) / len(runs),
        pairs=len(with_us),
        delay_s=by.delay_s,
        by_length=by.lengths,
        by_limit=by.limits,
        by_size_and_length=by.both,
        mean_bound=by.mean_bound,
        promise=by.promise,
    )


class ClassResults(NamedTuple):
    """The classes of a policy, and its verdict."""

    sizes: list[ClassResult]
    lengths: list[ClassResult]
    limits: list[ClassResult]
    both: list[ClassResult]
    delay_s: MeanDelay
    mean_bound: WaitBound
    promise: Promise


class PairedWaits:
    """The waits of all pairs on a machine of `nodes`, place by place of their digests."""

    def __init__(
        self,
        without: Sequence[RunSummary],
        with_us: Sequence[RunSummary],
        *,
        nodes: int,
        is_judged: bool = True,
    ) -> None:
        self._without, self._with_us, self._nodes, self._is_judged = without, with_us, nodes, is_judged
        self._jobs = 0

    def results(self, classes: JobClasses) -> ClassResults:
        """All classes, in the order of a digest."""
        self._jobs = sum(each.jobs for each in classes.sizes)
        both = [each for _, _, each in classes.both]
        everything = [*classes.sizes, *classes.lengths, *classes.limits, *both]
        largest = largest_jobs(classes, self._nodes)
        found = [
            # the same jobs have one bound in every table
            self._result(each, k, is_largest=each.jobs == largest and is_over_quarter(each, self._nodes))
            for k, each in enumerate(everything, 1)
        ]
        lengths = len(classes.sizes)
        limits = lengths + len(classes.lengths)
        rest = limits + len(classes.limits)
        judged = [
            Judged(
                name=f"limit {each.name}" if limits <= k < rest else each.name,
                verdict=each.verdict,
                belongs=k < limits,
            )
            for k, each in enumerate(found)
        ]
        moved, later = self._change(0)
        bound = mean_bound(moved)
        return ClassResults(
            sizes=found[:lengths],
            lengths=found[lengths:limits],
            limits=found[limits:rest],
            both=found[rest:],
            delay_s=later,
            mean_bound=bound,
            promise=promise_of(self._verdict(bound, moved, later), judged),
        )

    def _verdict(self, bound: WaitBound, moved: RelativeChange, later: MeanDelay) -> PromiseState:
        return at_best(verdict_of(bound, moved, later), jobs=self._jobs, is_judged=self._is_judged)

    def _change(self, k: int) -> tuple[RelativeChange, MeanDelay]:
        before, after = [run.waits_s[k] for run in self._without], [run.waits_s[k] for run in self._with_us]
        return change(before, after), delay(before, after)

    def _result(self, of: JobClass, k: int, *, is_largest: bool) -> ClassResult:
        moved, later = self._change(k)
        bound = class_bound(moved, is_largest=is_largest)
        without, with_us = self._without, self._with_us
        return ClassResult(
            name=of.name,
            nodes=of.nodes,
            nodes_min=of.nodes_min,
            over_s=of.over_s,
            up_to_s=of.up_to_s,
            jobs=of.jobs,
            wait_change=moved.mean,
            low=moved.low,
            high=moved.high,
            delay_s=later,
            wait_s=mean([run.waits_s[k] for run in with_us]),
            wait_without_s=mean([run.waits_s[k] for run in without]),
            slowdown=mean([run.slowdowns[k] for run in with_us]),
            slowdown_without=mean([run.slowdowns[k] for run in without]),
            slowdown_change=change(
                [run.slowdowns[k] for run in without], [run.slowdowns[k] for run in with_us]
            ),
            bound=bound,
            verdict=self._verdict(bound, moved, later),
        )


def largest_jobs(classes: JobClasses, nodes: int) -> int:
    """How many jobs the class over a quarter of the machine has; 0 where they joined smaller ones."""
    return sum(each.jobs for each in classes.sizes if is_over_quarter(each, nodes))


def is_over_quarter(of: JobClass, nodes: int) -> bool:
    """Whether all jobs of a class are over a quarter of the machine, as the last class of size is named."""
    return of.nodes_min > size_edges(nodes)[-2]


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
