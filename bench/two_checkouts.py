"""How many programs per second does this checkout start, next to another one? Prints one JSON object.

    bench/two_checkouts.py OTHER --json [--events N] [--rounds N] [--program PATH]

OTHER is the directory of a checkout on which `make setup` has run, such as a git worktree of an older commit. Both run
a `tidemill up` of their own at once, and get jobs of N events in turn, the order reversed in each round: what else
this machine does, and how fast it is at the moment, concerns both alike. A turn counts from submit to the end of the
job, as `command_per_s` of `bench/dispatch.py` does.

`per_s`, `other_per_s`: medians of starts per second. `ratio`: the mean over the rounds of this checkout's rate divided
by the other's in the same round, `ratio_median` their median, `ratio_error` the standard error of the mean.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
TURN_S = 600.0


class Side:
    """A checkout whose `up` runs in the process of its own Python."""

    def __init__(self, checkout: Path, program: str) -> None:
        python = checkout / ".venv" / "bin" / "python"
        if not python.exists():
            raise SystemExit(f"`{python}` does not exist: run `make setup` in `{checkout}`")
        others = ("PYTHON", "TIDEMILL_")  # of this checkout, or of another server
        environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        environment["PYTHONPATH"] = str(checkout / "bench")
        self._checkout = checkout
        self._process = subprocess.Popen(
            [python, __file__, "--serve", program],
            cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of `{self._checkout}` ended with {self._process.wait()}")
        return line

    def per_s(self, events: int) -> float:
        """Starts per second of one job."""
        assert self._process.stdin is not None
        print(events, file=self._process.stdin, flush=True)
        return events / float(self._answer())

    def stop(self) -> None:
        """End its `up`."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def serve(program: str) -> None:
    """For each line of stdin, a number of events: run one job, print its seconds."""
    dispatch = importlib.import_module("dispatch")  # of the checkout whose Python this is

    from tidemill.model.job import JobSpec
    from tidemill.model.state import JOB_FINAL

    with dispatch.lab(False) as running:
        print("up", flush=True)
        for number, line in enumerate(sys.stdin):
            spec = JobSpec(command=[program], events=int(line), resources=dispatch.PAYLOAD)
            began = time.monotonic()
            campaign = running.client.submit(spec, campaign=f"turn{number}").campaign
            states: dict[str, int] = {}
            while not any(state in JOB_FINAL for state in states):
                if time.monotonic() - began > TURN_S:
                    raise SystemExit(f"not done after {TURN_S:.0f} s: {states}\n{running.tail()}")
                time.sleep(dispatch.POLL_S)
                states = running.client.campaign(campaign).states
            seconds = time.monotonic() - began
            if states != {"COMPLETED": 1}:
                raise SystemExit(f"expected COMPLETED, got {states}\n{running.tail()}")
            running.check_isolation()
            print(seconds, flush=True)


def measure(sides: list[Side], events: int, rounds: int) -> dict[str, float]:
    """The figures; of `sides` the second is this checkout."""
    for side in sides:
        side.per_s(events)  # starts pilots, fills caches
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        rates = {at: sides[at].per_s(events) for at in order}
        found.append((rates[0], rates[1]))
    ratios = [own / other for other, own in found]
    return {
        "per_s": statistics.median(own for _, own in found),
        "other_per_s": statistics.median(other for other, _ in found),
        "ratio": statistics.mean(ratios),
        "ratio_median": statistics.median(ratios),
        "ratio_error": statistics.stdev(ratios) / len(ratios) ** 0.5,
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", metavar="OTHER", help="another checkout")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--events", type=int, default=10_000, help="of each job (default: 10000)")
    parser.add_argument("--rounds", type=int, default=30, help="at least 2 (default: 30)")
    parser.add_argument("--program", default="/bin/true", help="what is started (default: /bin/true)")
    parser.add_argument("--serve", metavar="PROGRAM", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.serve is not None:
        serve(words.serve)
        return
    if words.other is None or words.rounds < 2:
        parser.error("give the directory of another checkout, and at least two rounds")
    sides: list[Side] = []
    try:
        sides += [Side(words.other.resolve(), words.program)]
        sides += [Side(HERE, words.program)]
        figures = measure(sides, words.events, words.rounds)
    finally:
        for side in sides:
            side.stop()
    if words.json:
        print(json.dumps({name: round(value, 4) for name, value in figures.items()}, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:14}{value:12,.3f}")


if __name__ == "__main__":
    main()
