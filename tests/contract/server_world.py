"""A dispatcher and sites that keep to the contract, for tests of the store on both databases."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import JobSpec
from tidemill.server.core import campaign_names
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.core.dispatcher import Dispatcher, DispatchRules
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.database.store import Session, Store
from tidemill.server.read import api_pages
from tidemill.wire.api import (
    AppOffer,
    Capacity,
    DoneReport,
    FailureReport,
    JobDetail,
    LeaseOrder,
    Order,
    PayloadUsage,
    ReleaseReport,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)

SCRIPT = Path(__file__).parents[2] / "scripts" / "postgresql.sh"


class World:
    """A dispatcher whose sites' clock is the test's."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_s = 0.0
        self.dispatcher = Dispatcher(
            store, DispatchRules(site_lost_s=600), server_clock=ServerClock(monotonic_s=lambda: self.now_s)
        )
        self.reader: Session = store.reader()
        self.keys = itertools.count()

    def another_dispatcher(self) -> Dispatcher:
        """As a server that is started now."""
        timed = ServerClock(monotonic_s=lambda: self.now_s)
        return Dispatcher(self.store, DispatchRules(site_lost_s=600), server_clock=timed)

    def submit(self, *jobs: JobSpec, campaign: str = "c", **more: Any) -> list[int]:
        request = SubmitRequest(key=f"k{next(self.keys)}", campaign=campaign, jobs=list(jobs), **more)
        reply = self.dispatcher.handle_submit(request)
        return list(range(reply.first_job, reply.first_job + reply.count))

    def job(self, number: int) -> JobDetail:
        return api_pages.job(self.reader, number, cache={}, silent=set())

    def state(self, number: int) -> str:
        return self.job(number).row.state


def key_of(session: Session, campaign: str) -> CampaignKey:
    """The campaign, for one who sees those of all owners."""
    return campaign_names.find(session, campaign, None)


def number_of(session: Session, campaign: str | None) -> int | None:
    return None if campaign is None else key_of(session, campaign).number


class NotingSession:
    """Reads as a session does, and notes what was asked for and found."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.found: list[tuple[str, list[Any]]] = []

    def rows(self, name: str, /, **parameters: Any) -> list[Any]:
        rows = self._session.rows(name, **parameters)
        self.found.append((name, rows))
        return rows


class Site:
    """A site that keeps to the contract."""

    def __init__(self, world: World, name: str = "s", outputs: dict[str, list[str]] | None = None) -> None:
        self.world, self.name = world, name
        self.have = self.n = 0
        self.epoch = 1
        self.offers = [
            AppOffer(
                name=app, version="1", digest="", mode="command", parameters={}, outputs=outputs, cores=1,
                memory_mb=100, event_s=1.0,
            )
            for app, outputs in (outputs or {"sim": [], "reco": ["hits"]}).items()
        ]  # fmt: skip

    def sync(self, *reports: Any, want: float = 1e6, ranges: int = 5000, **changes: Any) -> list[Order]:
        return self.exchange(*reports, want=want, ranges=ranges, **changes).orders

    def exchange(self, *reports: Any, want: float = 1e6, ranges: int = 5000, **changes: Any) -> SyncReply:
        for report in reports:
            self.n += 1
            report.n = self.n
        capacity = Capacity(
            want_core_s=want, want_ranges_max=ranges, slot_cores_max=4, slot_memory_mb_max=4000, devices={"gpu": 1},
            event_s={}, nodes=1, busy_cores=0, adhoc=False,
        )  # fmt: skip
        fields: dict[str, Any] = {
            "site": self.name, "epoch": self.epoch, "host": "h", "version": "1", "reports": list(reports),
            "have": self.have, "offers": self.offers, "capacity": capacity, **changes,
        }  # fmt: skip
        reply = self.world.dispatcher.handle_sync(SyncRequest(**fields))
        self.have = max([self.have, *(order.n for order in reply.orders)])
        return reply


def done(
    lease: LeaseOrder, first: int | None = None, count: int | None = None, *, outputs: bool = False
) -> DoneReport:
    at = lease.first if first is None else first
    return DoneReport(
        n=0, lease=lease.lease, job=lease.job, first=at, count=lease.count if count is None else count,
        outputs=outputs, usage=PayloadUsage(payloads=1, wall_us=2_000_000),
    )  # fmt: skip


def failed(
    lease: LeaseOrder, event: int, *, final: bool = True, message: str = "exit 1", stderr: str = "a\0b"
) -> FailureReport:
    evidence = Evidence(failure=FailureClass.PAYLOAD, message=message, stderr_tail=stderr)
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


def refused(lease: LeaseOrder) -> ReleaseReport:
    evidence = Evidence(failure=FailureClass.DISPATCH, message="no such parameter")
    return ReleaseReport(
        n=0, lease=lease.lease, job=lease.job, first=lease.first, count=lease.count, reason="refused",
        evidence=evidence,
    )  # fmt: skip


def release_of(lease: LeaseOrder, first: int, count: int) -> ReleaseReport:
    return ReleaseReport(
        n=0, lease=lease.lease, job=lease.job, first=first, count=count, reason="stopped", evidence=None
    )


def leases(orders: list[Order]) -> list[LeaseOrder]:
    return [order for order in orders if isinstance(order, LeaseOrder)]


SIM = JobSpec(app="sim")
