"""Samples of nodes as a site sends them: a stretch of work that starts, computes and ends, with one slow node."""

from __future__ import annotations

import math

from tidemill.model.metrics.nodes import QUANTITIES
from tidemill.wire.monitoring import AllocationSamples, MountUse, NodePoint, NodeSeries

GB = 1_000_000_000
EVERY_US = 30_000_000


def samples(
    allocation: str,
    nodes: list[str],
    *,
    until_us: int,
    points: int = 50,
    slow: str = "",
    every_us: int = EVERY_US,
) -> AllocationSamples:
    """`slow`: a node that waits for its storage."""
    series = [
        NodeSeries(
            node=node, points=[
                _point(k, points - 1 - at, until_us, every_us, is_slow=node == slow) for at in range(points)
            ],
            cores="98" * 8 if node != slow else "3141" * 4,
            mounts=[MountUse("/cvmfs/sw", 210.0, 0.0, 4e6, 0.0, 0.0007, 60.0, 15.0)],
        )
        for k, node in enumerate(nodes)
    ]  # fmt: skip
    mean = [
        NodePoint(
            series[0].points[at].at_us, every_us,
            [_mean([each.points[at].values[k] for each in series]) for k in range(len(QUANTITIES))],
        )
        for at in range(points)
    ]  # fmt: skip
    return AllocationSamples(allocation=allocation, nodes_total=len(nodes), nodes=series, mean=mean)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _point(node: int, ago: int, until_us: int, every_us: int, *, is_slow: bool) -> NodePoint:
    at = 49 - ago
    wave = 0.5 + 0.5 * math.sin(at / 9 + node / 3)
    ramp = min(1.0, (at - node / 2) / 8) if at > node / 2 else 0.0
    user = ramp * ((0.42 if is_slow else 0.9) + 0.06 * wave)
    iowait = ramp * (0.35 if is_slow else 0.01) * (0.7 + 0.3 * wave)
    system = 0.01 + 0.02 * ramp * wave
    start = math.exp(-((at - 6 - node / 3) ** 2) / 8)
    found = {
        "cpu_user": user, "cpu_nice": 0.0, "cpu_system": system, "cpu_iowait": iowait, "cpu_steal": 0.0,
        "cpu_idle": max(0.0, 1 - user - system - iowait), "cores": 16.0, "load1": 16 * ramp + wave,
        "running": round(16 * ramp + 1), "pressure_cpu_some": 0.03 * ramp + 0.02 * wave,
        "pressure_memory_some": 0.0, "pressure_io_some": iowait, "memory": 64 * GB, "memory_used": (4 + 30 * ramp) * GB,
        "page_cache": min(20.0, 2 + 0.2 * at) * GB, "swap_in": 0.0, "swap_out": 0.0,
        "network_in": 4e6 + 9e8 * start, "network_out": 2e6 + 3e6 * wave, "packets_in": 4e3 + 6e5 * start,
        "packets_out": 3e3 * (1 + wave), "disk_read": 1e5 * wave, "disk_write": 4e6 * wave, "disk_busy": 0.05 * wave,
        "nfs_ops": 40 + 4e3 * start, "nfs_retransmissions": 0.0, "nfs_read": 8e5 + 2e8 * start, "nfs_write": 2e5,
        "nfs_rtt": (0.021 if is_slow else 0.0007) * (1 + wave), "nfs_opens": 3 + 1.2e3 * start,
        "nfs_closes": 3 + 3e2 * start, "lustre_ops": 2 + 60 * wave, "lustre_read": 3e6 * wave, "lustre_write": 1e5,
        "lustre_closes": 1 + 9 * wave,
    }  # fmt: skip
    at_us = until_us - ago * every_us - node * 1_700_000
    return NodePoint(at_us, every_us, [found.get(each.name) for each in QUANTITIES])
