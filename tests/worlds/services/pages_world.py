"""A server with something to look at: campaigns in all states, three sites with a day of tide, failures, files.

Everything is told to a real server process by the messages that clients and sites send.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from tests.worlds.services import node_series
from tests.worlds.services.server_process import DEADLINE_S, Server, TcpServer, until

from tidemill import clock
from tidemill.model.application import Parameter, ParameterType
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import Input, JobSpec, Output
from tidemill.wire.api import (
    AllocationReport,
    AppOffer,
    Capacity,
    DeliveredReport,
    DeliverOrder,
    DoneReport,
    FailureReport,
    FetchLogOrder,
    LeaseOrder,
    LogReport,
    OutputRow,
    PayloadUsage,
    ReleaseReport,
    StartCost,
    SubmitReply,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)
from tidemill.wire.far import CacheFigures, CacheView, ReadView
from tidemill.wire.monitoring import BadNode, GrantView, RegularWaits, TidePoint, TransferView
from tidemill.wire.views import RawViews, packed

EVIL = "<img src=x onerror=\"document.title='taken'\"></script><script>document.title='taken'</script>"
EVENT_S = 4.0
NODES = [f"nid{number:05}" for number in range(412, 418)]  #: of the allocation `tm-titan-7`
DOWNTIMES = "downtimes.toml"
DOWNTIME = """[[downtime]]
site = "{site}"
start = {start:%Y-%m-%dT%H:%M:%SZ}
end = {end:%Y-%m-%dT%H:%M:%SZ}
reason = {reason}
"""
USAGE = PayloadUsage(
    payloads=1, wall_us=95_000_000, setup_us=4_000_000, user_us=84_000_000, system_us=2_000_000, rss_kb=640_000,
    read_bytes=48_000_000, write_bytes=9_000_000,
)  # fmt: skip


class SiteSide:
    """A site that keeps to the protocol."""

    def __init__(
        self, server: Server, name: str, apps: tuple[str, ...], nodes: int, *, says: str = ""
    ) -> None:
        self.server, self.name, self.apps, self.nodes, self.says = server, name, apps, nodes, says
        self.have = self.n = 0

    def sync(
        self, *reports: Any, want: float = 0.0, ranges: int = 50, views: RawViews | None = None
    ) -> list[Any]:
        for report in reports:
            self.n += 1
            report.n = self.n
        request = SyncRequest(
            site=self.name, epoch=1, host=f"login1.{self.name}.example", version="0.1.0", reports=list(reports),
            have=self.have, offers=[_offer(app, self.says) for app in self.apps] if not self.have else None,
            views=views or {},
            capacity=Capacity(
                want_core_s=want, want_ranges_max=ranges, slot_cores_max=8, slot_memory_mb_max=16_000, devices={},
                event_s={}, nodes=self.nodes, busy_cores=8 * self.nodes // 4, adhoc=False,
            ),
            allocations={"ACTIVE": 3, "QUEUED": 2, "COMPLETED": 40},
        )  # fmt: skip
        status, reply = self.server.call("POST", "/v1/sync", request)
        assert status == 200, reply
        orders = msgspec.convert(reply, SyncReply).orders
        self.have = max([self.have, *(order.n for order in orders)])
        return orders

    def leases(self, ranges: int, want: float = 1e9) -> list[LeaseOrder]:
        return [each for each in self.sync(want=want, ranges=ranges) if isinstance(each, LeaseOrder)]


def _offer(name: str, says: str) -> AppOffer:
    return AppOffer(
        name=name, version=says or "3.2", digest=says or "sha256:" + "ab" * 32, mode="range", outputs=[says or "hits"],
        cores=1, memory_mb=2000, event_s=EVENT_S, images=[says] if says else [], container=says,
        help=says or f"{name.capitalize()}: minimum-bias events through the whole detector",
        parameters={
            "energy": Parameter(type=ParameterType.FLOAT, default=13.6, min=0.9, max=14.0, help="in TeV"),
            "tune": Parameter(type=ParameterType.CHOICE, choices=["monash", "a14"], default="monash"),
            "note": Parameter(pattern=".*", default="-", help="for people"),
        },
        start=StartCost(runs=12, ops=924, failed=312, files=480),
    )  # fmt: skip


def done(lease: LeaseOrder, count: int | None = None, *, outputs: bool = False) -> DoneReport:
    return DoneReport(
        n=0, lease=lease.lease, job=lease.job, first=lease.first, count=lease.count if count is None else count,
        outputs=outputs, usage=USAGE,
    )  # fmt: skip


def stopped(lease: LeaseOrder, begin: int) -> ReleaseReport:
    """The answer to a cancellation: what the site did not run of the lease, from its event `begin` on."""
    return ReleaseReport(
        n=0, lease=lease.lease, job=lease.job, first=lease.first + begin, count=lease.count - begin, reason="stopped",
        evidence=None,
    )  # fmt: skip


def failed(lease: LeaseOrder, event: int, failure: FailureClass, *, final: bool = True) -> FailureReport:
    texts = {
        FailureClass.MEMORY: ("killed: 2,147 MB of 2,000 MB", "std::bad_alloc\n", None, 9),
        FailureClass.PAYLOAD: ("exit status 3", "G4Exception: track stuck in EMEC\n*** Fatal ***\n", 3, None),
    }
    message, tail, status, number = texts.get(failure, ("no answer from the server", "", None, None))
    evidence = Evidence(
        failure=failure, message=message, stderr_tail=tail, exit_status=status, signal=number, node="nid00417",
        allocation="tm-titan-7", at_us=clock.now_us(), notes=["image sim-3.2 by fuse"],
    )  # fmt: skip
    return FailureReport(
        n=0,
        lease=lease.lease,
        job=lease.job,
        first=event,
        count=1,
        event=event,
        final=final,
        evidence=evidence,
    )


def tide(nodes: int, *, phase: float, minutes: int = 1_440) -> list[TidePoint]:
    """A day of a machine that fills and empties, with an outage of some racks."""
    now = clock.now_us() // 60_000_000
    points = []
    for k in range(minutes):
        day = 2 * math.pi * (k / 700 + phase)
        away = nodes // 12 if 500 < k < 640 else 0
        regular = min(nodes - away, round(nodes * (0.72 + 0.2 * math.sin(day) + 0.05 * math.sin(7.3 * day))))
        free = nodes - away - regular
        ours = round(free * (0.86 + 0.1 * math.sin(3 * day)))
        points.append(
            TidePoint(minute=now - minutes + k + 1, regular=regular, ours=ours, idle=free - ours, away=away)
        )
    return points


def hospital(folder: Path) -> dict[str, Any]:
    """Keys of a server that treats what belongs to a site which is down, and reads a file of this folder for it."""
    (folder / DOWNTIMES).write_text(
        downtime("lmu", -3, 5, "new racks") + downtime("theta", 70, 78, "cooling")
    )
    return {
        "wards": [
            {"name": "home-down", "home_down": True, "sites": ["lrz"], "cure": {"read": "cache"}},
            {"name": "starved", "failures": ["memory"], "cure": {"memory_factor": 2.0}},
        ],
        "downtimes": {"sources": [{"from": str(folder / DOWNTIMES)}]},
    }


def downtime(site: str, first_h: float, last_h: float, reason: str) -> str:
    """An entry of the file, in hours from now."""
    now = datetime.now(UTC)
    start, end = now + timedelta(hours=first_h), now + timedelta(hours=last_h)
    return DOWNTIME.format(site=site, start=start, end=end, reason=json.dumps(reason))


class PagesWorld:
    """The server and its sites."""

    downtimes: Path | None = None  #: the file of `hospital`

    def __init__(self, server: Server) -> None:
        self.server = server
        self.titan = SiteSide(server, "titan", ("simulate", "reconstruct"), 512)
        self.theta = SiteSide(server, "theta", ("simulate",), 128)
        self.lrz = SiteSide(server, "lrz", ("simulate", "analyse"), 64)
        self.keys = 0

    def submit(
        self, *jobs: JobSpec, campaign: str, owner: str = "ada", repeat: list[int] | None = None
    ) -> int:
        self.keys += 1
        request = SubmitRequest(
            key=f"key{self.keys}", campaign=campaign, jobs=list(jobs), owner=owner, repeat=repeat
        )
        status, reply = self.server.call("POST", "/v1/jobs", request)
        assert status == 200, reply
        return msgspec.convert(reply, SubmitReply).first_job

    def fill(self) -> None:
        """What the pages show."""
        for site in (self.titan, self.theta, self.lrz):
            site.sync()
        self._mc23()
        self._small()
        if self.downtimes is not None:
            self._treat()
        self._show()

    def _treat(self) -> None:
        """Jobs of a site that is down, most of them cured."""
        self.submit(
            *[JobSpec(app="analyse", name=f"lmu-{k}", home="lmu", retries=0) for k in range(9)],
            campaign="lmu-reco",
            owner="frida",
        )
        until(lambda: self._wards()["home-down"]["there"] == 9)
        for number, lease in enumerate(self.lrz.leases(8)):
            if number == 2:
                self.lrz.sync(failed(lease, lease.first, FailureClass.PAYLOAD))
            else:
                self._deliver(self.lrz, self.lrz.sync(done(lease)))

    def end_hostile(self) -> None:
        """Its site shows nothing more: other tests look at the same pages."""
        self.hostile.sync(views=packed(mode="run"))

    def _wards(self) -> dict[str, dict[str, Any]]:
        status, reply = self.server.call("GET", "/v1/wards")
        assert status == 200, reply
        return {each["ward"]: each for each in reply}

    def _mc23(self) -> None:
        hits = Output(name="hits", path="hits.root", url="root://store.example.org//mc23/")
        self.long = self.submit(
            JobSpec(
                app="simulate", name="mc23-ttbar-000417", events=2_000, params={"energy": 13.6, "tune": "a14"},
                failed_max=20, inputs=[Input(name="cards.dat", url="https://store.example.org/cards/ttbar.dat")],
            ),
            campaign="mc23-ttbar",
        )  # fmt: skip
        for site, count, failure in (
            (self.titan, 620, FailureClass.PAYLOAD), (self.theta, 300, FailureClass.MEMORY), (self.titan, 0, None),
        ):  # fmt: skip
            for lease in site.leases(1, EVENT_S * 700 if failure is not None else 1e9):
                wanted = min(count, lease.count - 1)
                if wanted:
                    site.sync(done(lease, wanted))
                if failure is not None and wanted < lease.count:
                    site.sync(failed(lease, lease.first + wanted, failure))
        specs = [
            JobSpec(app="simulate", name=f"mc23-ttbar-{k:06}", params={"energy": 13.6}) for k in range(60)
        ]
        specs[20:24] = [JobSpec(app="simulate", name=f"with-files-{k}", outputs=[hits]) for k in range(4)]
        self.submit(*specs, campaign="mc23-ttbar")

    def _small(self) -> None:
        self.submit(*[JobSpec(app="reconstruct", retries=0)] * 24, campaign="reprocess-2025", owner="bob")
        self.submit(
            *[JobSpec(app="analyse", name=f"limits-{k}") for k in range(8)], campaign="limits", owner="eve"
        )
        self.evil = self.submit(
            JobSpec(
                app="simulate", name="evil", params={"note": EVIL},
                inputs=[Input(name="in", url=f"https://x.example/{EVIL}")],
            ),
            campaign="limits", owner="eve",
        )  # fmt: skip
        self.stuck = self.submit(
            JobSpec(app="digitise", name="never-offered"), campaign="limits", owner="eve"
        )
        kinds = [FailureClass.PAYLOAD, FailureClass.MEMORY, FailureClass.STAGE_IN]
        for site, ranges in ((self.titan, 40), (self.lrz, 12), (self.theta, 14)):
            for number, lease in enumerate(site.leases(ranges)):
                spec = lease.spec
                if lease.count > 1:
                    continue
                if number % 9 == 4:
                    site.sync(failed(lease, lease.first, kinds[number % 3]))
                elif number % 3 != 2:
                    with_files = spec is not None and spec.outputs is not None
                    self._deliver(site, site.sync(done(lease, outputs=with_files)))

    def _deliver(self, site: SiteSide, orders: list[Any]) -> None:
        for order in orders:
            if isinstance(order, DeliverOrder):
                row = OutputRow(
                    name="hits", url=f"root://store.example.org//mc23/{order.job}.hits.root", size_bytes=48_123_456,
                    sha256="5f" * 32,
                )  # fmt: skip
                site.sync(DeliveredReport(n=0, job=order.job, outputs=[row], evidence=None))

    def _show(self) -> None:
        now_us = clock.now_us()
        for k, state in enumerate(
            ["ACTIVE", "ACTIVE", "QUEUED", "COMPLETED", "COMPLETED", "FAILED", "CANCELED"] * 4
        ):
            report = AllocationReport(
                n=0, name=f"tm-titan-{k}", batch_id=str(4_100_000 + k), state=state,
                nodes=len(NODES) if k == 7 else 1 + k % 8, cores=16,
                at_us=now_us - (k + 1) * 311_000_000, reason="" if state != "FAILED" else "node failure",
                busy_us=90 * (k + 1), slot_us=100 * (k + 1),
            )  # fmt: skip
            self.titan.sync(report)
        bad = BadNode(
            node="nid00417", since_us=now_us - 3_600_000_000, until_us=now_us + 82_800_000_000,
            why="starts failed fast 3 times in a row while others worked (211)",
            evidence=[f"after 0.{k} s: /dev/shm: No space left on device" for k in (4, 3, 4)],
        )  # fmt: skip
        moving = [
            TransferView(
                job=self.long, way="in", names=["cards.dat"], places=["https://store.example.org"], tries=0,
                under_way=True,
            ),
            TransferView(
                job=self.long + 3, way="out", names=["hits"], places=["root://store.example.org"], tries=2,
                under_way=False,
            ),
        ]  # fmt: skip
        grants = [GrantView(account="phy123", granted=20_000, used=7_312.5, open=96, left=12_191.5)]
        self.titan.sync(
            views=packed(
                tide=tide(512, phase=0.1), bad_nodes=[bad], bad_nodes_total=1, transfers=moving, transfers_total=2,
                grants=grants, waits=regular_waits(), mode="run", caches=caches(now_us), reads=reads(self.long),
                samples=[node_series.samples("tm-titan-7", NODES, until_us=now_us, slow=NODES[-1])],
            )
        )  # fmt: skip
        small = CacheView(
            name="small", url="root://theta-dtn:1094", state="waiting", at_us=now_us, restarts=4,
            since_us=now_us - 10**12, findings=["xrootd was killed by SIGKILL"], thrashing=True,
            lost=3, wire_origin=9 * 10**11, unsure=2,
            believe="believe the connections: they carried 900 GB from origins; XCache's records of closed files "
            "add up to 700 GB; 3 datagrams were lost",
            total=CacheFigures(opens=900, served=6 * 10**11, hit=10**11, fetched=7 * 10**11, again=5 * 10**11),
        )  # fmt: skip
        self.theta.sync(
            views=packed(
                tide=tide(128, phase=0.5),
                mode="run",
                waits_for="a regular job starts at 14:20",
                caches=[small],
            )
        )
        self.lrz.sync(views=packed(tide=tide(64, phase=0.8), mode="observe"))

    def be_hostile(self) -> int:
        """A job at a site that writes markup wherever it may; its number."""
        site = SiteSide(self.server, "hostile", ("simulate", "evil"), 4, says=EVIL)
        number = self.submit(
            JobSpec(app="simulate", site="hostile", retries=0), campaign="hostile", owner=EVIL
        )
        site.sync()
        (lease,) = [each for each in site.leases(50) if each.job == number]
        now_us = clock.now_us()
        evidence = Evidence(
            failure=FailureClass.PAYLOAD, message=EVIL, stderr_tail=EVIL, exit_status=3, node=EVIL, allocation=EVIL,
            at_us=now_us, notes=[EVIL],
        )  # fmt: skip
        report = FailureReport(
            n=0,
            lease=lease.lease,
            job=number,
            first=lease.first,
            count=1,
            event=0,
            final=True,
            evidence=evidence,
        )
        allocation = AllocationReport(
            n=0,
            name=EVIL,
            batch_id=EVIL,
            state=EVIL,
            nodes=1,
            cores=1,
            at_us=now_us,
            reason=EVIL,
            busy_us=1,
            slot_us=1,
        )
        bad = BadNode(node=EVIL, since_us=now_us, until_us=now_us + 10**9, why=EVIL, evidence=[EVIL])
        moving = TransferView(job=number, way="in", names=[EVIL], places=[EVIL], tries=0, under_way=True)
        grant = GrantView(account=EVIL, granted=1.0, used=0.0, open=0.0, left=1.0)
        view = packed(
            tide=tide(4, phase=0.3, minutes=30), bad_nodes=[bad], bad_nodes_total=1, transfers=[moving],
            transfers_total=1, grants=[grant], waits=evil_waits(), mode=EVIL, waits_for=EVIL,
            caches=[
                CacheView(
                    name=EVIL, url=EVIL, form=EVIL, state=EVIL, findings=[EVIL], believe=EVIL, since_us=2**62,
                    total=CacheFigures(opens=2**62, served=1, fetched=2**62), datasets=[CacheFigures(name=EVIL)],
                )
            ],
            samples=[node_series.samples("tm-hostile", [EVIL, "n2"], until_us=now_us)],
            reads=[ReadView(job=number, app=EVIL, way=EVIL, place=EVIL, waits=1, wait_log2_us=[0] * 60 + [1])],
        )  # fmt: skip
        measured = msgspec.structs.replace(allocation, name="tm-hostile")
        site.sync(report, allocation, measured, views=view)
        self.hostile = site
        if self.downtimes is not None:
            with self.downtimes.open("a") as file:
                file.write(downtime("hostile", 1, 2, EVIL))
            until(lambda: EVIL in json.dumps(self.server.call("GET", "/v1/downtimes")[1]).replace('\\"', '"'))
        return number

    def answer_log(self, site: SiteSide) -> None:
        """Send the output that was asked for."""
        for order in site.sync():
            if isinstance(order, FetchLogOrder):
                text = f"event 0 of 1\n{EVIL}\n"
                site.sync(
                    LogReport(n=0, request=order.request, found=True, stdout=text, stderr="warning: cold\n")
                )


def caches(now_us: int) -> list[CacheView]:
    """A cache that does well, and one of another site."""
    datasets = [
        CacheFigures(
            name=f"/store/data/{name}", opens=opens, served=served, hit=served - 10**10, known=known,
            fetched=served - known, again=again,
        )
        for name, opens, served, known, again in (
            ("mc23/ttbar.13p6TeV.AOD", 41_200, 61 * 10**12, 55 * 10**12, 0),
            ("mc23/zmumu.13p6TeV.AOD", 9_310, 12 * 10**12, 7 * 10**12, 4 * 10**11),
        )
    ]  # fmt: skip
    names = ("opens", "served", "hit", "known", "fetched", "again")
    total = CacheFigures(**{name: sum(getattr(each, name) for each in datasets) for name in names})
    return [
        CacheView(
            name="dtn", url="root://titan-dtn01:1094", state="running", at_us=now_us, since_us=now_us - 9 * 10**11,
            total=total, datasets=datasets, wire_origin=total.fetched + 10**9,
        ),
        CacheView(name="region", url="root://cache.region.example:1094", state="other"),
    ]  # fmt: skip


def regular_waits() -> list[RegularWaits]:
    """Regular jobs of a day by class: small and short ones, and some that are large and long."""
    return [
        RegularWaits(size="1/64", length="5min", jobs=640, delayed=31, wait_s=38_400, share_s=192),
        RegularWaits(size="1/64", length="6h", jobs=200, delayed=4, wait_s=400_000, share_s=40),
        RegularWaits(size="1/4", length="longer", jobs=12, delayed=2, wait_s=240_000, share_s=60.5),
        RegularWaits(size="unknown", length="unknown", jobs=3, delayed=0, wait_s=10, share_s=0),
    ]


def evil_waits() -> list[RegularWaits]:
    """Classes that do not exist, and figures that are none."""
    return [
        RegularWaits(size=EVIL, length=EVIL, jobs=2**62, delayed=2**62, wait_s=1.0, share_s=1.0),
        RegularWaits(size="1", length="1h", jobs=1, delayed=1, wait_s=1e300, share_s=-1.0),
        RegularWaits(size="1", length="6h", jobs=2**62, delayed=2**62, wait_s=2.0**61, share_s=2.0**61),
    ]


def reads(job: int) -> list[ReadView]:
    """What two traced payloads read, once from the cache and once past it."""
    waits = [0] * 8 + [40, 700, 90, 4]
    far = [0] * 17 + [160, 20]
    return [
        ReadView(job=job, app="simulate", way="cache", place="dtn", payloads=3, reads=9_402, bytes=4_810_000_000,
                 waits=834, wait_us=700_000, wait_log2_us=waits),
        ReadView(job=job, app="simulate", place="192.0.2.7:1094", payloads=3, reads=512, bytes=61_000_000, waits=180,
                 wait_us=45_000_000, wait_log2_us=far),
    ]  # fmt: skip


__all__ = ["DEADLINE_S", "EVIL", "PagesWorld", "Path", "TcpServer", "done"]
