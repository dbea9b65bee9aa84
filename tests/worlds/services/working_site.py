"""A site that has every job done and delivered at once, and a client that counts its requests: for benches and tests of
servers with many jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.client.client import Client
from tidemill.wire.api import (
    AppOffer,
    Capacity,
    DeliveredReport,
    DeliverOrder,
    DoneReport,
    LeaseOrder,
    OutputRow,
    PayloadUsage,
    SyncReply,
    SyncRequest,
)

SITE = "site"
RANGES = 5_000  #: leases and reports of a sync
OFFER = AppOffer(
    name="sim", version="1", digest="", mode="command", parameters={}, outputs=["out"], cores=1, memory_mb=1,
    event_s=1.0,
)  # fmt: skip


class WorkingSite:
    """The site `SITE`, whose syncs `exchange` passes on to a server. Each job delivers the file `place` as `out`.

    `acked`, `ordered`: of an earlier one of this name, the last report that the server has and the last order that it
    made.
    """

    def __init__(
        self,
        exchange: Callable[[SyncRequest], SyncReply],
        place: Path,
        *,
        acked: int = 0,
        ordered: int = 0,
    ) -> None:
        self._exchange = exchange
        self._row = OutputRow(
            name="out", url=place.as_uri(), size_bytes=place.stat().st_size, sha256="0" * 64
        )
        self._n, self._have = acked, ordered

    def work(self, *, until: int) -> int:
        """Run and deliver jobs of one event until this many are done; their number."""
        reports: list[Any] = []
        done = 0
        while True:
            orders = self._sync(reports, want=done < until)
            leases = [each for each in orders if isinstance(each, LeaseOrder)]
            delivers = [each for each in orders if isinstance(each, DeliverOrder)]
            done += len(delivers)
            if not leases and not delivers:
                return done
            reports = [
                DoneReport(
                    n=0, lease=each.lease, job=each.job, first=0, count=1, outputs=True,
                    usage=PayloadUsage(payloads=1, wall_us=1_000_000),
                )
                for each in leases
            ]  # fmt: skip
            reports += [
                DeliveredReport(n=0, job=each.job, outputs=[self._row], evidence=None) for each in delivers
            ]

    def _sync(self, reports: list[Any], *, want: bool) -> list[Any]:
        for each in reports:
            self._n += 1
            each.n = self._n
        capacity = Capacity(
            want_core_s=1e9 if want else 0.0, want_ranges_max=RANGES if want else 0, slot_cores_max=1,
            slot_memory_mb_max=100, devices={}, event_s={}, nodes=1, busy_cores=0, adhoc=False,
        )  # fmt: skip
        request = SyncRequest(
            site=SITE, epoch=1, host="h", version="1", reports=reports, have=self._have, offers=[OFFER],
            capacity=capacity,
        )  # fmt: skip
        orders = self._exchange(request).orders
        self._have = max([self._have, *(each.n for each in orders)])
        return orders


class CountingClient(Client):
    """A client that counts its requests."""

    asked = 0

    def get(self, path: str, reply_type: Any, **query: Any) -> Any:
        self.asked += 1
        return super().get(path, reply_type, **query)
