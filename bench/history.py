"""What does history cost? Prints one JSON object with `worst_over_best` of each figure.

    bench/history.py --json [--campaigns N] [--jobs N] [--sqlite] [--archive] [--keep DIR]

Three databases are filled directly by SQL (`fill`) with ended campaigns and jobs, all of the last 60 days: still live
under the usual `archive.keep_days`. One has nothing, one a tenth, one all of them. On each in turn, PASSES times, a
process of its own starts a server's dispatcher and measures, each figure the median of ROUNDS and then of the passes:

    submit_ms     a submission of 20 jobs that makes a new campaign, as those without `--campaign` do
    sync_ms       a sync that settles 200 jobs and leases 200 others
    start_ms      a request that finds the writer's memory empty: what it reads of what is open
    memory_mb     the process at its end

Then OPENED campaigns with jobs that wait, are done and have failed come to each database, so that without history too
every page is full and a filter meets many campaigns, and

    page_ms       the slowest of the first page, listings with filters and orders, and failures

and the database's size per job. `--archive` then archives everything that has ended, and says how many jobs a second
and how much memory that took. The defaults are 50,000 campaigns and 10,000,000 jobs; a small version (2,000 and
100,000) runs in a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import JobSpec, Resources
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.queries import Dialect
from tidemill.server.database.store import Session, Store
from tidemill.server.read import api_pages, web_pages
from tidemill.server.read.job_search import Filter, Sort
from tidemill.server.read.web_pages import CampaignQuery
from tidemill.wire.api import (
    AppOffer,
    Capacity,
    DoneReport,
    FailureReport,
    LeaseOrder,
    PayloadUsage,
    SubmitRequest,
    SyncRequest,
)

SCRIPT = Path(__file__).parent.parent / "scripts" / "postgresql.sh"
SITES = 8
OWNERS = 50
APPS = 12
FAILED = 100  #: one in this many jobs has failed
DAYS = 60
ROUNDS = 15
PASSES = 3
SUBMITTED = 20
SYNCED = 200
OPENED = 600  #: more than listing.LEGS_MAX
FIGURES = ("submit_ms", "sync_ms", "start_ms", "page_ms", "memory_mb")

Execute = Callable[[str], Any]


def fill(execute: Execute, dialect: Dialect, *, campaigns: int, jobs: int, now_us: int) -> None:
    """Fill an empty database with ended campaigns of `jobs` jobs each, written directly.

    Jobs have one event, one lease and a specification of their campaign; one of FAILED has failed, with evidence.
    """
    if not campaigns or not jobs:
        return
    is_sqlite = dialect is Dialect.SQLITE
    top = campaigns * jobs
    numbers, of_campaigns, of_jobs = (_series(is_sqlite, each) for each in (SITES, campaigns, top))
    empty = "X''" if is_sqlite else "''::bytea"
    text = "CAST({} AS BLOB)" if is_sqlite else "convert_to({}, 'UTF8')"
    digest = text.format("printf('%016d', n)" if is_sqlite else "lpad(n::text, 16, '0')")
    body = text.format("""'{"app":"sim","resources":{"event_s":' || n || '}}'""")
    evidence = text.format("""'{"failure":"payload","message":"exit 1","at_us":1}'""")
    kind, site = f"(1 + (n - 1) / {jobs})", f"(1 + (n / {jobs}) % {SITES})"
    at = f"({now_us} - {DAYS} * 86400000000 + {DAYS} * 86400000000 / {campaigns} * {{}})"
    ended, of_job = at.format("n"), at.format(kind)
    bad = f"(n % {FAILED} = 0)"
    failed = f"(n * {jobs} / {FAILED} - (n - 1) * {jobs} / {FAILED})"
    every = f"({top} / {FAILED})"
    statements = [
        f"INSERT INTO sites (name) SELECT 'old-' || n FROM {numbers} AS s",
        "INSERT INTO campaigns (id, name, owner, shares, created_us, jobs, events, events_done, events_failed,"
        f" payloads, wall_us, used_at_us, first_started_us, last_ended_us)"
        f" SELECT n, 'ended-' || n, 'owner' || (n % {OWNERS}),"
        f" 1.0, {ended} - 9000000, {jobs}, {jobs}, {jobs} - {failed}, {failed}, {jobs}, {jobs} * 9000000, 0,"
        f" {ended} - 8000000, {ended} FROM {of_campaigns} AS c",
        "INSERT INTO kinds (id, campaign, app, cores, memory_mb, devices, nodes, ranks)"
        f" SELECT n, n, 'app' || (n % {APPS}), 1, 100, '{{}}', 0, 0 FROM {of_campaigns} AS c",
        f"INSERT INTO specs (id, hash, body) SELECT n, {digest}, {body} FROM {of_campaigns} AS c",
        f"INSERT INTO submits (owner, key, digest, campaign, first_job, count, at_us) SELECT 'owner' || (n % {OWNERS}),"
        f" 'ended-' || n, {empty}, 'ended-' || n, (n - 1) * {jobs} + 1, {jobs}, {ended} FROM {of_campaigns} AS c",
        "INSERT INTO jobs (id, kind, spec, state, site, pin, place, ready, rank, events, n_done, n_failed, done,"
        f" failed, seed_base, created_us, started_us, ended_us, name, blocked, attempts, evidences, usage)"
        f" SELECT n, {kind}, {kind}, CASE WHEN {bad} THEN 4 ELSE 2 END, {site}, 0, 0, 0, 0, 1,"
        f" CASE WHEN {bad} THEN 0 ELSE 1 END, CASE WHEN {bad} THEN 1 ELSE 0 END, CASE WHEN {bad} THEN '' ELSE '0' END,"
        f" CASE WHEN {bad} THEN '0' ELSE '' END, n, {of_job} - 9000000, {of_job} - 8000000, {of_job}, '', 0, 1,"
        f" CASE WHEN {bad} THEN 1 ELSE 0 END, '1 9000000 0 8000000 0 1000 0 0' FROM {of_jobs} AS j",
        "INSERT INTO leases (job, lease, site, first, count, state, leased_us, cores, event_s) SELECT n, n,"
        f" {site}, 0, 1, CASE WHEN {bad} THEN 1 ELSE 0 END, {of_job} - 8000000, 1, 1.0 FROM {of_jobs} AS j",
        f"INSERT INTO failures (job, campaign, first, count, event, site, final, evidence) SELECT n, {kind}, 0, 1, 0,"
        f" 1, 1, {evidence} FROM {of_jobs} AS j WHERE {bad}",
        "INSERT INTO failure_counts (campaign, class, failures) SELECT campaign, 'payload', COUNT(*) FROM failures"
        " GROUP BY campaign",
        "INSERT INTO counts (kind, state, site, jobs) SELECT kind, state, site, COUNT(*) FROM jobs"
        " GROUP BY kind, state, site",
        f"INSERT INTO totals (name, value) VALUES ('campaigns', {campaigns}), ('jobs', {top}), ('events', {top}),"
        f" ('events_failed', {every}), ('events_done', {top} - {every}), ('state/2', {top} - {every}),"
        f" ('state/4', {every}), ('failures/payload', {every})",
        f"UPDATE meta SET value = {top} + 1 WHERE name IN ('next_job', 'next_lease')",
        f"UPDATE meta SET value = {campaigns} + 1 WHERE name = 'next_spec'",
    ]
    for statement in statements:
        execute(statement)


def _series(is_sqlite: bool, last: int) -> str:
    """A table of `n`, 1 to `last`."""
    if is_sqlite:
        return f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {last}) SELECT n FROM s)"
    return f"(SELECT n FROM generate_series(1, {last}) AS s(n))"


# ---- measuring ------------------------------------------------------------------------------------------------------


class Work:
    """A dispatcher with a site that works, beside whatever the database holds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.dispatcher = Dispatcher(store)
        self.have = self.n = 0
        self.leases: list[LeaseOrder] = []
        self.round = f"{time.time_ns()}"

    def submit(self, number: int, jobs: int = SUBMITTED) -> None:
        """A new campaign."""
        name = f"new-{self.round}-{number}"
        spec = JobSpec(app="sim", resources=Resources(event_s=1 + number / 1000))
        request = SubmitRequest(key=name, campaign=name, jobs=[spec], repeat=[jobs], owner="ada")
        self.dispatcher.handle_submit(request)

    def sync(self, jobs: int = SYNCED) -> None:
        """Settle what is leased, and lease as many jobs again."""
        reports: list[Any] = [self.report(lease) for lease in self.leases]
        offer = AppOffer(
            name="sim", version="1", digest="", mode="command", parameters={}, outputs=[], cores=1, memory_mb=100,
            event_s=1.0,
        )  # fmt: skip
        capacity = Capacity(
            want_core_s=float(jobs), want_ranges_max=jobs, slot_cores_max=4, slot_memory_mb_max=4000, devices={},
            event_s={}, nodes=1, busy_cores=0, adhoc=False,
        )  # fmt: skip
        request = SyncRequest(
            site=f"site-{self.round}", epoch=1, host="h", version="1", reports=reports, have=self.have, offers=[offer],
            capacity=capacity,
        )  # fmt: skip
        reply = self.dispatcher.handle_sync(request)
        self.have = max([self.have, *(order.n for order in reply.orders)])
        self.leases = [order for order in reply.orders if isinstance(order, LeaseOrder)]

    def report(self, lease: LeaseOrder) -> DoneReport | FailureReport:
        self.n += 1
        if lease.lease % FAILED == 0:
            evidence = Evidence(failure=FailureClass.PAYLOAD, message="exit 1", at_us=1)
            return FailureReport(
                n=self.n, lease=lease.lease, job=lease.job, first=0, count=1, event=0, final=True, evidence=evidence
            )  # fmt: skip
        usage = PayloadUsage(payloads=1, wall_us=9_000_000)
        return DoneReport(
            n=self.n, lease=lease.lease, job=lease.job, first=0, count=1, outputs=False, usage=usage
        )

    def fill_pages(self, first: int) -> None:
        """Campaigns that are under way: most jobs of each are settled."""
        for number in range(first, first + OPENED):
            self.submit(number, jobs=SUBMITTED)
        for _ in range(10):
            self.sync(OPENED * SUBMITTED // 12)

    def drop_memory(self) -> None:
        """As after an error of the database: the next request reads what is open."""
        self.dispatcher.writer._forget()


def pages(session: Session) -> dict[str, Callable[[], object]]:
    """What people and programs ask for, by name."""

    def campaigns(**query: Any) -> Callable[[], object]:
        return lambda: web_pages.campaigns(session, CampaignQuery(**query))

    def jobs(sort: Sort, **filters: Any) -> Callable[[], object]:
        return lambda: web_pages.jobs(session, Filter(**filters), sort, after=None, size=50)

    return {
        "counts": lambda: api_pages.counts(session),
        "activity": lambda: web_pages.running(session),
        "sites": lambda: api_pages.site_rows(session, set()),
        "apps": lambda: session.rows("apps_known", limit=500),
        "failing": lambda: web_pages.failing(session, "ada"),
        "campaigns": campaigns(),
        "campaigns unfinished": campaigns(unfinished=True),
        "campaigns ended": campaigns(sort="ended"),
        "campaigns of an owner": campaigns(owner="ada"),
        "jobs": jobs(Sort.NEWEST),
        "jobs ended": jobs(Sort.ENDED),
        "jobs waiting": jobs(Sort.NEWEST, state="WAITING"),
        "jobs completed": jobs(Sort.NEWEST, state="COMPLETED"),
        "jobs of an owner": jobs(Sort.NEWEST, owner="ada"),
        "failures": lambda: api_pages.failures(session, limit=50),
    }


def timed_ms(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return 1e3 * (time.perf_counter() - began)


def peak_mb() -> float:
    """The most memory that this process has had; `ru_maxrss` begins with that of the process that started it."""
    status = Path("/proc/self/status").read_text()  # proc(5): VmHWM, in kB
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(store: Store) -> dict[str, float]:
    """The figures of one database but those of pages; run in a process of its own."""
    work = Work(store)

    def start() -> None:
        work.dispatcher.writer.write(lambda each: each.session.rows("site_names"))

    try:
        start_ms = [timed_ms(start)]
        work.submit(0, jobs=(ROUNDS + 4) * SYNCED)
        work.sync()
        work.sync()
        work.submit(1)
        submit_ms = [timed_ms(partial(work.submit, number)) for number in range(2, 2 + ROUNDS)]
        sync_ms = [timed_ms(work.sync) for _ in range(ROUNDS)]
        for _ in range(ROUNDS):
            work.drop_memory()
            start_ms.append(timed_ms(start))
        while work.leases:
            work.sync(0)
    finally:
        work.dispatcher.close()
    found = {"submit_ms": submit_ms, "sync_ms": sync_ms, "start_ms": start_ms, "memory_mb": [peak_mb()]}
    return {name: round(statistics.median(each), 2) for name, each in found.items()}


def measure_pages(store: Store) -> dict[str, Any]:
    """The figures of one database's pages, once they are full; run in a process of its own."""
    work = Work(store)
    try:
        work.fill_pages(2 + ROUNDS)
    finally:
        work.dispatcher.close()
    session = store.reader()
    pages_ms = {}
    for name, page in pages(session).items():
        page()
        pages_ms[name] = round(statistics.median(timed_ms(page) for _ in range(PASSES * ROUNDS)), 2)
    session.close()
    return {"page_ms": max(pages_ms.values()), "pages_ms": pages_ms}


def archive(store: Store, directory: Path) -> dict[str, Any]:
    """Archive everything that has ended; run in a process of its own."""
    from tidemill.server.archive.archiver import Archiver
    from tidemill.server.archive.parquet import Archive

    work = Work(store)
    session = store.reader()
    before_mb = peak_mb()
    worst_s = 0.0

    def write(act: Any) -> Any:
        nonlocal worst_s
        began = time.perf_counter()
        try:
            return work.dispatcher.writer.write(act)
        finally:
            worst_s = max(worst_s, time.perf_counter() - began)

    made = Archiver(store, write, Archive(directory), keep_s=0)
    began = time.perf_counter()
    while made.step(session):
        pass
    seconds = time.perf_counter() - began
    reader: Any = session
    rows = reader._connection.execute(
        "SELECT COALESCE(SUM(last - first + 1), 0) FROM archived_jobs"
    ).fetchone()
    jobs = int(rows[0])
    sizes = sum(path.stat().st_size for path in directory.rglob("*.parquet"))
    more_mb = peak_mb() - before_mb
    found = {
        "jobs": jobs, "seconds": round(seconds, 1), "jobs_per_s": round(jobs / seconds),
        "worst_ms": round(1e3 * worst_s, 1), "memory_more_mb": round(more_mb, 1),
        "bytes_per_job": round(sizes / max(1, jobs), 1),
    }  # fmt: skip
    session.close()
    work.dispatcher.close()
    return found


# ---- steps ----------------------------------------------------------------------------------------------------------


@contextmanager
def engine(sqlite: bool, folder: Path) -> Iterator[Callable[[str], str]]:
    """Makes databases: paths, or URLs of a PostgreSQL that is started for this."""
    if sqlite:
        yield lambda name: str(folder / f"{name}.db")
        return
    import psycopg

    folder.chmod(0o711)
    started = subprocess.run([SCRIPT, "start", folder / "d"], capture_output=True, text=True, check=True)
    url = started.stdout.strip()

    def make(name: str) -> str:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return url.replace("/postgres?", f"/{name}?")

    try:
        yield make
    finally:
        subprocess.run([SCRIPT, "stop", folder / "d"], check=True)


def store_at(place: str) -> Store:
    return Store(url=place) if place.startswith("postgresql://") else Store(path=Path(place))


def grow(store: Store, campaigns: int, jobs: int) -> None:
    """Fill, and let the database learn what it holds."""
    session: Any = store.writer()
    try:
        session.begin()
        fill(
            session._connection.execute,
            store.dialect,
            campaigns=campaigns,
            jobs=jobs,
            now_us=time.time_ns() // 1000,
        )
        session.commit()
        if store.dialect is Dialect.POSTGRESQL:
            session._execute("VACUUM ANALYZE")  # as autovacuum does; in SQLite the server has no statistics
    finally:
        session.close()


def child(place: str, *more: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", place, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def filled(place: str, campaigns: int, jobs: int) -> dict[str, Any]:
    store = store_at(place)
    store.init()
    began = time.perf_counter()
    grow(store, campaigns, jobs)
    filled_s = round(time.perf_counter() - began, 1)
    session = store.reader()
    size_mb = round(int(session.rows("database_bytes")[0][0]) / 1e6, 1)
    session.close()
    return {
        "campaigns": campaigns, "jobs": campaigns * jobs, "filled_s": filled_s, "place": place, "database_mb": size_mb
    }  # fmt: skip


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    archived = None
    each = max(1, args.jobs // args.campaigns)
    with engine(args.sqlite, folder) as make:
        steps = [
            filled(make(f"step{part}"), part, each) for part in (0, args.campaigns // 10, args.campaigns)
        ]
        passes = [[child(step["place"]) for step in steps] for _ in range(PASSES)]
        for step, *found in zip(steps, *passes, strict=True):
            step |= {name: statistics.median(each[name] for each in found) for name in found[0]}
            step |= child(step["place"], "--pages")
            print(json.dumps(step), file=sys.stderr)
        if args.archive:
            archived = child(steps[-1]["place"], "--archive", str(folder / "archive"))
    ratios = {
        name: round(max(step[name] for step in steps) / min(step[name] for step in steps), 2)
        for name in FIGURES
    }
    bytes_per_job = (steps[-1]["database_mb"] - steps[0]["database_mb"]) * 1e6 / max(1, steps[-1]["jobs"])
    return {
        "database": "sqlite" if args.sqlite else "postgresql", "steps": steps, "worst_over_best": ratios,
        "bytes_per_job": round(bytes_per_job, 1), "archive": archived,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--campaigns", type=int, default=50_000)
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--archive", nargs="?", const="", default=None)
    parser.add_argument("--keep", type=Path, help="leave the database here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--pages", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        store = store_at(args.child)
        if args.archive is not None:
            print(json.dumps(archive(store, Path(args.archive))))
        else:
            print(json.dumps(measure_pages(store) if args.pages else measure(store)))
        return 0
    args.archive = args.archive is not None
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
        found = run(args, args.keep)
    else:
        with tempfile.TemporaryDirectory(prefix="tm-history-", dir="/tmp") as folder:
            found = run(args, Path(folder))
    if args.json:
        print(json.dumps(found))
    else:
        for name, ratio in found["worst_over_best"].items():
            print(f"{name:12} {[each[name] for each in found['steps']]}  worst over best {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
