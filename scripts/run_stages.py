"""Run targets of the Makefile one after the other or side by side, and say at the end how many tests passed and failed.

    scripts/run_stages.py check-python,test-python+check-rust,test-rust test-postgresql test-slurm+test-images

Steps run one after the other; within a step the lanes, separated by `+`, run side by side, each with its targets in
order; `--without=TARGET` leaves one out. A target that fails does not stop the others. The output of each goes to
`target/logs/NAME.log`, and to the screen where the target failed. Standard library only.
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
SAY_S = 60.0  #: a line on what is still running comes this often
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


def lanes_of(step: str, without: set[str]) -> list[list[str]]:
    """The lanes of a step, each the targets that it runs."""
    lanes = [[each for each in lane.split(",") if each not in without] for lane in step.split("+")]
    return [lane for lane in lanes if lane]


def run_step(lanes: list[list[str]], screen: threading.Lock) -> list[Result]:
    """Run the lanes of a step side by side."""
    results: list[Result] = []
    now: dict[int, str] = {}  # by lane, the target that it runs

    def run_lane(number: int) -> None:
        for target in lanes[number]:
            now[number] = target
            results.append(run(target, screen))
        del now[number]

    threads = [threading.Thread(target=run_lane, args=(number,)) for number in range(len(lanes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(SAY_S)
            if thread.is_alive():
                with screen:
                    sys.stdout.write(
                        f"{time.strftime('%H:%M:%S')} running: {', '.join(list(now.values()))}\n"
                    )
                    sys.stdout.flush()
    return results


def main(arguments: list[str]) -> int:
    """0 where everything passed, else 1."""
    steps = [each for each in arguments if not each.startswith("--")]
    without = {each.removeprefix("--without=") for each in arguments if each.startswith("--")}
    LOGS.mkdir(parents=True, exist_ok=True)
    screen = threading.Lock()
    results = [result for step in steps for result in run_step(lanes_of(step, without), screen)]
    failed = [result.target for result in results if result.failed]
    if failed:
        sys.stdout.write(f"failed: {', '.join(failed)}; see {LOGS.relative_to(ROOT)}/\n")
    summary = f"{sum(r.passed for r in results)} passed, {sum(r.failed for r in results)} failed\n"
    (LOGS / "summary").write_text(summary)
    sys.stdout.write(summary)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
