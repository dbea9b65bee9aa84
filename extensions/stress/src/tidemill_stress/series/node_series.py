"""What the nodes of a site did during a level, from their pilots' samples: one series per quantity, over all nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tidemill.client import Client
from tidemill.wire.api import SiteRow
from tidemill.wire.monitoring import NodePoint, SampleReply
from tidemill.wire.server_connection import NotFoundError
from tidemill_stress.run import Series

ALLOCATIONS_MAX = 500
"""Allocations of a site that are asked for: each costs a request."""

Values = dict[str, float]


class NodeFigure(NamedTuple):
    """A series of nodes. `needs`: quantities of a sample; `of` makes the value of them. `limit`: where it is full."""

    title: str
    unit: str
    needs: tuple[str, ...]
    of: Callable[[Values], float]
    limit: float | None = None


def _one(title: str, unit: str, name: str, limit: float | None = None) -> NodeFigure:
    return NodeFigure(title, unit, (name,), lambda values: values[name], limit)


FIGURES = (
    NodeFigure(
        "CPU in use", "", ("cpu_idle", "cpu_iowait"),
        lambda values: 1 - values["cpu_idle"] - values["cpu_iowait"], 1.0,
    ),
    _one("CPU that waits for input and output", "", "cpu_iowait", 1.0),
    NodeFigure("load per core", "", ("load1", "cores"), lambda values: values["load1"] / max(1, values["cores"])),
    _one("pressure: CPU", "", "pressure_cpu_some", 1.0),
    _one("pressure: memory", "", "pressure_memory_some", 1.0),
    _one("pressure: input and output", "", "pressure_io_some", 1.0),
    NodeFigure(
        "memory in use", "", ("memory_used", "memory"),
        lambda values: values["memory_used"] / max(1.0, values["memory"]), 1.0,
    ),
    _one("pages swapped in", "1/s", "swap_in"),
    _one("bytes received", "bytes/s", "network_in"),
    _one("bytes sent", "bytes/s", "network_out"),
    _one("local disk busy", "", "disk_busy", 1.0),
    _one("requests to NFS servers", "1/s", "nfs_ops"),
    _one("round trip of requests to NFS servers", "s", "nfs_rtt"),
    _one("bytes from NFS servers", "bytes/s", "nfs_read"),
    _one("files opened on NFS", "1/s", "nfs_opens"),
    _one("files closed on NFS", "1/s", "nfs_closes"),
    _one("metadata requests to Lustre", "1/s", "lustre_ops"),
    _one("bytes read from Lustre", "bytes/s", "lustre_read"),
    _one("files opened on Lustre", "1/s", "lustre_opens"),
    _one("files closed on Lustre", "1/s", "lustre_closes"),
    _one("GPUs in use", "", "gpu_busy", 1.0),
)  # fmt: skip


class NodeSource:
    """The nodes' monitors, by way of the server, which holds the last 240 samples of each allocation."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def observe(self, rows: Sequence[SiteRow]) -> None:
        """Nothing to note: the server holds samples."""

    def series(self, site: str, start_s: float, end_s: float) -> list[Series]:
        """Figures of each site's nodes in an interval; none where pilots do not measure (`monitor_interval_s`)."""
        sites = [site] if site else [row.name for row in self._client.sites()]
        return [
            each
            for name in sites
            for each in series_of(name, self._replies(name, start_s, end_s), start_s, end_s)
        ]

    def _replies(self, site: str, start_s: float, end_s: float) -> Iterable[SampleReply]:
        rows = self._client.placements(site, since_us=int(start_s * 1e6), until_us=int(end_s * 1e6))
        for _, row in zip(range(ALLOCATIONS_MAX), rows, strict=False):
            try:
                yield self._client.node_samples(row.name, site=site)
            except NotFoundError:
                continue  # it has left the server's tables meanwhile


def series_of(site: str, replies: Iterable[SampleReply], start_s: float, end_s: float) -> list[Series]:
    """Means over all nodes, weighted by the nodes of each allocation. Samples of the same interval are one point. Pure;
    memory grows with intervals, not with nodes."""
    sums: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for reply in replies:
        for point in _points(reply):
            at_s = point.at_us / 1e6
            if not start_s <= at_s <= end_s:
                continue
            interval = round(at_s / max(point.over_us / 1e6, 1e-3))
            for figure, value in _figures(reply.quantities, point):
                total = sums[figure, interval]
                total[0] += at_s * reply.nodes_total
                total[1] += value * reply.nodes_total
                total[2] += reply.nodes_total
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (figure, _), (at, value, nodes) in sorted(sums.items()):
        found[figure].append((at / nodes, value / nodes))
    return [
        Series(title=each.title, unit=each.unit, source=f"nodes of {site}", points=found[each.title], limit=each.limit)
        for each in FIGURES
        if any(value for _, value in found[each.title])
    ]  # fmt: skip


def _points(reply: SampleReply) -> Sequence[NodePoint]:
    if reply.mean or not reply.nodes:
        return reply.mean
    return [point for node in reply.nodes for point in node.points]


def _figures(names: Sequence[str], point: NodePoint) -> Iterable[tuple[str, float]]:
    known = {name: value for name, value in zip(names, point.values, strict=False) if value is not None}
    for each in FIGURES:
        if all(name in known for name in each.needs):
            yield each.title, each.of(known)
