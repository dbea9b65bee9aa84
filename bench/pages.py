"""How fast are the pages at a million jobs? Prints one JSON object with `worst_ms`.

    bench/pages.py --json [--jobs N] [--only sqlite|postgresql] [--keep DIR]

A database is filled by the dispatcher, as clients and sites would do it: campaigns of several owners, each with a few
applications, jobs in every state at a dozen sites, names, failures with evidence, delivered files, allocations; a month
of tide by minutes is written for each site. A server process on it is asked for every page and for the usual filters,
orders, searches and late pages, one after the other: by HTTP on its socket, where everything is seen, and by https with
the certificate of a submitter, who sees an eighth of it. Each page is asked for `REPEATS` times after one that is not
counted; its figure is the median. `worst_ms` is that of the slowest page, `pages_ms` are all. `--keep` leaves the
filled PostgreSQL in DIR, and uses it again when it is there.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.worlds.services.ports import free_port

from tidemill import clock
from tidemill.client.authority import Authority, Wanted
from tidemill.model.application import Parameter, ParameterType
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import JobSpec, Output
from tidemill.server.archive.live import DATABASE
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.read.web_pages import CAMPAIGN_SORTS
from tidemill.wire.api import (
    ActionRequest,
    AllocationReport,
    AppOffer,
    Capacity,
    DeliveredReport,
    DeliverOrder,
    DoneReport,
    FailureReport,
    LeaseOrder,
    OutputRow,
    PayloadUsage,
    SubmitRequest,
    SyncRequest,
)
from tidemill.wire.monitoring import BadNode, TransferView
from tidemill.wire.views import RawViews, packed

SCRIPT = Path(__file__).parent.parent / "scripts" / "postgresql.sh"
BATCH = 5_000  #: jobs of a request, all of one campaign
APPS = 12
SITES = 12
OWNERS = 8
OWNER = 0  #: whose certificate is shown
ALLOCATIONS = 9_000  #: of a site
MINUTES = 30 * 1_440
LEASED = 8_000  #: ranges of one sync
DONE_PART = 0.6  #: of the jobs
REPEATS = 5
SEED = 1
USAGE = PayloadUsage(payloads=1, wall_us=90_000_000, user_us=80_000_000)


class Filler:
    """Makes the database what a large collaboration's looks like."""

    def __init__(self, dispatcher: Dispatcher, jobs: int) -> None:
        self.dispatcher, self.jobs = dispatcher, jobs
        self.random = random.Random(SEED)
        self.campaigns = max(1, jobs // BATCH)
        self.have = dict.fromkeys(range(SITES), 0)
        self.n = dict.fromkeys(range(SITES), 0)

    def fill(self) -> None:
        for site in range(SITES):
            self._sync(site, [], want=0)
        started = time.perf_counter()
        for number in range(self.campaigns):
            self._submit(number)
            self._work(number)
            if number % 20 == 19:
                print(
                    f"{(number + 1) * BATCH:,} jobs in {time.perf_counter() - started:.0f} s", file=sys.stderr
                )
        for number in range(3, self.campaigns, 40):
            self.dispatcher.handle_cancel(ActionRequest(campaign=f"campaign-{number:04}"))
        self._submit(self.campaigns, jobs=1_000)  # one that is not begun
        self._show()

    def _submit(self, number: int, jobs: int = BATCH) -> None:
        apps = [(number + k) % APPS for k in range(4)]
        specs = []
        for k in range(jobs):
            outputs = [Output(name="hits", path="hits")] if k % 50 == 7 else None
            specs.append(
                JobSpec(
                    app=f"app{apps[k % 4]}", params={"mass": 100 + k % 25}, outputs=outputs,
                    name=f"run{number:04}-{k:05}" if k % 2 else None, priority=number % 3,
                )
            )  # fmt: skip
        request = SubmitRequest(
            key=f"k{number}", campaign=f"campaign-{number:04}", jobs=specs, owner=f"owner{number % OWNERS}"
        )
        self.dispatcher.handle_submit(request)

    def _work(self, number: int) -> None:
        """Sites take and finish their part of what was submitted last; some fails, some stays at work."""
        for site in {number % SITES, (number * 5 + 1) % SITES}:
            orders = self._sync(site, [], want=float(LEASED))
            leases = [each for each in orders if isinstance(each, LeaseOrder)]
            reports: list[Any] = []
            for lease in leases[: int(DONE_PART * len(leases))]:
                chance = self.random.random()
                if chance < 0.04:
                    reports.append(_failed(lease))
                else:
                    with_files = bool(lease.spec and lease.spec.outputs)
                    reports.append(
                        DoneReport(
                            n=0,
                            lease=lease.lease,
                            job=lease.job,
                            first=0,
                            count=1,
                            outputs=with_files,
                            usage=USAGE,
                        )
                    )
            delivers = [each for each in self._sync(site, reports, want=0) if isinstance(each, DeliverOrder)]
            rows = [
                OutputRow(
                    name="hits", url=f"root://store.example//{each.job}", size_bytes=10**7, sha256="a" * 64
                )
                for each in delivers
            ]
            self._sync(
                site,
                [
                    DeliveredReport(n=0, job=each.job, outputs=[row], evidence=None)
                    for each, row in zip(delivers, rows, strict=True)
                ],
                want=0,
            )

    def _sync(
        self, site: int, reports: list[Any], *, want: float, views: RawViews | None = None
    ) -> list[Any]:
        for report in reports:
            self.n[site] += 1
            report.n = self.n[site]
        request = SyncRequest(
            site=f"site{site:02}", epoch=1, host="login1", version="1", reports=reports, have=self.have[site],
            offers=None if self.have[site] else _offers(), views=views or {},
            capacity=Capacity(
                want_core_s=want, want_ranges_max=int(want), slot_cores_max=1, slot_memory_mb_max=2000, devices={},
                event_s={f"app{k}": 1.0 for k in range(APPS)}, nodes=1, busy_cores=0, adhoc=False,
            ),
        )  # fmt: skip
        orders = self.dispatcher.handle_sync(request).orders
        self.have[site] = max([self.have[site], *(each.n for each in orders)])
        return orders

    def _show(self) -> None:
        now_us = clock.now_us()
        minute = now_us // 60_000_000
        for site in range(SITES):
            reports = [
                AllocationReport(
                    n=0, name=f"tm-{site}-{k}", batch_id=str(k), state="COMPLETED" if k % 30 else "ACTIVE", nodes=1,
                    cores=64, at_us=now_us - k * 10**8, reason="", busy_us=9, slot_us=10,
                )
                for k in range(ALLOCATIONS)
            ]  # fmt: skip
            bad = BadNode(
                node="n1",
                since_us=now_us,
                until_us=now_us,
                why="starts failed fast",
                evidence=["x" * 300] * 5,
            )
            moving = TransferView(
                job=site + 1, way="in", names=["in"], places=["https://x"], tries=0, under_way=True
            )
            view = packed(
                bad_nodes=[bad] * 100, bad_nodes_total=100, transfers=[moving] * 100, transfers_total=100
            )
            self._sync(site, reports, want=0, views=view)
            rows = [(site + 1, minute - k, 300.0 + k % 90, 60.0 + k % 40, 20.0, 3.0) for k in range(MINUTES)]
            self.dispatcher.writer.write(lambda work, rows=rows: work.session.many("upsert_tide", rows))  # type: ignore[misc]


def _offers() -> list[AppOffer]:
    names = {f"parameter{k}": Parameter(default="0", help="what it is for") for k in range(7)}
    names["mass"] = Parameter(type=ParameterType.INT, min=0, help="in GeV")
    return [
        AppOffer(
            name=f"app{number}", version="1", digest="sha256:" + "a" * 64, mode="command", parameters=names,
            outputs=["hits"], cores=1, memory_mb=100, event_s=1.0, help="what it does, in a line or two",
        )
        for number in range(APPS)
    ]  # fmt: skip


def _failed(lease: LeaseOrder) -> FailureReport:
    evidence = Evidence(
        failure=FailureClass.PAYLOAD, message="exit status 3", exit_status=3, stderr_tail="x" * 2_000, node="n17",
        at_us=clock.now_us(),
    )  # fmt: skip
    return FailureReport(
        n=0, lease=lease.lease, job=lease.job, first=0, count=1, event=0, final=True, evidence=evidence
    )


def addresses(jobs: int, ended: str) -> list[str]:
    """Every page, and the usual views of the large ones. `ended`: a place halfway through those that ended."""
    campaigns, half = max(1, jobs // BATCH), jobs // 2
    some, last = f"campaign-{min(7, campaigns - 1):04}", f"campaign-{campaigns - 1:04}"
    return [
        "/", "/jobs", "/jobs?size=200", f"/jobs?after={half}", "/jobs?sort=oldest", f"/jobs?sort=oldest&after={half}",
        "/jobs?sort=ended", f"/jobs?sort=ended&after={ended}", "/jobs?sort=name",
        f"/jobs?sort=name&after={half - half % 2}", "/jobs?after=60",
        *(f"/jobs?state={state}" for state in ("WAITING", "RUNNING", "COMPLETED", "PARTIAL", "FAILED", "CANCELED")),
        f"/jobs?state=FAILED&after={half}", "/jobs?state=FAILED&sort=ended", "/jobs?state=FAILED&sort=name",
        f"/jobs?state=FAILED&sort=ended&after={ended}", "/jobs?state=FAILED&sort=oldest",
        "/jobs?state=CANCELED&after=90", "/jobs?state=RUNNING&site=site03", "/jobs?site=site05",
        f"/jobs?site=site05&after={half}", "/jobs?app=app3",
        "/jobs?app=app3&state=FAILED", "/jobs?app=app3&site=site00&state=COMPLETED&sort=oldest",
        *(f"/jobs?app=app3&site=site00&state=FAILED&sort={sort}" for sort in ("newest", "ended", "name")),
        f"/jobs?app=app3&site=site00&state=RUNNING&after={half}", f"/jobs?campaign={some}", f"/jobs?campaign={last}",
        f"/jobs?campaign={some}&state=FAILED", f"/jobs?campaign={some}&sort=ended", f"/jobs?campaign={some}&sort=name",
        f"/jobs?campaign={some}&state=COMPLETED&site=site07&app=app8", "/jobs?q=run0", "/jobs?q=run0100-00",
        "/jobs?q=run0100&state=FAILED", "/jobs?q=run&state=RUNNING&sort=name", "/jobs?q=no-such-name",
        "/jobs?q=no-such-name&state=FAILED&sort=ended", "/jobs?q=run&state=PARTIAL", "/jobs?q=run&sort=oldest",
        f"/jobs/{half}", "/jobs/1", f"/jobs/{jobs}", "/campaigns", "/campaigns?size=200",
        *(f"/campaigns?sort={sort}" for sort in CAMPAIGN_SORTS), "/campaigns?q=007", "/campaigns?q=no-such-name",
        "/campaigns?open=1&sort=open", "/campaigns?page=3", f"/campaigns/{some}", f"/campaigns/{last}", "/failures",
        f"/failures?campaign={some}", "/failures?after=9000", "/sites", "/sites/site03",
        *(f"/sites/site03?span={span}" for span in ("1h", "7d", "30d")), "/allocations", "/allocations?size=200",
        "/allocations?site=site03", "/allocations?state=ACTIVE", "/allocations?state=FAILED", "/nodes",
        "/nodes?size=200&page=2", "/transfers",
        f"/transfers?campaign={some}", "/transfers?size=200", f"/transfers?after={half}.0", "/applications",
        "/applications?q=app1", "/applications/app3", "/search?q=run0100", f"/search?q={half}", "/search?q=campaign-01",
        "/search?q=no-such-name",
    ]  # fmt: skip


def own_addresses(jobs: int, ended: str) -> list[str]:
    """The same for a submitter: what is of owner `OWNER`."""
    mine = OWNERS + OWNER if jobs // BATCH > OWNERS else OWNER
    others = ("/allocations", "/nodes", "/campaigns/", "/jobs/")
    shown = [
        each for each in addresses(jobs, ended) if not each.startswith(others) and "campaign=" not in each
    ]
    return [
        *shown, f"/campaigns/campaign-{mine:04}", f"/failures?campaign=campaign-{mine:04}",
        f"/transfers?campaign=campaign-{mine:04}", f"/jobs?campaign=campaign-{mine:04}", f"/jobs/{mine * BATCH + 8}",
    ]  # fmt: skip


class Socket(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(os.fspath(self._path))


@contextmanager
def serving(folder: Path, config: dict[str, Any]) -> Iterator[Socket]:
    program = f"import sys; from tidemill.server.run import entry; sys.exit(entry({config!r}))"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as server:
        try:
            deadline_s = time.monotonic() + 60
            while True:
                try:
                    connection = Socket(folder / "api.sock")
                    connection.request("GET", "/v1/health")
                    connection.getresponse().read()
                    break
                except OSError:
                    if server.poll() is not None or time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.05)
            yield connection
        finally:
            server.terminate()


def measure(connection: http.client.HTTPConnection, paths: list[str]) -> dict[str, float]:
    """Median milliseconds of each page."""
    found: dict[str, float] = {}
    for path in paths:
        times = []
        for _ in range(REPEATS + 1):
            started = time.perf_counter()
            connection.request("GET", path)
            reply = connection.getresponse()
            reply.read()
            times.append((time.perf_counter() - started) * 1000)
            if reply.status != 200:
                raise RuntimeError(f"{path}: status {reply.status}")
        found[path] = round(statistics.median(times[1:]), 1)
    return found


def fill(store: Store, jobs: int) -> float:
    """Seconds that it took."""
    started = time.perf_counter()
    store.init()
    dispatcher = Dispatcher(store)
    try:
        Filler(dispatcher, jobs).fill()
    finally:
        dispatcher.close()
    return time.perf_counter() - started


def halfway(store: Store, jobs: int) -> str:
    """The place of a job in the middle in the order of ends."""
    session = store.reader()
    try:
        rows = session.rows("jobs_by_id", ids=list(range(jobs // 2, jobs // 2 + BATCH)))
    finally:
        session.close()
    return next(f"{job.ended_us}.{job.id}" for job in rows if job.ended_us)


def certified(folder: Path) -> tuple[dict[str, Any], ssl.SSLContext, int]:
    """Configuration of a server with https, and how the submitter comes to it."""
    authority = Authority.create(folder / "ca", name="Bench", days=2)
    for role, name in (("server", "localhost"), ("submitter", f"owner{OWNER}")):
        authority.issue(Wanted(role=role, name=name, days=2), folder / "ca")
    port = free_port()
    own = folder / "ca"
    tls = {"certificate": f"{own}/localhost.pem", "key": f"{own}/localhost.key", "ca": f"{own}/ca.pem"}
    context = ssl.create_default_context(cafile=f"{own}/ca.pem")
    context.load_cert_chain(own / f"owner{OWNER}.pem", own / f"owner{OWNER}.key")
    return {"listen": f"127.0.0.1:{port}", "tls": tls}, context, port


def bench(database: str, jobs: int, folder: Path) -> dict[str, Any]:
    """All figures of one database."""
    url = None if database == "sqlite" else database
    store = Store(url=url) if url else Store(path=folder / DATABASE)
    if store.version() == 0 if url else not (folder / DATABASE).exists():
        print(f"filled in {fill(store, jobs):.0f} s", file=sys.stderr)
    store.upgrade()  # one that was kept may be of an older version
    ended = halfway(store, jobs)
    more, context, port = certified(folder)
    config = {"dir": str(folder), **more} | ({"database": url} if url else {})
    with serving(folder, config) as connection:
        pages = measure(connection, addresses(jobs, ended))
        own = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
        for path, each in measure(own, own_addresses(jobs, ended)).items():
            pages[f"owner{OWNER}: {path}"] = each
        own.close()
    worst = max(pages, key=lambda each: pages[each])
    return {"worst_ms": pages[worst], "worst_page": worst, "pages_ms": pages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON object (the only form there is)")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave PostgreSQL's data there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        (folder / "server").mkdir(mode=0o700)
        if given.only == "sqlite":
            found = bench("sqlite", given.jobs, folder / "server")
        else:
            state = str(given.keep or folder / "pg")
            started = subprocess.run([SCRIPT, "start", state], check=True, stdout=subprocess.PIPE, text=True)
            try:
                found = bench(started.stdout.strip(), given.jobs, folder / "server")
            finally:
                subprocess.run([SCRIPT, "stop", state], check=True)
    print(json.dumps({"jobs": given.jobs, "database": given.only, **found}))


if __name__ == "__main__":
    main()
