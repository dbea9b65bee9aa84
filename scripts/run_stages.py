"""Run targets of the Makefile side by side, and say at the end how many tests passed and failed.

    scripts/run_stages.py --room=10 check-python:5 check-rust:5 test-postgresql:5 test-slurm:3 test-fault:10

After the colon stands what a target takes of the room, by its use of processors: one that mostly waits takes little,
and runs beside one that computes. In their order, each target starts as soon as there is room for it; one that does
not fit lets smaller ones pass. `--without=TARGET` leaves one out. A target that fails does not stop the others. The
output of each goes to `target/logs/NAME.log`, and to the screen where the target failed. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "target" / "logs"
TARGET_S_MAX = 2700  #: a target that hangs is ended, so that the next ones run
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
        ender = threading.Timer(TARGET_S_MAX, os.killpg, (process.pid, signal.SIGKILL))
        ender.start()
        _, ended, used = os.wait4(process.pid, 0)
        ender.cancel()
        status = process.returncode = os.waitstatus_to_exitcode(ended)
    text = log.read_text(errors="replace")
    passed, failed = counted(text, status)
    with screen:
        if failed:
            sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.write(
            f"{target}: {passed} passed, {failed} failed in {time.monotonic() - began_s:.0f} s, "
            f"{used.ru_utime + used.ru_stime:.0f} s of a processor\n"
        )
        sys.stdout.flush()
    return Result(target, passed, failed)


def shares_of(arguments: list[str]) -> tuple[int, dict[str, int]]:
    """The room, and what each target takes of it: all where nothing is said."""
    options = [each.removeprefix("--").partition("=") for each in arguments if each.startswith("--")]
    without = {value for name, _, value in options if name == "without"}
    room = next((int(value) for name, _, value in options if name == "room"), 1)
    wanted = (each.partition(":") for each in arguments if not each.startswith("--"))
    return room, {
        target: min(int(share or room), room) for target, _, share in wanted if target not in without
    }


def next_of(waiting: dict[str, int], free: int) -> str | None:
    """The first target that fits."""
    return next((target for target, share in waiting.items() if share <= free), None)


def run_all(room: int, shares: dict[str, int], do: Callable[[str], Result]) -> list[Result]:
    """Run each target by `do` as soon as there is room for it; say once a minute what runs."""
    waiting, running = dict(shares), dict[Future[Result], str]()
    results: list[Result] = []
    with ThreadPoolExecutor(max_workers=max(1, len(shares))) as pool:
        while waiting or running:
            while target := next_of(waiting, room - sum(shares[each] for each in running.values())):
                del waiting[target]
                running[pool.submit(do, target)] = target
            ended, _ = wait(running, SAY_S, FIRST_COMPLETED)
            for each in ended:
                del running[each]
                results.append(each.result())
            if not ended:
                sys.stdout.write(f"{time.strftime('%H:%M:%S')} running: {', '.join(running.values())}\n")
                sys.stdout.flush()
    return results


def main(arguments: list[str]) -> int:
    """0 where everything passed, else 1."""
    LOGS.mkdir(parents=True, exist_ok=True)
    screen = threading.Lock()
    results = run_all(*shares_of(arguments), lambda target: run(target, screen))
    failed = [result.target for result in results if result.failed]
    if failed:
        sys.stdout.write(f"failed: {', '.join(failed)}; see {LOGS.relative_to(ROOT)}/\n")
    summary = f"{sum(r.passed for r in results)} passed, {sum(r.failed for r in results)} failed\n"
    (LOGS / "summary").write_text(summary)
    sys.stdout.write(summary)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
