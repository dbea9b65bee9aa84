"""Stress tests: are planted figures recovered by the filter, and are levels held on a real site?

    .venv/bin/python bench/stress.py --json [--seeds 20] [--time-scale 10]

Each seed plays a site of 16 nodes with a planted CPU/wall, a planted knee of throughput, one slow node, payloads of
random length whose CPU/wall depends on their length, and 5 % failures. `recovered_seeds`: seeds in which the planted
CPU/wall of every level and the knee lie in their 95 % intervals, those are at most 10 % wide, and the slow node (and no
other) is named.

Then a server, an agent and 16 nodes of one core run on this machine, time 10 times as fast: levels 4, 8, 12 and 16 of
payloads of random length, 5 % of which fail, for 10 minutes each. `worst_level_error`: the largest relative distance of
a minute's time-weighted mean of the number running from its level. `monitor_core_share`: of a node's monitor.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.stress_site import levels, monitor_core_share

from tidemill_stress.analysis import Analysis, analyse
from tidemill_stress.payloads import Payload
from tidemill_stress.plan import PayloadPlan, Plan, StressStep
from tidemill_stress.run import Run, StepRun

LEVELS = (4, 8, 12, 16)
NODES = 16
HOLD_S, SETTLE_S = 600.0, 60.0
WIDTH_MAX = 0.10
FAILED = 0.05
EVENTS = 10


class Truth(NamedTuple):
    """What a seed plants."""

    knee: float = 10.0
    after: float = 0.1  #: what a payload beyond the knee brings, of one before it
    cpu_wall: float = 0.85  #: up to the knee
    bias: float = 0.1  #: how far a payload's CPU/wall follows its length
    length_s: float = 3.0
    spread: float = 0.3  #: of lengths, relative
    node_spread: float = 0.01
    slow: int = 7
    slow_factor: float = 1.4

    def stretch(self, level: int) -> float:
        """How much longer payloads run at a level than below the knee."""
        return level / (min(level, self.knee) + self.after * max(0.0, level - self.knee))

    def cpu(self, level: int) -> float:
        """CPU/wall of all payloads of a level together."""
        return self.cpu_wall / self.stretch(level) * (1 + self.bias * self.spread**2)


def play(truth: Truth, level: int, dice: random.Random) -> list[Payload]:
    """Payloads of a level, from its start to the end of its window and beyond."""
    start_s = 1_800_000_000.0
    factors = [math.exp(dice.gauss(0, truth.node_spread)) for _ in range(NODES)]
    factors[truth.slow] *= truth.slow_factor
    free, busy = list(range(NODES)), list[tuple[float, int]]()
    found, now = [], start_s
    stretch, shape = truth.stretch(level), 1 / truth.spread**2
    while now < start_s + SETTLE_S + HOLD_S + 20 * truth.length_s:
        while len(busy) < level:
            node = free.pop(dice.randrange(len(free)))
            own = dice.gammavariate(shape, 1 / shape)
            wall = truth.length_s * own * stretch * factors[node]
            share = truth.cpu_wall / stretch * (1 + truth.bias * (own - 1)) * math.exp(dice.gauss(0, 0.03))
            failure = "exit" if dice.random() < FAILED else ""
            wall *= dice.random() if failure else 1.0
            name = f"n{node:02}"
            found.append(Payload(name, now, now + wall, wall * share, 0.5, 0 if failure else EVENTS, failure))
            heapq.heappush(busy, (now + wall, node))
        now, node = heapq.heappop(busy)
        free.append(node)
    return found


def recovered(truth: Truth, seed: int) -> tuple[bool, dict[str, Any]]:
    """Whether a seed's figures are recovered, and which."""
    dice = random.Random(seed)
    plan = Plan(
        name="synthetic", payload=PayloadPlan(event_s=1.0, command=["x"]), levels=list(LEVELS), seed=seed
    )
    run = Run(id=f"seed-{seed}", mode="run", plan=plan, digest="", version="", started_us=0)
    for number, level in enumerate(LEVELS, 1):
        payloads = play(truth, level, dice)
        start_s = payloads[0].start_s + SETTLE_S
        run.steps.append(
            StepRun(
                step=StressStep(number, "", level), campaign="", status="measured", start_s=start_s,
                end_s=start_s + HOLD_S,
                payloads=payloads,
            )
        )  # fmt: skip
    return judge(truth, seed, analyse(run))


def judge(truth: Truth, seed: int, found: Analysis) -> tuple[bool, dict[str, Any]]:
    """Compare an analysis with what was planted."""
    figures = [(each.step.level, each.figures) for each in found.steps if each.figures is not None]
    cpu = all(of.cpu_wall.holds(truth.cpu(level)) for level, of in figures)
    at = found.knees[""].at
    widths = [of.cpu_wall.width for _, of in figures] + ([at.width] if at else [math.inf])
    slow = [each.node for each in found.nodes if each.verdict == "slow"]
    row = {
        "seed": seed, "cpu_wall": cpu, "knee": at is not None and at.holds(truth.knee),
        "slow_node": slow == [f"n{truth.slow:02}"], "widest": round(max(widths), 4),
        "knee_at": None if at is None else [round(each, 2) for each in (at.value, at.low, at.high)],
        "cpu_walls": [
            [round(each, 4) for each in (of.cpu_wall.low, truth.cpu(level), of.cpu_wall.high)] for level, of in figures
        ],
    }  # fmt: skip
    good = (
        cpu and row["knee"] and row["slow_node"] and max(widths) <= WIDTH_MAX and len(figures) == len(LEVELS)
    )
    return bool(good), row


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--time-scale", type=float, default=10.0, help="0 = no real site")
    args = parser.parse_args()
    rows = [recovered(Truth(), seed) for seed in range(1, args.seeds + 1)]
    figures = {
        **(levels(args.time_scale) if args.time_scale else {}), "monitor_core_share": monitor_core_share(),
        "recovered_seeds": sum(good for good, _ in rows), "seeds": args.seeds,
        "recovered_cpu_wall": sum(row["cpu_wall"] for _, row in rows),
        "recovered_knee": sum(row["knee"] for _, row in rows),
        "found_slow_node": sum(row["slow_node"] for _, row in rows),
        "widest_interval": max(row["widest"] for _, row in rows),
    }  # fmt: skip
    if args.json:
        print(json.dumps({**figures, "of_seeds": [row for _, row in rows]}))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value}")
    sys.exit(0)


if __name__ == "__main__":
    main()
