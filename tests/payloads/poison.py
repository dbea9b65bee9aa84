"""A test payload that fails on chosen events, in range mode and in command mode.

Range mode: parameters `bad` ("3,17"), `how` and `work_ms`. Command mode: poison.py FIRST COUNT SEED BAD HOW [OUTPUT].
`how`: `report` (range mode: `failed`, command mode: as `exit`), `exit` (status 3), `kill` (SIGKILL to itself), `segv`,
`hang`, `memory` (allocates without end), `noise` (prints without end), `orphans` (leaves children, and succeeds).
Output: one line `EVENT SEED` per event, in `lines.txt`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

LINE = b"x" * 1023 + b"\n"
OUTPUT = "lines.txt"


def exhaust() -> None:
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)))


def shout() -> None:
    while True:
        sys.stdout.buffer.write(LINE)


def leave_orphans() -> None:
    for _ in range(3):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)


WAYS: dict[str, Callable[[], object]] = {
    "report": lambda: sys.exit(3),
    "exit": lambda: sys.exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(1e6),
    "memory": exhaust,
    "noise": shout,
    "orphans": leave_orphans,
}


def work(event: int, seed: int, *, bad: set[int], how: str) -> str:
    """The line of an event."""
    if event in bad:
        sys.stderr.write(f"poison: event {event}: {how}\n")
        sys.stderr.flush()
        WAYS[how]()
    return f"{event} {seed}\n"


def parse(text: str) -> set[int]:
    """Event numbers of `3,17`."""
    return {int(word) for word in text.split(",") if word}


def command() -> None:
    first, count, seed = map(int, sys.argv[1:4])
    output = Path(sys.argv[6]) if len(sys.argv) > 6 else Path(OUTPUT)
    lines = [work(first + k, seed + k, bad=parse(sys.argv[4]), how=sys.argv[5]) for k in range(count)]
    output.write_text("".join(lines))


def ranges() -> None:
    import tidemill_payload as tidemill  # type: ignore[import-not-found]  # the pilot puts it on the path

    parameters = tidemill.params()
    bad, how = parse(str(parameters.get("bad", ""))), str(parameters.get("how", "report"))
    for r in tidemill.ranges():
        start = r.first
        lines: list[str] = []
        for event in r.events():
            time.sleep(float(parameters.get("work_ms", 0)) / 1000)
            if how == "report" and event in bad:
                if lines:
                    Path(OUTPUT).write_text("".join(lines))
                    r.done(start, event - start, {"lines": OUTPUT})
                r.failed(event, "poison")
                start, lines = event + 1, []
                continue
            lines.append(work(event, r.seed_of(event), bad=bad, how=how))
        if lines:
            Path(OUTPUT).write_text("".join(lines))
            r.done(start, len(lines), {"lines": OUTPUT})


if __name__ == "__main__":
    if "TIDEMILL_IN" in os.environ:
        ranges()
    else:
        command()
