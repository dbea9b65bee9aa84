"""The regular jobs of `bench/slurm_harvest.py`, and what a run of them shows. Pure: no clock, no process.

Jobs come as a Poisson process, want 1 to 16 nodes and run 20 to 180 s (both log-uniform), about 60 times shorter than
on a real machine, and ask for 1.5 to 3 times what they need, rounded up to Slurm's minutes. Small jobs, if asked for,
come as bursts of one to four jobs of one node that run 10 to 30 s.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, field, replace

from tidemill.harvest.account.waits import delay

NODES = 16
RUN_S = (20.0, 180.0)
ASKED = (1.5, 3.0)
SMALL = "s"  #: begin of the names of small jobs
SMALL_RUN_S = (10.0, 30.0)
SMALL_BURST = (1, 4)  #: jobs of a burst of small ones
SMALL_APART_S = 1.0  #: mean time between two of a burst
VARIED_S = 3.0  #: about the delay of a job that waits for a poll and a yield
MEAN_WIDTH = (NODES - 1) / math.log(NODES)
MEAN_RUN_S = (RUN_S[1] - RUN_S[0]) / math.log(RUN_S[1] / RUN_S[0])


@dataclass(frozen=True)
class RegularJob:
    """A regular job, submitted `at_s` after the start of the run."""

    name: str
    at_s: float
    width: int
    run_s: float
    limit_min: int


@dataclass
class Times:
    """When a job was submitted, started and ended in one cluster: seconds on this host's clock."""

    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    failed: str = ""

    @property
    def wait_s(self) -> float | None:
        """Seconds in the queue, None while it has not started."""
        return None if self.started_s is None else self.started_s - self.submitted_s


@dataclass
class Run:
    """One cluster's run of a mix: job name -> times. `done_s`: end of each harvested event."""

    times: dict[str, Times]
    done_s: list[float] = field(default_factory=list)


def mix(seed: int, *, load: float, seconds: float) -> list[RegularJob]:
    """The jobs of a seed; `load` is the offered share of the machine's node-seconds."""
    rng = random.Random(f"regular jobs {seed}")
    rate = load * NODES / (MEAN_WIDTH * MEAN_RUN_S)
    jobs: list[RegularJob] = []
    at_s = 0.0
    while True:
        at_s += rng.expovariate(rate)
        if at_s >= seconds:
            return jobs
        width = min(NODES, round(math.exp(rng.uniform(0.0, math.log(NODES)))))
        run_s = math.exp(rng.uniform(math.log(RUN_S[0]), math.log(RUN_S[1])))
        limit_min = math.ceil(run_s * rng.uniform(*ASKED) / 60.0)
        jobs.append(RegularJob(f"r{seed}-{len(jobs)}", at_s, width, run_s, limit_min))


def small(seed: int, *, per_min: float, seconds: float) -> list[RegularJob]:
    """Small jobs of a seed, in order of time; `per_min` of them a minute on average."""
    rng = random.Random(f"small jobs {seed}")
    jobs: list[RegularJob] = []
    at_s = 0.0
    while per_min > 0:
        at_s += rng.expovariate(per_min / 60 / (sum(SMALL_BURST) / 2))
        if at_s >= seconds:
            break
        one_s = at_s
        for _ in range(rng.randint(*SMALL_BURST)):
            jobs.append(RegularJob(f"{SMALL}{seed}-{len(jobs)}", one_s, 1, rng.uniform(*SMALL_RUN_S), 1))
            one_s += rng.expovariate(1 / SMALL_APART_S)
    return sorted((job for job in jobs if job.at_s < seconds), key=lambda job: job.at_s)


def is_small(name: str) -> bool:
    """Whether a job of this name is one of the small ones."""
    return name.startswith(SMALL)


def vary(jobs: list[RegularJob], seed: int, *, by_s: float) -> list[RegularJob]:
    """The same jobs, each of which runs up to `by_s` longer."""
    rng = random.Random(f"varied {seed}")
    return [replace(job, run_s=job.run_s + rng.uniform(0.0, by_s)) for job in jobs]


