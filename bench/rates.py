"""Do rates over time agree with what payloads noted? Prints one JSON object with `worst_percent` and `record_us`.

    bench/rates.py --json [--seconds 120] [--interval 10]

A server and a site of its own run one campaign on this machine: payloads that sleep 0.1 s for half of the time, an idle
gap of an interval, then payloads that sleep 0.5 s. Each notes when it ended, in a file. Events of each whole interval
are compared with `GET /v1/campaigns/NAME/activity`. `worst_percent`: the largest difference, in percent
of what payloads noted; an interval of less than 20 events counts to the next. `record_us`: CPU time that a record of a
pilot costs the site's agent for it, as the mean of a million.
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

from tidemill.client import Client
from tidemill.model.figures.activity import Activity, Changes, Span, add
from tidemill.model.job import JobSpec

RECORDS = 1_000_000
FINAL = ("COMPLETED", "PARTIAL", "FAILED", "CANCELED")
FEW = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--interval", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tm-rates-") as name:
        place = Path(name)
        ends, found = measure(place, options.seconds, options.interval)
    rows = compared(ends, found, options.interval)
    print(json.dumps({
        "worst_percent": max(each["percent"] for each in rows), "events": len(ends), "intervals": rows,
        "record_us": record_us(),
    }))  # fmt: skip
    return 0


def measure(place: Path, seconds: int, interval: int) -> tuple[list[float], Activity]:
    """When payloads ended, as they noted it and as the server has it."""
    tidemill = [sys.executable, "-m", "tidemill.cli.main"]
    home = ["--home", str(place / "home")]
    subprocess.run([*tidemill, "up", "--detach", *home], check=True, capture_output=True)
    try:
        client, slots = Client(home=place / "home"), os.cpu_count() or 1
        for number, sleep_s in enumerate((0.1, 0.5)):
            script = f"sleep {sleep_s}; date +%s.%N >> {place}/ends"
            job = JobSpec(command=["sh", "-c", script], events=int(seconds / 2 * slots / (sleep_s + 0.02)))
            (sent,) = client.submit(job, campaign="curve").jobs
            while client.job(sent).row.state not in FINAL:
                time.sleep(0.2)
            if not number:
                time.sleep(interval)
        return sorted(map(float, (place / "ends").read_text().split())), client.activity("curve")
    finally:
        subprocess.run([*tidemill, "up", "--stop", *home], check=True, capture_output=True)


def compared(ends: list[float], found: Activity, interval: int) -> list[dict[str, float]]:
    """Each interval: events noted, events shown, and the difference in percent."""
    rows, first = [], int(ends[0])
    noted = shown = 0
    begin = first
    for low in range(first, int(ends[-1]) + interval, interval):
        high = low + interval
        more = sum(low <= each < high for each in ends)
        noted, shown = noted + more, shown + sum(e.done for e in found.intervals if low <= e.at_s < high)
        if noted >= FEW or (not more and not noted):
            percent = 100 * abs(shown - noted) / noted if noted else 100.0 * bool(shown)
            rows.append({"at_s": begin - first, "noted": noted, "shown": shown, "percent": round(percent, 2)})
            noted = shown = 0
            begin = high
    return rows


def record_us() -> float:
    """CPU time of one record."""
    changes: Changes = {}
    began_s = time.process_time()
    for k in range(RECORDS):
        start = k * 100
        add(changes, Span(start, start + 90_000, 90_000, 80_000), done=10)
    return round((time.process_time() - began_s) * 1e6 / RECORDS, 2)


if __name__ == "__main__":
    sys.exit(main())
