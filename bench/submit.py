"""10,000 jobs in one file: `tidemill submit`, from the command to the last printed id.

`bench/submit.py [--json] [--jobs 10000]`. On a home of its own, whose site does not run; best of three. `client_cpu_s`
is user and system time of the command, `wall_s` includes the server's part.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
JOB = """[[job]]
name = "job-{number}"
command = ["/bin/echo", "{number}"]
"""


def measured(file: Path, jobs: int) -> dict[str, float]:
    """One submission to the server of the home."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run([*TIDEMILL, "submit", str(file)], check=True, capture_output=True, text=True)
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(set(done.stdout.split())) == jobs, "each id is printed"
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"wall_s": round(wall_s, 2), "client_cpu_s": round(cpu_s, 2)}


def measure(jobs: int) -> dict[str, float]:
    """The best of some rounds."""
    with tempfile.TemporaryDirectory(prefix="tmb-") as home:
        os.environ["TIDEMILL_HOME"] = home
        file = Path(home) / "many.toml"
        file.write_text("".join(JOB.format(number=number) for number in range(jobs)))
        with (Path(home) / "server.log").open("wb") as log:
            server = subprocess.Popen([*TIDEMILL, "server", "run"], stderr=log)
        try:
            while not (Path(home) / "server" / "api.sock").is_socket():
                assert server.poll() is None, (Path(home) / "server.log").read_text()
                time.sleep(0.05)
            rounds = [measured(file, jobs) for _ in range(ROUNDS)]
        finally:
            server.terminate()
            server.wait()
    return {"jobs": jobs, "load": os.getloadavg()[0], **min(rounds, key=lambda each: each["wall_s"])}


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=10_000)
    args = parser.parse_args()
    found = measure(args.jobs)
    print(json.dumps(found) if args.json else "  ".join(f"{key} {value}" for key, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
