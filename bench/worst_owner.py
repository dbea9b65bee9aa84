"""How much does one owner's worst hour cost another one at the same site? Prints one JSON object.

    bench/worst_owner.py --json [--rounds N] [--jobs N] [--kinds KIND ...]

A real server, an agent and pilots of two emulated nodes on this machine, and one data server. In each round ada's jobs
run twice, one after the other: while she is alone (`quiet`), and while eve has jobs of all these kinds (`beside`) and
submits more of all every three seconds, in an order that changes with the round: inputs that are answered with 503,
with 403, not at all, and with half of a file; a program that fails before it is ready; inputs that fill the stage, of
which each is held for seconds. Ada's jobs have an input each at the same server. Eve's are canceled at the end of each
turn, and ada goes on when they have ended.

`ratio`: ada's median from submission to the end, beside to quiet (at most 1.2 is promised); `quiet_s`, `beside_s`: the
medians; `slowest_s`: of each kind; `started_s`: the medians from submission to the start, by kind; `eves`: what became
of eve's jobs; `asked`: requests that the data server got for eve's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.timing import Values
from tests.unit.transfer.http_origin import Origin, answer, origin
from tests.worlds.home.world import FINAL, World, world

from tidemill.model.job import Input, JobSpec, Resources
from tidemill.wire.api import JobRow, SubmitReply, SubmitRequest

CONTENT = b"good\n" * 200
LARGE_BYTES = 1 << 18
STAGE_BYTES = 5 * LARGE_BYTES
FAILING = ["503", "403", "hang", "cut"]
KINDS = [*FAILING, "nosetup", "large"]
HANG_S = 20.0
SETTLE_S = 3.0
"""Eve's troubles have begun by then."""

EVERY_S = 3.0
"""She submits all of it again."""

NO_SETUP = """name = "nosetup"
version = "1"
executable = "/bin/false"
mode = "range"
help = "fails before it is ready"

[resources]
cores = 1
memory_mb = 100
event_s = 0.1
"""
EXTRA = """endpoints = [{{ url = "{base}/exp/" }}]
stage_bytes_max = {stage}"""
TIMING: Values = {
    "site": {"STAGE_CACHE_BYTES_MAX": 0},
    "transfer": {"TRIES_MAX": 2, "PAUSE_S": 0.1, "STALL_S": 5},
}


class Hour:
    """The site, and jobs of both owners."""

    def __init__(self, it: World, data: Origin, kinds: list[str], payload_s: float) -> None:
        self.it, self.data, self.kinds, self.payload_s = it, data, kinds, payload_s
        self._numbers = itertools.count()

    def submit(self, owner: str, *specs: JobSpec) -> list[int]:
        """Jobs of this owner's."""
        number = next(self._numbers)
        request = SubmitRequest(key=f"k{number}", campaign=f"{owner}-{number}", owner=owner, jobs=[*specs])
        first = self.it.client.connection.call("POST", "/v1/jobs", SubmitReply, body=request).first_job
        return list(range(first, first + len(specs)))

    def reading(self, path: str, command: str = "wc -c < in") -> JobSpec:
        """A job with an input of its own below a path."""
        return JobSpec(
            command=["/bin/sh", "-c", command],
            inputs=[Input(name="in", url=f"{self.data.base}/exp/{path}/{next(self._numbers)}")],
            resources=Resources(event_s=0.1),
        )

    def worst(self) -> list[int]:
        """What eve has."""
        specs = [self.reading(way) for way in self.kinds if way in FAILING for _ in range(12)]
        specs += [JobSpec(app="nosetup") for _ in range(12) if "nosetup" in self.kinds]
        specs += [self.reading("large", "sleep 4") for _ in range(8) if "large" in self.kinds]
        return self.submit("eve", *specs)

    def row(self, job: int) -> JobRow:
        """The job now."""
        return self.it.client.job(job).row

    def ended(self, job: int) -> JobRow:
        """The job when it has ended."""
        while (row := self.row(job)).state not in FINAL:
            time.sleep(0.03)
        return row

    def turn(self, jobs: int) -> list[JobRow]:
        """Ada's jobs, one after the other."""
        found = []
        for _ in range(jobs):
            (job,) = self.submit("ada", self.reading("good", f"sleep {self.payload_s}; wc -c < in"))
            found.append(self.ended(job))
            assert found[-1].state == "COMPLETED", found[-1]
        return found

    def beside(self, jobs: int) -> tuple[list[JobRow], list[JobRow]]:
        """The same beside eve's; and what became of those."""
        eves, over = self.worst(), threading.Event()

        def go_on() -> None:
            while not over.wait(EVERY_S):
                eves.extend(self.worst())

        eve = threading.Thread(target=go_on)
        time.sleep(SETTLE_S)
        eve.start()
        try:
            found = self.turn(jobs)
        finally:
            over.set()
            eve.join()
        states = [self.row(job) for job in eves]
        self.it.client.cancel(eves, reason="the hour is over")
        for job in eves:
            self.ended(job)
        return found, states


