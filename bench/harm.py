"""Does any class of regular jobs wait longer because of us? `python bench/harm.py --json [--logs DIR]`.

The eight machines of `bench/workloads.py` and every log in DIR (SWF, sacct, PBS) are replayed by `tidemill simulate`
with its defaults: events of 5 minutes, 2 minutes of start-up, 8 seeds. Printed: useful share, calls of the batch system
a minute, the wait of each class with its interval, and the verdict against the promise. `bench/slurm_harvest.py` does
the same on a Slurm cluster, with and without Tidemill, and prints what `tidemill site harm` estimates beside what it
measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.workload_shapes import SHAPES
from bench.workloads import workload, write

SIMULATE = (sys.executable, "-m", "tidemill.cli.main", "simulate")
GROUPS = ("by_size", "by_length", "by_limit", "by_size_and_length")
KEPT = ("name", "nodes_min", "nodes", "over_s", "up_to_s", "jobs", "wait_without_s", "wait_s", "verdict")


def simulated(log: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The document of `tidemill simulate` on a log."""
    words = ["--event-s", "300", "--startup-s", "120", "--seeds", str(args.seeds), "--json"]
    if args.pbs:
        words += ["--unaligned", "--unordered"]
    for name in ("replicas", "workers"):
        if (value := getattr(args, name)) is not None:
            words += [f"--{name}", str(value)]
    done = subprocess.run([*SIMULATE, str(log), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`tidemill simulate {log}` exits with {done.returncode}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figures(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """What the bench keeps of a document."""
    found = document["policies"]["yield"]
    return {
        "log": name,
        "nodes": document["nodes"],
        "jobs": document["jobs"],
        "seeds": document["seeds"],
        "pairs": found["pairs"],
        "idle_share": found["idle_share"],
        "useful": found["useful"],
        "calls_per_min": found.get("calls_per_min"),
        "mean": found["wait_change"]
        | {"delay_s": found["delay_s"], "wait_without_s": found["wait_without_s"]},
        "classes": {
            group: [
                {key: each[key] for key in KEPT}
                | {"change": {"mean": each["wait_change"], "low": each["low"], "high": each["high"]}}
                | {"delay_s": each["delay_s"]}
                for each in found[group]
            ]
            for group in GROUPS
        },
        "promise": found["promise"],
        "cpu_s": found["seconds"],
    }


def logs(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    """The synthetic logs, written when their turn comes, then those of the directory."""
    for name in args.shape or SHAPES:
        path = folder / f"{name}.swf.gz"
        write(path, workload(SHAPES[name], args.seed, days=args.days))
        yield name, path
    for path in sorted(args.logs.iterdir()) if args.logs is not None else []:
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".md":
            yield path.name, path


def told(each: dict[str, Any]) -> str:
    """A log in one line for people."""
    mean, promise = each["mean"], each["promise"]
    calls = each["calls_per_min"]
    worst = max(
        each["classes"]["by_size"] + each["classes"]["by_length"],
        key=lambda one: one["change"]["mean"] or 0.0,
    )
    change = worst["change"]["mean"]
    return (
        f"{each['log']:<22} useful {each['useful']:.3f}  mean {mean['mean'] or 0:+.2%}  worst class {worst['name']:>6} "
        f"{0 if change is None else change:+.2%} {worst['delay_s']['mean']:+,.0f} s  "
        f"calls/min {'-' if calls is None else f'{calls:.1f}'}  promise {promise['verdict']}"
        + (f": {', '.join(promise['broken'])}" if promise["broken"] else "")
    )


def main() -> int:
    """Replay all logs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", action="append", choices=sorted(SHAPES), help="only this shape; may be repeated"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="also every log in this directory")
    parser.add_argument("--seed", type=int, default=1, help="of the synthetic logs (default: 1)")
    parser.add_argument("--days", type=int, help="length of the synthetic logs (default: by the shape)")
    parser.add_argument("--seeds", type=int, default=8, help="of the simulation (default: 8)")
    parser.add_argument("--replicas", type=int, help="pairs in a seed (default: by the length of the log)")
    parser.add_argument("--workers", type=int, help="processes (default: all cores)")
    parser.add_argument(
        "--pbs",
        action="store_true",
        help="as on PBS, which shows neither its cycle nor the order of its queue",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    began = time.monotonic()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in logs(args, Path(folder)):
            found.append(figures(name, simulated(path, args)))
            print(told(found[-1]), file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        states = [each["promise"]["verdict"] for each in found]
        verdicts = {state: states.count(state) for state in ("kept", "broken", "unsure")}
        print(
            json.dumps(
                {"bench": "harm", "logs": found, "promises": verdicts, "seconds": time.monotonic() - began}
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