def busy_node_s(jobs: list[RegularJob], run: Run, *, since_s: float, until_s: float) -> float:
    """Node-seconds of regular jobs between two moments."""
    total = 0.0
    for job in jobs:
        times = run.times.get(job.name)
        if times is None or times.started_s is None:
            continue
        ended_s = times.ended_s if times.ended_s is not None else until_s
        total += job.width * max(0.0, min(ended_s, until_s) - max(times.started_s, since_s))
    return total


def events_done(run: Run, *, since_s: float, until_s: float) -> int:
    """Harvested events that ended between two moments."""
    return sum(since_s <= at_s < until_s for at_s in run.done_s)


@dataclass(frozen=True)
class Delays:
    """How much later regular jobs started with us: against the mean of two runs without us, which also differ."""

    each_s: list[float]
    noise_s: list[float]  #: second run without us minus the first
    varied_s: list[float]  #: as `each_s`, of a run without us whose jobs last a little longer
    small_s: list[float]  #: those of `each_s` that are of small jobs
    small_noise_s: list[float]

    @staticmethod
    def of(jobs: list[RegularJob], runs: tuple[Run, Run, Run, Run]) -> Delays:
        """Delays of the jobs that started in all runs: the two without us, the varied one, and the one with us."""
        found = Delays([], [], [], [], [])
        for job in jobs:
            waits = [run.times[job.name].wait_s if job.name in run.times else None for run in runs]
            first, second, varied, with_us = waits
            if first is None or second is None or varied is None or with_us is None:
                continue
            usual_s = (first + second) / 2
            found.each_s.append(with_us - usual_s)
            found.noise_s.append(second - first)
            if is_small(job.name):
                found.small_s.append(found.each_s[-1])
                found.small_noise_s.append(found.noise_s[-1])
            found.varied_s.append(varied - usual_s)
        return found


def _bounds(each_s: list[float]) -> dict[str, float]:
    """95 % bounds of the mean delay over the jobs; without two jobs none."""
    found = delay([0.0] * len(each_s), each_s) if len(each_s) > 1 else None
    if found is None or found.low is None or found.high is None:
        return {}
    return {"mean_delay_low_s": round(found.low, 2), "mean_delay_high_s": round(found.high, 2)}


def pooled(delays: list[Delays]) -> dict[str, float | int]:
    """The figures over all seeds."""
    each_s = [one for each in delays for one in each.each_s]
    noise_s = [one for each in delays for one in each.noise_s]
    varied_s = [one for each in delays for one in each.varied_s]
    small_s = [one for each in delays for one in each.small_s]
    small_noise_s = [one for each in delays for one in each.small_noise_s]
    small = (
        {
            "small_jobs": len(small_s),
            "small_mean_delay_s": round(statistics.fmean(small_s), 2),
            "small_worst_delay_s": round(max(small_s), 1),
            "small_baseline_mean_s": round(statistics.fmean(small_noise_s), 2),
        }
        if small_s
        else {}
    )
    return {
        **small,
        "jobs": len(each_s),
        "mean_delay_s": round(statistics.fmean(each_s), 2) if each_s else 0.0,
        **_bounds(each_s),
        "delayed_over_30s": sum(one > 30.0 for one in each_s),
        "worst_delay_s": round(max(each_s, default=0.0), 1),
        "baseline_mean_s": round(statistics.fmean(noise_s), 2) if noise_s else 0.0,
        "baseline_worst_s": round(max((abs(one) for one in noise_s), default=0.0), 1),
        "varied_mean_s": round(statistics.fmean(varied_s), 2) if varied_s else 0.0,
        "varied_over_30s": sum(one > 30.0 for one in varied_s),
        "varied_worst_s": round(max(varied_s, default=0.0), 1),
    }
