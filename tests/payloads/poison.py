"""A test payload that fails on chosen events, in range mode and in command mode.

Range mode: parameters `bad` ("3,17"), `how` and `work_ms`. Command mode: poison.py FIRST COUNT SEED BAD HOW [OUTPUT].
`how`: `report` (range mode: `failed`, command mode: as `exit`), `exit` (status 3), `kill` (SIGKILL to itself), `segv`, `hang`,
`memory` (allocates without end), `noise` (prints without end), `orphans` (leaves children behind, and succeeds).
Output: one line `EVENT SEED` per event, in `lines.txt`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LINE = b"x" * 1023 + b"\n"
OUTPUT = "lines.txt"


def misbehave(event: int, how: str) -> None:
    """Do what a bad event does. Returns only for `orphans`."""
    print(f"poison: event {event}: {how}", file=sys.stderr, flush=True)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hang":
        while True:
            time.sleep(1)
    if how == "memory":
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)))
    if how == "noise":
        while True:
            sys.stdout.buffer.write(LINE)
    if how == "orphans":
        for _ in range(3):
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return
    sys.exit(3)


def work(event: int, seed: int, *, bad: set[int], how: str) -> str:
    """The line of an event."""
    if event in bad:
        misbehave(event, how)
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
        start, lines = r.first, []
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
