"""How fast is the store at a million jobs? Prints one JSON object with `sqlite` and `postgresql`.

    bench/store.py --json [--jobs N] [--only sqlite|postgresql]

Each database is measured in a fresh process: `submit_per_s` (requests of 10,000 jobs as bytes, decoding
included), `cycle_per_s` (one-event jobs leased and finished through `handle_sync`; `cycle_per_cpu_s`: per CPU second
of this process), `page_ms` (the slowest of the pages in `PAGES`, each the median of several), `sync_ms` (one sync of
5,000 reports and 5,000 leases by HTTP to a server process on that database, client included, median of several; all in
`syncs_ms`), `rss_mb` (the process's peak; `rss_half_mb`: when half of the jobs were done). PostgreSQL is started from
its Debian packages.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tidemill.errors import SiteError
from tidemill.model.job import JobSpec
from tidemill.server.archive.live import DATABASE
from tidemill.server.core import campaign_names
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Session, Store
from tidemill.server.read import api_pages
from tidemill.server.read.job_search import Filter
from tidemill.wire.api import (
    AppOffer,
    Capacity,
    DoneReport,
    Health,
    LeaseOrder,
    PayloadUsage,
    SubmitReply,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)
from tidemill.wire.server_connection import Connection

SCRIPT = Path(__file__).parent.parent / "scripts" / "postgresql.sh"
BATCH = 10_000
CAMPAIGNS = 10
SPECS = 100
RANGES = 5_000
REPEATS = 5


def submit(dispatcher: Dispatcher, jobs: int) -> float:
    """Jobs per second, from bytes to commit."""
    specs = [JobSpec(app=f"app{number % 4}", params={"mass": number}) for number in range(SPECS)]
    size = max(
        1, min(BATCH, jobs // CAMPAIGNS)
    )  # few jobs, too, are in all campaigns, which the pages ask for
    bodies = []
    for batch in range(jobs // size):
        chosen = [specs[number % SPECS] for number in range(size)]
        request = SubmitRequest(key=f"k{batch}", campaign=f"c{batch % CAMPAIGNS}", jobs=chosen)
        bodies.append(msgspec.json.encode(request) if batch < CAMPAIGNS else b"")
    spent = 0.0
    for batch, body in enumerate(bodies):
        mine = body or bodies[batch % CAMPAIGNS].replace(
            b'"key":"k%d"' % (batch % CAMPAIGNS), b'"key":"k%d"' % batch
        )
        started = time.perf_counter()
        dispatcher.handle_submit(mine)
        spent += time.perf_counter() - started
    return jobs / spent


CAPACITY = Capacity(
    want_core_s=float(RANGES), want_ranges_max=RANGES, slot_cores_max=1, slot_memory_mb_max=2000, devices={},
    event_s={f"app{number}": 1.0 for number in range(4)}, nodes=1, busy_cores=0, adhoc=False,
)  # fmt: skip
OFFERS = [
    AppOffer(
        name=f"app{number}", version="1", digest="", mode="command", parameters={}, outputs=[], cores=1,
        memory_mb=100, event_s=1.0,
    )
    for number in range(4)
]  # fmt: skip


def finished(reply: SyncReply, number: int) -> tuple[int, list[Any]]:
    """The number of the last order, and a report for each lease; these are numbered after `number`."""
    usage = PayloadUsage(payloads=1, wall_us=1_000_000, user_us=900_000)
    leases = [order for order in reply.orders if isinstance(order, LeaseOrder)]
    return reply.orders[-1].n if reply.orders else 0, [
        DoneReport(n=n, lease=order.lease, job=order.job, first=0, count=1, outputs=False, usage=usage)
        for n, order in enumerate(leases, number + 1)
    ]


def request_of(site: str, have: int, reports: list[Any]) -> SyncRequest:
    """A sync; the first one carries the offers."""
    return SyncRequest(
        site=site, epoch=1, host="h", version="1", reports=reports, have=have, capacity=CAPACITY,
        offers=None if have else OFFERS,
    )  # fmt: skip


def cycle(dispatcher: Dispatcher, jobs: int) -> tuple[float, int]:
    """One-event jobs leased and finished per second, and the peak of memory when half were."""
    reports: list[Any] = []
    have = number = done = half_mb = 0
    spent = 0.0
    while True:
        request = request_of("s", have, reports)
        started = time.perf_counter()
        reply = dispatcher.handle_sync(request)
        spent += time.perf_counter() - started
        last, reports = finished(reply, number)
        have, number = max(have, last), number + len(reports)
        done += len(reports)
        if done >= jobs // 2 and not half_mb:
            half_mb = rss_mb()
        if not reports:
            return jobs / spent, half_mb


def _c3(session: Session) -> int:
    return campaign_names.find(session, "c3", None).number


PAGES: dict[str, Callable[[Session, int], Any]] = {
    "newest": lambda session, _: api_pages.jobs(session, Filter(), before=None, limit=100),
    "deep": lambda session, jobs: api_pages.jobs(session, Filter(), before=jobs // 2, limit=100),
    "state": lambda session, _: api_pages.jobs(session, Filter(state="COMPLETED"), before=None, limit=100),
    "state_none": lambda session, _: api_pages.jobs(session, Filter(state="FAILED"), before=None, limit=100),
    "app": lambda session, _: api_pages.jobs(session, Filter(app="app1"), before=None, limit=100),
    "app_deep": lambda session, jobs: api_pages.jobs(
        session, Filter(app="app1"), before=jobs // 2, limit=100
    ),
    "site": lambda session, _: api_pages.jobs(session, Filter(site="s"), before=None, limit=100),
    "campaign_deep": lambda session, jobs: api_pages.jobs(
        session,
        Filter(campaign=_c3(session)),
        before=jobs // 2,
        limit=1000,
    ),
    "all_filters": lambda session, jobs: api_pages.jobs(
        session,
        Filter(campaign=_c3(session), state="COMPLETED", site="s", app="app2"),
        before=jobs // 2,
        limit=1000,
    ),
    "counts": lambda session, _: api_pages.counts(session),
    "campaigns": lambda session, _: api_pages.campaigns(session),
}


def page_ms(store: Store, jobs: int) -> dict[str, float]:
    """Median milliseconds of each page."""
    session = store.reader()
    found = {}
    for name, page in PAGES.items():
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            page(session, jobs)
            times.append(time.perf_counter() - started)
        found[name] = round(statistics.median(times) * 1000, 2)
    session.close()
    return found


def syncs_ms(config: dict[str, str]) -> list[float]:
    """Milliseconds of syncs of RANGES reports and RANGES leases, by HTTP to a server process."""
    program = f"import sys; from tidemill.server.run import entry; sys.exit(entry({config!r}))"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as server:
        try:
            found = _syncs_ms(f"unix:{config['dir']}/api.sock", server)
        finally:
            server.terminate()
    return found


def _syncs_ms(address: str, server: subprocess.Popen[bytes]) -> list[float]:
    connection = Connection(address)
    while True:
        try:
            connection.call("GET", "/v1/health", Health)
            break
        except SiteError:
            if server.poll() is not None:
                raise
            time.sleep(0.05)
    spec = JobSpec(app="app0")
    for number in range(REPEATS + 1):
        submitted = SubmitRequest(key=f"sync{number}", campaign="sync", jobs=[spec], repeat=[RANGES])
        connection.call("POST", "/v1/jobs", SubmitReply, body=submitted)
    times: list[float] = []
    have, number, reports = 0, 0, list[Any]()
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        reply = connection.call("POST", "/v1/sync", SyncReply, body=request_of("http", have, reports))
        if reports:
            times.append(round((time.perf_counter() - started) * 1000, 1))
        have, reports = finished(reply, number)
        number += len(reports)
        if len(reports) != RANGES:
            raise RuntimeError(f"{len(reports)} leases in a sync, expected {RANGES}")
    return times


def rss_mb() -> int:
    """Peak of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure(store: Store, jobs: int, config: dict[str, str]) -> dict[str, Any]:
    """All figures of one database."""
    store.init()
    dispatcher = Dispatcher(store)
    submitted = submit(dispatcher, jobs)
    waiting = page_ms(store, jobs)
    cpu_s = time.process_time()
    cycled, half_mb = cycle(dispatcher, jobs)
    cpu_s = time.process_time() - cpu_s
    ended = page_ms(store, jobs)
    dispatcher.close()
    rss = rss_mb()
    syncs = syncs_ms(config)
    worst = max([*waiting.values(), *ended.values()])
    return {
        "jobs": jobs, "submit_per_s": round(submitted), "cycle_per_s": round(cycled),
        "cycle_per_cpu_s": round(jobs / cpu_s), "page_ms": worst, "sync_ms": statistics.median(syncs),
        "syncs_ms": syncs, "rss_mb": rss, "rss_half_mb": half_mb, "pages_ms": ended,
    }  # fmt: skip


def child(database: str, jobs: int, place: str) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--jobs", str(jobs), "--child", database, "--place", place]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object (the only form there is)")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--child", choices=["sqlite", "postgresql"], help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
            config = {"dir": folder} | ({"database": given.place} if given.place else {})
            store = Store(url=given.place) if given.place else Store(path=Path(folder) / DATABASE)
            print(json.dumps(measure(store, given.jobs, config)))
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        if given.only != "postgresql":
            found["sqlite"] = child("sqlite", given.jobs, "")
        if given.only != "sqlite":
            Path(folder).chmod(0o711)
            state = f"{folder}/pg"
            started = subprocess.run([SCRIPT, "start", state], check=True, stdout=subprocess.PIPE, text=True)
            try:
                found["postgresql"] = child("postgresql", given.jobs, started.stdout.strip())
            finally:
                subprocess.run([SCRIPT, "stop", state], check=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
