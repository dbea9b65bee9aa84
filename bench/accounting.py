"""How long does the accounting of ten million jobs take, and how much memory? Prints one JSON object.

    bench/accounting.py --json [--rows N] [--keep FILE]

A dump in the form of `sacct -P` is written: a machine of 4,096 nodes over three years, jobs of 1 to 512 nodes, arrays,
requeued jobs, steps with and without their job, jobs that were canceled before they started, ends before starts, lines
that cannot be read, and a last line that is cut. It is read as `tidemill report opportunity` reads it, up to the holes
by length; nothing is simulated. `rows` counts all lines, `seconds` and `rss_mb` (the peak of the process) are of the
reading alone, `remarks` are what the reader said. `--keep` leaves the dump in FILE, and uses it again when it is there.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROWS = 10_000_000
NODES = 4096
SPAN_S = 3 * 365 * 86400
BEGIN_S = 1_700_000_000
HEAD = "JobID|JobIDRaw|User|Account|Partition|Submit|Eligible|Start|End|ElapsedRaw|NNodes|NCPUS|TimelimitRaw|State"
READ = """
import json, resource, sys, time
from pathlib import Path
from tidemill_study.accounting.idle import idle_of
from tidemill_study.accounting.log import history_of
began = time.monotonic()
history = history_of(Path(sys.argv[1]))
read_s = time.monotonic() - began
machine = history.machine(int(sys.argv[2]))
idle = idle_of(history.timeline, nodes=machine.nodes, span=history.span, outages=machine.outages)
print(json.dumps({
    "jobs": len(history),
    "seconds": round(time.monotonic() - began, 1),
    "read_s": round(read_s, 1),
    "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    "idle_share": idle.share,
    "remarks": list(history.remarks.sentences()),
}))
"""


def text(at_s: int, known: dict[int, str]) -> str:
    """A time as sacct prints it."""
    day, second = divmod(at_s, 86400)
    date = known.get(day)
    if date is None:
        date = known[day] = datetime.fromtimestamp(day * 86400, UTC).strftime("%Y-%m-%dT")
    return f"{date}{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def write(path: Path, rows: int) -> None:
    """Write a dump of `rows` lines below its header; the last one is cut."""
    chance = random.Random(16)
    known: dict[int, str] = {}
    step_s = SPAN_S / rows
    ends = ("COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 1234")
    run_mean_s = (
        NODES * 0.8 * step_s / 3.9
    )  # about a fifth of NODES stays idle; 3.9: mean width of the jobs below
    with path.open("w", encoding="utf-8") as file:
        file.write(HEAD + "\n")
        for number in range(1, rows + 1):
            submit = BEGIN_S + int(number * step_s)
            width = 1 << min(9, int(chance.expovariate(0.75)))
            run = 1 + int(chance.expovariate(1 / run_mean_s))
            start = submit + int(chance.expovariate(1 / 600))
            when, begun, over = text(submit, known), text(start, known), text(start + run, known)
            user, kind = f"u{number % 997}", number % 1000
            id = f"{number - kind}_{kind}" if number % 50_000 < 1000 else str(number)
            row = f"{user}|p{number % 31}|batch|{when}|{when}"
            tail = f"{width}|{width * 64}|{2 * run // 60 + 1}|{ends[number % 6]}"
            if kind == 1:
                line = f"{id}|{number}|{row}|None|{over}|0|{width}|0|60|CANCELLED by 1234"
            elif kind == 2:
                line = f"{id}.batch|{number}.batch||p||||{begun}|{over}|{run}|1|64||COMPLETED"
            elif kind == 3:
                line = f"{id}|{number}|{row}|{over}|{begun}|{run}|{tail}"
            elif kind == 4:
                line = f"{id}|{number}|{row}|{begun}"
            elif kind == 5:
                line = f"{number - 4}|{number - 4}|{row}|{begun}|{over}|{run}|{tail}"
            else:
                line = f"{id}|{number}|{row}|{begun}|{over}|{run}|{tail}"
            file.write(line + "\n" if number < rows else line[:-20])


def main() -> None:
    """Write, read, print."""
    parser = argparse.ArgumentParser(description="accounting of many jobs")
    parser.add_argument("--json", action="store_true", help="the only form there is")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        path = args.keep or Path(place) / "sacct.txt"
        if not path.exists():
            write(path, args.rows)
        done = subprocess.run(
            [sys.executable, "-c", READ, str(path), str(2 * NODES)],
            capture_output=True,
            text=True,
            check=True,
        )
        size_mb = round(path.stat().st_size / 1e6)
    print(json.dumps({"rows": args.rows, "size_mb": size_mb, **json.loads(done.stdout)}))


if __name__ == "__main__":
    main()
