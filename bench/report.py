"""How long does the report of a year take, and is it right? Prints one JSON object.

    bench/report.py --json [--jobs N] [--seed N] [--keep DIR]

A year of operation is made in the archive's form (`bench/year.py`): 2,250,000 jobs with 225 million events, and a week
in which 1,175 jobs spanned 1 to 300 nodes. Then `tidemill report` makes its page, CSV and Parquet in a process of its
own (`report_s`, `cpu_s`, `rss_mb`: its wall and CPU time, and most memory), and DuckDB adds up the archive's Parquet
files by SQL of its own:
`sums_differ` counts the cells that are not the same (whole numbers exactly, others within 1e-9 of themselves).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import year
from bench.report_sums import differences

NEAR = Path(sys.executable).parent


def main() -> int:
    """Make, report, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object (always done)")
    parser.add_argument("--jobs", type=int, default=year.JOBS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make everything there, and leave it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemill-year-") as temporary:
        place = args.keep or Path(temporary)
        archive = place / "archive"
        began = time.monotonic()
        if not archive.is_dir():
            year.make(archive, seed=args.seed, size=year.Size(args.jobs, min(year.WEEK_JOBS, args.jobs // 4)))
        made_s = time.monotonic() - began
        report_s, cpu_s, rss_mb = report(archive, place)
        began = time.monotonic()
        found = differences(archive, place / "csv")
        for each in found[:20]:
            print(each, file=sys.stderr)
        import duckdb

        jobs, events = (
            duckdb.connect()
            .execute(f"SELECT COUNT(*), SUM(events) FROM '{archive}/*/*-jobs.parquet'")
            .fetchall()[0]
        )
        print(json.dumps({
            "jobs": int(jobs), "events": int(events), "report_s": round(report_s, 2),
            "cpu_s": round(cpu_s, 2), "rss_mb": round(rss_mb),
            "sums_differ": len(found), "made_s": round(made_s, 1), "sums_s": round(time.monotonic() - began, 1),
            "archive_mb": round(sum(each.stat().st_size for each in archive.rglob("*.parquet")) / 1e6),
        }))  # fmt: skip
    return 0 if not found else 1


def report(archive: Path, place: Path) -> tuple[float, float, float]:
    """Run the command; its seconds, those of its CPU time, and its most memory in megabytes."""
    words: list[Any] = [NEAR / "tidemill", "report", "--archive", archive, "--html", place / "report.html"]
    words += ["--csv", place / "csv", "--parquet", place / "parquet"]
    began = time.monotonic()
    process = subprocess.Popen([str(each) for each in words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"tidemill report ended with {process.returncode}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