def serve(data: Origin, hang: threading.Event) -> None:
    """What the data server answers, by the first directory of the path."""
    large = bytes(LARGE_BYTES)

    def decide(method: str, target: str, headers: dict[str, str]) -> bytes | None:
        is_head, way = method == "HEAD", target.split("/")[2]
        if way == "hang":
            hang.wait(HANG_S)
        if way in ("503", "403"):
            return answer(f"{way} No", is_head=is_head)
        whole = answer("200 OK", large if way == "large" else CONTENT, is_head=is_head)
        if way == "cut" and not is_head:
            return whole[: -len(CONTENT) // 2].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        return whole

    data.decide = decide


def measure(rounds: int, jobs: int, kinds: list[str], payload_s: float) -> dict[str, object]:
    """All rounds. The first jobs, which start the pilots, do not count."""
    hang, took = threading.Event(), {"quiet": list[JobRow](), "beside": list[JobRow]()}
    eves: Counter[str] = Counter()
    with origin() as data:
        serve(data, hang)
        extra = EXTRA.format(base=data.base, stage=STAGE_BYTES)
        try:
            with world(nodes=2, cores=4, extra=extra, timing=TIMING) as it:
                (it.home / "site" / "apps" / "nosetup.toml").write_text(NO_SETUP)
                hour = Hour(it, data, kinds, payload_s)
                hour.turn(3)
                for number in range(rounds):
                    for kind in ("quiet", "beside") if number % 2 else ("beside", "quiet"):
                        if kind == "quiet":
                            took[kind] += hour.turn(jobs)
                        else:
                            found, states = hour.beside(jobs)
                            took[kind] += found
                            eves.update(each.state for each in states)
                keep(it)
        finally:
            hang.set()
        asked = sum("/good/" not in target for _, target, _, _ in data.asked)
    return told(took) | {"eves": dict(eves), "asked": asked, "rounds": rounds, "jobs": jobs}


def keep(it: World) -> None:
    """Say what went wrong, if anything has."""
    for line in (it.home / "up.log").read_text().splitlines():
        if ".bug" in line:
            raise SystemExit(line)


def told(took: dict[str, list[JobRow]]) -> dict[str, object]:
    """The figures."""
    ends = {
        kind: [((row.ended_us or 0) - row.created_us) / 1e6 for row in rows] for kind, rows in took.items()
    }
    starts = {
        kind: [((row.started_us or 0) - row.created_us) / 1e6 for row in rows] for kind, rows in took.items()
    }
    medians = {kind: statistics.median(each) for kind, each in ends.items()}
    return {
        "ratio": round(medians["beside"] / medians["quiet"], 3),
        "quiet_s": round(medians["quiet"], 3),
        "beside_s": round(medians["beside"], 3),
        "slowest_s": {kind: round(max(each), 3) for kind, each in ends.items()},
        "started_s": {kind: round(statistics.median(each), 3) for kind, each in starts.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object (always)")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=10, help="of ada's, in each turn")
    parser.add_argument(
        "--payload-s", type=float, default=1, help="of ada's; 0 shows best what is added to each of her jobs"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of eve's jobs")
    options = parser.parse_args()
    print(json.dumps(measure(options.rounds, options.jobs, options.kinds, options.payload_s)))


if __name__ == "__main__":
    main()
