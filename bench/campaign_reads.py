"""What does it cost to read one campaign of a million jobs? Prints one JSON object; see `seconds`.

    bench/campaign_reads.py --json [--jobs N] [--others N]

The database of a server gets a campaign of `--jobs` ended jobs, each with one event and one file, between the halves of
`--others` jobs (default: as many) of other campaigns. The steps read it from a server process as users do: `tidemill
attach` (printing the end only), `run --resume`, the SDK's `results` and `as_completed`, and `follow` to the end of the
changes. Then `followers` feeds follow at once, while a site reports 50,000 results. For each step the object has
seconds, requests, and the largest growth in memory of client and server. A step that takes over `LONGEST_S` is stopped:
its figure then covers the share in `part`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worlds.services.server_process import Server
from tests.worlds.services.working_site import SITE, CountingClient, WorkingSite

from tidemill.cli.arguments import Parser
from tidemill.cli.jobs.attach import attach
from tidemill.cli.jobs.outcome import Telling
from tidemill.cli.start.resume import resume
from tidemill.cli.start.run import define
from tidemill.client.client import Client, Submission
from tidemill.model.job import JobSpec, Output
from tidemill.server.archive.live import DATABASE
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.database.unit_of_work import FeedRetention
from tidemill.wire.api import SubmitRequest, SyncReply
from tidemill.wire.server_connection import Connection

BATCH = 5_000  #: jobs of a request
OTHERS_EACH = 20_000  #: jobs of another campaign
LONGEST_S = 120.0
FOLLOWERS = 50
NAME = "mine"


class TooLongError(Exception):
    """A step took more than LONGEST_S."""


def fill(store: Store, jobs: int, others: int, place: Path) -> list[int]:
    """Numbers of the campaign's jobs."""
    dispatcher = Dispatcher(store)
    dispatcher.writer.kept = FeedRetention(always=10_000_000, most=10_000_000)
    site = WorkingSite(dispatcher.handle_sync, place)
    spec = JobSpec(app="sim", outputs=[Output(name="out", path="out")])
    mine: list[int] = []

    def submit(campaign: str, count: int) -> None:
        for at in range(0, count, BATCH):
            size = min(BATCH, count - at)
            request = SubmitRequest(key=f"{campaign}-{at}", campaign=campaign, jobs=[spec], repeat=[size])
            reply = dispatcher.handle_submit(request)
            if campaign == NAME:
                mine.extend(range(reply.first_job, reply.first_job + reply.count))
        site.work(until=count)

    try:
        site.work(until=0)
        for half in range(2):
            if half:
                submit(NAME, jobs)
            for at in range(0, others // 2, OTHERS_EACH):
                submit(f"other-{half}-{at}", min(OTHERS_EACH, others // 2 - at))
    finally:
        dispatcher.close()
    return mine


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The process id of a server."""
    server = Server(folder)
    try:
        yield server.ready().process.pid
    finally:
        server.stop()


def memory_mb(pid: int) -> float:
    """The memory that a process has now."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def limited() -> Iterator[None]:
    """Raises TooLongError after LONGEST_S."""

    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Peak:
    """The largest growth in memory of this process and of the server's."""

    def __init__(self, server: int) -> None:
        self._pids = (os.getpid(), server)
        self._first = [memory_mb(pid) for pid in self._pids]
        self.grown = [0.0, 0.0]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            now = [memory_mb(pid) for pid in self._pids]
            self.grown = [
                max(most, at - was) for most, at, was in zip(self.grown, now, self._first, strict=True)
            ]


def measure(
    folder: Path, server: int, act: Callable[[CountingClient], Iterator[Any] | None], whole: int
) -> dict[str, Any]:
    """Seconds, requests and memory of one step, which reads `whole` items."""
    client = CountingClient(f"unix:{folder}/api.sock")
    through = 0
    part: float | None = None
    started = time.perf_counter()
    with Peak(server) as peak:
        try:
            with (
                limited(),
                contextlib.redirect_stderr(io.StringIO()),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                for _ in act(client) or ():
                    through += 1
        except TooLongError:
            part = round(through / whole, 4)
    found: dict[str, Any] = {
        "seconds": round(time.perf_counter() - started, 2), "requests": client.asked,
        "client_mb": round(peak.grown[0]), "server_mb": round(peak.grown[1]),
    }  # fmt: skip
    client.connection.close()
    return found if part is None else {**found, "part": part}


def steps(mine: list[int]) -> dict[str, tuple[Callable[[CountingClient], Iterator[Any] | None], int]]:
    """The measured steps, and the number of items that each reads."""

    def resumed(client: CountingClient) -> None:
        parser = Parser()
        define(parser)
        resume(parser.parse_args(["--resume", NAME]), client, Telling())

    def follow(client: CountingClient) -> Iterator[Any]:
        return islice(client.follow(Submission(campaign=NAME, jobs=mine, repeated=False)), 2 * len(mine))

    def attached(client: CountingClient) -> None:
        attach(client, NAME, [], Telling())

    return {
        "attach": (attached, 1),
        "run_resume": (resumed, 1),
        "results": (lambda client: client.results(NAME), len(mine)),
        "results_of_numbers": (lambda client: client.results(mine), len(mine)),
        "as_completed": (lambda client: client.as_completed(mine), len(mine)),
        "first_change": (lambda client: islice(client.changes(campaign=NAME), 1), 1),
        "follow": (follow, 2 * len(mine)),
    }


def followed(folder: Path, server: int, place: Path, jobs: int = 50_000) -> dict[str, Any]:
    """Seconds of the server's processor while FOLLOWERS clients follow the whole feed and this many jobs end."""
    address = f"unix:{folder}/api.sock"
    client = Client(address)
    spec = JobSpec(app="sim", outputs=[Output(name="out", path="out")])
    client.submit(spec, campaign="followed", repeat=[jobs])
    link = Connection(address, timeout_s=5 * LONGEST_S)
    acked, ordered = site_numbers(folder)
    site = WorkingSite(
        lambda body: link.call("POST", "/v1/sync", SyncReply, body=body), place, acked=acked, ordered=ordered
    )
    ended = threading.Semaphore(0)

    def read() -> None:
        own = Client(address)
        found = 0
        for each in own.changes(campaign="followed"):
            found += not each.progress
            if found == 2 * jobs:
                break
        ended.release()

    for _ in range(FOLLOWERS):
        threading.Thread(target=read, daemon=True).start()
    before, started = cpu_s(server), time.perf_counter()
    with Peak(server) as peak:
        site.work(until=jobs)
        for _ in range(FOLLOWERS):
            if not ended.acquire(timeout=LONGEST_S):  # a follower's connection may have timed out
                return {
                    "followers": FOLLOWERS,
                    "jobs": jobs,
                    "seconds": None,
                    "server_cpu_s": cpu_s(server) - before,
                }
    return {
        "followers": FOLLOWERS, "jobs": jobs, "seconds": round(time.perf_counter() - started, 2),
        "server_cpu_s": round(cpu_s(server) - before, 2), "server_mb": round(peak.grown[1]),
    }  # fmt: skip


def site_numbers(folder: Path) -> tuple[int, int]:
    """The last report that the server has of the site, and the last order that it made for it."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as database:
        acked, ordered = database.execute(
            "SELECT acked, ordered FROM sites WHERE name = ?", (SITE,)
        ).fetchone()
    return int(acked), int(ordered)


def cpu_s(pid: int) -> float:
    """Processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench(jobs: int, others: int, folder: Path, only: list[str]) -> dict[str, Any]:
    """All figures."""
    place = folder.parent / "out.txt"
    place.write_text("out")
    store = Store(path=folder / DATABASE)
    store.init()
    started = time.perf_counter()
    mine = fill(store, jobs, others, place)
    print(f"filled in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    found: dict[str, Any] = {}
    with serving(folder) as server:
        for name, (act, whole) in steps(mine).items():
            if not only or name in only:
                found[name] = measure(folder, server, act, whole)
                print(f"{name}: {found[name]}", file=sys.stderr)
        if not only or "followers" in only:
            found["followers"] = followed(folder, server, place)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object (the only form there is)")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--others", type=int, help="jobs of other campaigns (default: as many)")
    parser.add_argument("--only", nargs="*", default=[], metavar="STEP", help="such as results or follow")
    given = parser.parse_args()
    others = given.jobs if given.others is None else given.others
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        (Path(name) / "server").mkdir(mode=0o700)
        found = bench(given.jobs, others, Path(name) / "server", given.only)
    print(json.dumps({"jobs": given.jobs, "others": others, **found}))


if __name__ == "__main__":
    main()
