"""What people see of this site at the server: its tide by the minute, bad nodes, transfers, grants. Decides nothing.

Sent with a sync, at most every `VIEW_S` seconds and only when something is new; what was not answered is sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill import clock, log
from tidemill.harvest.account.ledger import HOUR_S
from tidemill.model.job import JobSpec
from tidemill.model.machine import NodeState, Snapshot
from tidemill.model.state import AllocationState
from tidemill.model.trouble import RefusedApplication
from tidemill.site.applications.catalogue import Applications
from tidemill.site.data.site_data import SiteData
from tidemill.site.nodes.harvesting import Harvesting
from tidemill.site.staff.denials import Denials
from tidemill.site.state.served_site import ServedSite
from tidemill.site.state.site_state import SiteState
from tidemill.site.state.status import SiteStatus
from tidemill.site.watch.cache_views import SiteCaches
from tidemill.site.watch.node_samples import NodeSamples
from tidemill.site.watch.staging_times import StagingTimes
from tidemill.wire.far import RouteView
from tidemill.wire.monitoring import (
    AreaSums,
    GrantView,
    MoveSums,
    SiteSums,
    TidePoint,
    TransferView,
)
from tidemill.wire.views import ALL_ADDED_BYTES_MAX, ROWS_MAX, TIDE_POINTS_MAX, RawViews, packed, types

VIEW_S = 15.0
SAMPLE_S = 5.0
NAMES_MAX = 3
TEXT_MAX = 500
_LOG = log.Log("views")
_REGULAR = (NodeState.BUSY, NodeState.SHARED, NodeState.ENDING)


def node_counts(snapshot: Snapshot) -> Counter[str]:
    """Nodes of a machine that are `idle`, `regular` (with regular jobs), `ours`, or `other` (out of service)."""
    ours = {name for job in snapshot.running if job.ours for name in job.nodes}
    return Counter(
        "ours"
        if node.name in ours
        else "idle"
        if node.state is NodeState.IDLE
        else "regular"
        if node.state in _REGULAR
        else "other"
        for node in snapshot.nodes
    )


class TideSamples:
    """Minutes of the machine that the server may not have yet, oldest first."""

    def __init__(self) -> None:
        self._sums: dict[int, list[float]] = {}  # minute -> samples, nodes as in `note`

    def note(self, at_s: float, counts: tuple[float, float, float, float]) -> None:
        """Add one sample of the machine: nodes with regular jobs, with Tidemill's, idle, out of service."""
        sums = self._sums.setdefault(int(at_s // 60), [0.0] * 5)
        for k, value in enumerate((1.0, *counts)):
            sums[k] += value
        while len(self._sums) > TIDE_POINTS_MAX:
            del self._sums[next(iter(self._sums))]

    def points(self) -> list[TidePoint]:
        """Means of all minutes that are kept."""
        return [
            TidePoint(
                minute=minute, regular=round(regular / n, 2), ours=round(ours / n, 2), idle=round(idle / n, 2),
                away=round(away / n, 2),
            )
            for minute, (n, regular, ours, idle, away) in self._sums.items()
        ]  # fmt: skip

    def received(self, points: list[TidePoint]) -> None:
        """The server has these. The last minute may still grow, so that one is sent again."""
        for point in points[:-1]:
            self._sums.pop(point.minute, None)


class Shown(NamedTuple):
    """What is shown of a site besides its state: its caches, what its nodes do, its applications, and whose jobs its
    staff deny."""

    caches: SiteCaches
    nodes: NodeSamples
    applications: Applications
    denials: Denials


class Views:
    """When to send a view, and what is in it."""

    def __init__(
        self,
        site: ServedSite,
        harvesting: Harvesting,
        data: SiteData,
        *,
        shown: Shown,
        status: Callable[[], SiteStatus],
    ) -> None:
        self._caches, self._nodes, self._applications, self._denials = shown
        self._status = status
        #: samples of nodes are shown as they come
        self._pause_s = min(VIEW_S, max(1.0, self._nodes.interval_s or VIEW_S))
        self._site = site
        self._machine, self._data = harvesting.machine, data
        self._granting, self._deliveries = harvesting.fleets.granting, data.deliveries
        self._tide = TideSamples()
        self.staging = StagingTimes(clock.now_us())
        self._next_sample_s = 0.0
        self._next_view_s = 0.0
        self._sent: RawViews | None = None
        self._tide_sent: list[TidePoint] = []
        self._received: RawViews | None = None
        self._failed: dict[str, str] = {}  # views of extensions by name, and why

    def sample(self) -> None:
        """Count nodes when it is time."""
        now_s = clock.monotonic_s()
        if now_s < self._next_sample_s:
            return
        self._next_sample_s = now_s + SAMPLE_S
        snapshot = self._machine.snapshot
        if snapshot is not None:
            found = node_counts(snapshot)
            counts = (found["regular"], found["ours"], found["idle"], found["other"])
        else:
            active = (
                a.nodes for a in self._site.state.allocations.values() if a.state is AllocationState.ACTIVE
            )
            ours = sum(active)
            counts = (0, ours, max(0, self._machine.nodes - ours), 0)
        self._tide.note(clock.now_us() / 1e6, counts)

    def next_views(self, *, is_received: bool) -> RawViews:
        """The views for the next sync; empty = nothing new, or it is too soon. `is_received`: the server has answered
        the last sync; else what that one carried is sent again."""
        self._settle(is_received=is_received)
        now_s = clock.monotonic_s()
        if now_s < self._next_view_s:
            return {}
        self._next_view_s = now_s + self._pause_s
        status = self._status()
        sums, tide = _sums(status), self._tide.points()
        # what is compared has no time of its sums: it says nothing new by that alone
        views = packed(tide=tide, **_of_status(status), **self._of_parts()) | self._of_extensions(status)
        views |= packed(sums=msgspec.structs.replace(sums, at_us=0))
        samples = self._nodes.next_samples()
        if not samples and views == self._received:
            return {}
        self._sent, self._tide_sent = views, tide
        return views | packed(sums=sums, samples=samples)

    def _settle(self, *, is_received: bool) -> None:
        if self._sent is None:
            return
        if is_received:
            self._tide.received(self._tide_sent)
            self._nodes.unsent.received()
            self._received = self._sent
        else:
            self._next_view_s = 0.0
        self._sent = None

    def _of_parts(self) -> dict[str, Any]:
        """Views by name that are not made of the status."""
        transfers = list(self._transfers(self._site.state))
        return {
            "transfers": transfers[:ROWS_MAX],
            "transfers_total": len(transfers),
            "routes": list(self._routes())[:ROWS_MAX],
            "denied": [name[:TEXT_MAX] for name in self._denials.names()[:ROWS_MAX]],
            "reads": list(self._caches.reads())[:ROWS_MAX],
            "staging": self.staging.views()[:ROWS_MAX],
            "refused": [
                RefusedApplication(name=each.name, file=each.file[:TEXT_MAX], why=each.why[:TEXT_MAX])
                for each in self._applications.refused()[:ROWS_MAX]
            ],
        }

    def _of_extensions(self, status: SiteStatus) -> RawViews:
        """Views that extensions make of the status. One that fails, or is too long, is left out; the log says why."""
        found: RawViews = {}
        left = ALL_ADDED_BYTES_MAX
        for name, kind in types().items():
            if kind.made is None:
                continue
            try:
                view = packed(**{name: kind.made(status)})
                size = len(memoryview(view[name]))
                wrong = "it is too long" if size > min(kind.bytes_max, left) else ""
            except Exception as error:  # noqa: BLE001 -- an extension's code may raise anything
                view, wrong = {}, repr(error)
            if not wrong:
                found |= view
                left -= size
            elif self._failed.get(name) != wrong:
                self._failed[name] = wrong
                _LOG.warning("view.failed", view=name, error=wrong)
        return found

    def _transfers(self, state: SiteState) -> Iterator[TransferView]:
        for job, tries in self._granting.inputs.staging_now():
            if job in state.jobs:
                why = self._granting.inputs.waits_for(job)[:TEXT_MAX]
                yield _inputs(job, state.jobs[job].spec, tries, why)
        for job, tries, under_way in self._deliveries.standing():
            if job in state.jobs:
                yield _outputs(job, state.jobs[job].spec, tries, under_way)

    def _routes(self) -> Iterator[RouteView]:
        """Routes of inputs, of the newest jobs first, ended ones too: of one with many inputs some are shown."""
        for job, rows in reversed(self._data.stage.routes.all_rows(ROWS_MAX).items()):
            for row in rows:
                noted = self._data.stage.routes.reads.noted(row.via, row.at_us, row.until_us)
                why = f"{row.why}. Since then: {noted}" if noted else row.why
                yield RouteView(
                    job=job, name=row.name, event=row.event, way=row.way, url=row.url[:TEXT_MAX],
                    why=why[:TEXT_MAX],
                )  # fmt: skip


def _of_status(status: SiteStatus) -> dict[str, Any]:
    """Views by name that repeat the status."""
    return {
        "bad_nodes": status.bad_nodes,
        "bad_nodes_total": status.bad_nodes_total,
        "grants": list(_grants(status))[:ROWS_MAX],
        "mode": status.mode,
        "waits_for": status.waits_for,
        "stopped": status.stopped,
        "caches": status.caches,
        "waits": status.waits[:ROWS_MAX],
    }


def _sums(status: SiteStatus) -> SiteSums:
    areas = [
        AreaSums(
            area=each.area, ops=each.ops, bytes=each.bytes, over=each.ops_over + each.bytes_over,
            ops_per_s=each.ops_per_s, bytes_per_s=each.bytes_per_s,
        )
        for each in status.areas[:ROWS_MAX]
    ]  # fmt: skip
    moves = [
        MoveSums(way=way, done=done, failed=failed, bytes=moved)
        for way, done, failed, moved in status.data.moves
    ]
    return SiteSums(
        since_us=status.since_us, at_us=status.at_us, moves=moves, areas=areas,
        harm_s=None if status.harm is None else round(status.harm.all_s, 1),
    )  # fmt: skip


def _grants(status: SiteStatus) -> Iterator[GrantView]:
    for line in status.grants:
        yield GrantView(
            account=line.account, granted=line.granted_s / HOUR_S, used=line.used_s / HOUR_S,
            open=line.committed_s / HOUR_S, left=line.left_s / HOUR_S,
        )  # fmt: skip


def _inputs(job: int, spec: JobSpec, tries: int, waits_for: str) -> TransferView:
    names = [each.name for each in spec.inputs]
    places = [place(each.url) for each in spec.inputs]
    view = _transfer(job, "in", (names, places), tries=tries, under_way=not waits_for)
    return msgspec.structs.replace(view, waits_for=waits_for)


def _outputs(job: int, spec: JobSpec, tries: int, under_way: bool) -> TransferView:
    outputs = spec.outputs or []
    places = [place(each.url or spec.output_dir or "") for each in outputs] or [place(spec.output_dir or "")]
    return _transfer(job, "out", ([each.name for each in outputs], places), tries=tries, under_way=under_way)


def _transfer(
    job: int, way: str, files: tuple[list[str], list[str]], *, tries: int, under_way: bool
) -> TransferView:
    names, places = files
    return TransferView(
        job=job, way=way, names=[each[:TEXT_MAX] for each in names[:NAMES_MAX]],
        places=list(dict.fromkeys(places))[:NAMES_MAX], tries=tries, under_way=under_way,
    )  # fmt: skip


def place(url: str) -> str:
    """Scheme and host of a URL: never the rest, in which there may be a secret."""
    if not url:
        return "the site's output directory"
    if url.startswith("job:"):
        return "another job's output"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "unreadable URL"
    if not parts.scheme or parts.scheme == "file":
        return "the site's file systems"
    return f"{parts.scheme}://{parts.hostname or ''}"[:TEXT_MAX]
