"""Run targets of the Makefile one after the other or side by side, and say at the end how many tests passed and failed.

    scripts/run_stages.py check-python,test-python+check-rust,test-rust test-postgresql test-slurm+test-images

Steps run one after the other; within a step the lanes, separated by `+`, run side by side, each with its targets in
order. A target that fails does not stop the others. The output of each goes to `target/logs/NAME.log`, and to the
screen where the target failed. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "target" / "logs"
TARGET_S_MAX = 1800  #: a target that hangs is ended, so that the next ones run
COUNTS = re.compile(r"\b(\d+) (passed|failed|errors?)\b")


class Result(NamedTuple):
    """What came of a target."""

    target: str
    passed: int
    failed: int


def counted(text: str, status: int) -> tuple[int, int]:
    """Tests passed and failed, from the closing lines of pytest and cargo; a target without tests counts as one."""
    passed = failed = 0
    for line in text.splitlines():
        if re.match(r"(=+ )?\d+ .* in [\d.]+s", line) or line.startswith("test result:"):
            for number, word in COUNTS.findall(line):
                if word == "passed":
                    passed += int(number)
                else:
                    failed += int(number)
    if status and not failed:
        failed = 1  # a check, a build, or a run that broke off
    return (passed, failed) if passed or failed else (1, 0)


def run(target: str, screen: threading.Lock) -> Result:
    """Run one target, its output in a file."""
    began_s = time.monotonic()
    log = LOGS / f"{target}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["make", "--no-print-directory", target],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(TARGET_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
    text = log.read_text(errors="replace")
    passed, failed = counted(text, status)
    with screen:
        if failed:
            sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.write(
            f"{target}: {passed} passed, {failed} failed in {time.monotonic() - began_s:.0f} s\n"
        )
        sys.stdout.flush()
    return Result(target, passed, failed)


def run_step(step: str, screen: threading.Lock) -> list[Result]:
    """Run the lanes of a step side by side."""
    results: list[Result] = []

    def run_lane(targets: list[str]) -> None:
        results.extend([run(target, screen) for target in targets])

    lanes = [threading.Thread(target=run_lane, args=(lane.split(","),)) for lane in step.split("+")]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    return results


def main(steps: list[str]) -> int:
    """0 where everything passed, else 1."""
    LOGS.mkdir(parents=True, exist_ok=True)
    screen = threading.Lock()
    results = [result for step in steps for result in run_step(step, screen)]
    failed = [result.target for result in results if result.failed]
    if failed:
        sys.stdout.write(f"failed: {', '.join(failed)}; see {LOGS.relative_to(ROOT)}/\n")
    summary = f"{sum(r.passed for r in results)} passed, {sum(r.failed for r in results)} failed\n"
    (LOGS / "summary").write_text(summary)
    sys.stdout.write(summary)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
