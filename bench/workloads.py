"""The log of a synthetic machine: `python bench/workloads.py SHAPE --seed 1 -o FILE.swf.gz`. There are eight shapes.

A workload is bursts of equal jobs that arrive by hour, weekday and a day's own factor, until they fill the stated load.
Waits are those of a scheduler without a guest, so that the log also shows its maintenance. The same seed gives the same
bytes. Parameters and their sources: `workload_shapes.py`.
"""

from __future__ import annotations

import argparse
import gzip
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.workload_shapes import DAY_S, HOUR_S, SHAPES, Kind, Shape

from tidemill_study.simulation.simulator import SimulatedMachine, World
from tidemill_study.simulation.swf import Job

MONDAY_S = 1704067200
"""When a log begins: 2024-01-01 00:00 UTC, a Monday."""
FOLLOWING_SHARE = 0.25
"""How much of a day's factor the next keeps: correlation of the logarithm of jobs a day, 0.24 to 0.46 in the logs."""
REFUSED_MAX = 20  #: bursts in a row that are too large for what is left: then the machine is full enough
USERS = 160
"""As many as in Mira's log; the k-th busiest submits in proportion to 1/k, so the first 17.7 %, as there."""
COLUMNS = "{id} {submit} {wait} {run} {width} -1 -1 {width} {limit} -1 1 {user} -1 -1 -1 -1 -1 -1\n"


class Burst(NamedTuple):
    """Jobs that one user submits together: all the same width and limit."""

    work_s: int
    user: int
    width: int
    limit_s: int
    runs_s: list[int]
    kind: Kind


@dataclass(frozen=True)
class Workload:
    """Jobs by submission, whose they are, and the times in which the machine is out of service."""

    shape: Shape
    seed: int
    days: int
    jobs: list[Job]
    users: list[int]
    outages: list[tuple[int, int]]


def workload(shape: Shape, seed: int, *, days: int | None = None) -> Workload:
    """The jobs of a shape and seed; `days` (default: the shape's own) makes a shorter log of the same machine."""
    days = days or shape.days
    chance = random.Random(f"workload {shape.name} {seed} {days}")
    outages = outages_of(shape, days)
    up_s = days * DAY_S - sum(end - start for start, end in outages)
    hours = {kind.name: hours_of(shape, kind, day_factors(chance, shape, days)) for kind in shape.kinds}
    found: list[tuple[int, int, Job]] = []
    for burst in bursts_until(chance, shape, shape.load * shape.nodes * up_s):
        at_s = arrival_s(chance, hours[burst.kind.name])
        for run_s in burst.runs_s:
            found.append((at_s, burst.user, Job(at_s, run_s, burst.width, burst.limit_s)))
            at_s += burst.kind.gap_s(chance)
    found = [each for each in found if each[0] < days * DAY_S]
    found.sort(key=lambda each: each[0])
    return Workload(shape, seed, days, [each[2] for each in found], [each[1] for each in found], outages)


def bursts_until(chance: random.Random, shape: Shape, work_s: float) -> Iterator[Burst]:
    """Bursts whose node-seconds fill `work_s`; one that would overfill it is left out."""
    shares = [kind.share for kind in shape.kinds]
    ranks = list(accumulate(1 / rank for rank in range(1, USERS + 1)))
    refused = 0
    while work_s > 0 and refused < REFUSED_MAX:
        kind = chance.choices(shape.kinds, shares)[0]
        width = min(kind.width(chance), shape.nodes)
        run_s, limit_s = kind.times(chance, width)
        runs_s = [run_s]
        spread = kind.spread(chance)
        for _ in range(kind.size(chance) - 1):
            runs_s.append(max(1, min(limit_s, round(run_s * math.exp(chance.gauss(0.0, spread))))))
        user = chance.choices(range(1, USERS + 1), cum_weights=ranks)[0]
        burst = Burst(width * sum(runs_s), user, width, limit_s, runs_s, kind)
        if burst.work_s > work_s:
            refused += 1
            continue
        refused = 0
        work_s -= burst.work_s
        yield burst


def day_factors(chance: random.Random, shape: Shape, days: int) -> list[float]:
    """How busy users are on each day: log-normal, one day like the last to a quarter."""
    factors: list[float] = []
    level = chance.gauss(0.0, 1.0)
    for _ in range(days):
        factors.append(math.exp(shape.day_spread * level))
        fresh = chance.gauss(0.0, 1.0)
        level = FOLLOWING_SHARE * level + math.sqrt(1 - FOLLOWING_SHARE**2) * fresh
    return factors


def hours_of(shape: Shape, kind: Kind, factors: list[float]) -> list[float]:
    """Cumulative weights of the hours of a log for the arrival of a kind of job."""
    week, day = kind.weekdays or shape.weekdays, kind.hours or shape.hours
    return list(accumulate(factor * week[k % 7] * hour for k, factor in enumerate(factors) for hour in day))


def arrival_s(chance: random.Random, hours: list[float]) -> int:
    """A time of arrival."""
    hour = chance.choices(range(len(hours)), cum_weights=hours)[0]
    return hour * HOUR_S + chance.randrange(HOUR_S)


def outages_of(shape: Shape, days: int) -> list[tuple[int, int]]:
    """Maintenance of the whole machine."""
    return [
        (day * DAY_S + each.hour * HOUR_S, day * DAY_S + (each.hour + each.hours) * HOUR_S)
        for day in range(days)
        for each in shape.maintenance
        if day % each.every_days == each.weekday
    ]


def waits_of(made: Workload) -> list[int]:
    """How long each job waits in the simulator's scheduler without a guest."""
    world = World(nodes=made.shape.nodes, outages=made.outages)
    machine = SimulatedMachine(world, made.jobs, policy=None, seed=f"{made.shape.name} {made.seed}")
    return [round(wait_s) for wait_s in machine.run().waits_s]


def swf_text(made: Workload) -> str:
    """The log in the Standard Workload Format."""
    shape = made.shape
    head = (
        "; Version: 2.2\n"
        f"; Computer: synthetic, shape {shape.name}: {shape.about}\n"
        f"; Note: seed {made.seed}, {made.days} days; no real log, parameters fitted to real ones\n"
        f"; MaxJobs: {len(made.jobs)}\n; MaxNodes: {shape.nodes}\n; MaxProcs: {shape.nodes}\n"
        f"; UnixStartTime: {MONDAY_S}\n"
    )
    rows = zip(made.jobs, made.users, waits_of(made), strict=True)
    return head + "".join(
        COLUMNS.format(
            id=k,
            submit=job.submit_s,
            wait=wait_s,
            run=job.run_s,
            width=job.width,
            limit=job.limit_s,
            user=user,
        )
        for k, (job, user, wait_s) in enumerate(rows, start=1)
    )


def write(path: Path, made: Workload) -> None:
    """Write the log, compressed if its name ends in `.gz`."""
    text = swf_text(made).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def main() -> int:
    """Write one log."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=sorted(SHAPES), help="which machine")
    parser.add_argument("--seed", type=int, default=1, help="another seed is another log (default: 1)")
    parser.add_argument("--days", type=int, help="length of the log (default: 14 to 28, by the shape)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="such as LOG.swf.gz")
    args = parser.parse_args()
    made = workload(SHAPES[args.shape], args.seed, days=args.days)
    write(args.output, made)
    print(f"wrote `{args.output}`: {len(made.jobs):,} jobs on {made.shape.nodes:,} nodes, {made.days} days")
    return 0


if __name__ == "__main__":
    sys.exit(main())
