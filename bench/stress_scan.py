"""The scan of slots per node, with Pythia, on this machine: does its recommendation hold when it is repeated?

    .venv/bin/python bench/stress_scan.py [--rounds 2] [--slots 1,2,4,6,8] [--hold 45] [--pages DIR] [--json]

A site of one node with as many emulated cores as the largest number of slots runs payloads that initialise Pythia 8 and
generate 600 collisions each, one process per payload. What really is there is this machine's cores, so the
throughput should stop growing at their number. Run it on a quiet machine: the load of other users moves the knee. With
`--pages` each round's page and data are kept there in round-N.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worlds.home.world import World, world

from tidemill_stress import store
from tidemill_stress.analysis import analyse
from tidemill_stress.plan import StressStep

EVENT_S = 3.0
GENERATE = """
import os, pythia8mc
pythia = pythia8mc.Pythia("", False)
seed = 1 + int(os.environ["TIDEMILL_SEED"]) % 900_000_000
for line in ("Print:quiet = on", "Beams:eCM = 13000", "SoftQCD:nonDiffractive = on", "Random:setSeed = on",
             f"Random:seed = {seed}"):
    pythia.readString(line)
assert pythia.init()
made = sum(pythia.next() for _ in range(600))
assert made > 590, made
"""
TEST = """
name = "pythia-slots"
hold_s = {hold}
ramp_up_s = 90
ramp_down_s = 30
[payload]
command = [{python}, "-c", {script}]
event_s = {event}
memory_mb = 200
[scan]
node_cores = {cores}
slots = {slots}
"""


def scan(site: World, test: Path, runs: str, most_s: float) -> dict[str, Any]:
    """One round. Raises SystemExit where it stops."""
    done = site.run("stress", "scan", str(test), "--runs", runs, timeout_s=most_s)
    if done.returncode:
        sys.exit(f"tidemill stress scan ended with {done.returncode}: {done.stderr}")
    (directory,) = (site.home / "me" / runs).iterdir()
    found = analyse(store.load(directory))
    (best, why), *_ = found.slots.values()
    rates = {_of(each.step): each.figures.events_s for each in found.steps if each.figures}
    return {
        "slots": best, "why": why,
        "events_per_s": {
            slots: [round(part, 3) for part in (one.low, one.value, one.high)] for slots, one in rates.items()
        },
        "payloads": {_of(each.step): each.filter.counted if each.filter else 0 for each in found.steps},
    }  # fmt: skip


def _of(step: StressStep) -> str:
    return f"{step.slots} slots, pass {step.pass_}"


def main() -> None:
    """Scan as often as asked; print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--slots", default="1,2,4,6,8")
    parser.add_argument("--hold", type=float, default=45.0, help="seconds of a level's window")
    parser.add_argument("--pages", type=Path, help="keep the rounds' pages and data in this directory")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    slots = [int(each) for each in args.slots.split(",")]
    rounds = []
    with world(nodes=1, cores=max(slots)) as site:
        test = site.home / "me" / "slots.toml"
        test.write_text(
            TEST.format(
                hold=args.hold, python=json.dumps(sys.executable), script=json.dumps(GENERATE), event=EVENT_S,
                cores=max(slots), slots=slots,
            )
        )  # fmt: skip
        for number in range(1, args.rounds + 1):
            rounds.append(scan(site, test, f"round-{number}", 60 + 2 * len(slots) * (2 * args.hold + 150)))
            if args.pages:
                (run,) = (site.home / "me" / f"round-{number}").iterdir()
                shutil.copytree(run, args.pages / f"round-{number}")
    figures = {
        "cores": os.cpu_count(), "recommended": [each["slots"] for each in rounds], "rounds": rounds,
        "holds": len({each["slots"] for each in rounds}) == 1,
    }  # fmt: skip
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
