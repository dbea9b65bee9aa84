"""Staging times of nodes add up by the nodes of their allocation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidemill.site.watch.staging_times import LINES_MAX, StagingTimes
from tidemill.wire.monitoring import StagingView
from tidemill.wire.node import Noted


def noted(pilot: str, mode: str = "shared", topic: str = "stage", **numbers: int) -> Noted:
    return Noted(
        p=pilot, s=1, topic=topic, program=None, job=1, mode=mode, message="", numbers=numbers, at_us=0
    )


def test_files_add_up_by_nodes_and_way() -> None:
    times, allocations = StagingTimes(7), {"a": SimpleNamespace(nodes=4), "b": SimpleNamespace(nodes=4)}
    told: list[Any] = [
        noted("a.0.0", ms=10, bytes=100), noted("b.3.0", ms=30, bytes=50), noted("a.1.0", "peer", ms=5, bytes=1),
        noted("a.2.0", "direct", ms=9), noted("a.2.0", topic="image", ms=9), noted("strange.0.0", ms=9),
        noted("a.0.0", bytes=3),
    ]  # fmt: skip
    times.on_records(told, allocations)
    assert times.views() == [
        StagingView(
            nodes=4, way="peer", since_us=7, files=1, bytes=1, ms=5, square_ms=25, max_ms=5, times=[(5, 1)]
        ),
        StagingView(
            nodes=4,
            way="shared",
            since_us=7,
            files=2,
            bytes=150,
            ms=40,
            square_ms=1000,
            max_ms=30,
            times=[(11, 1), (32, 1)],
        ),
    ]


def test_there_are_at_most_so_many_lines() -> None:
    times = StagingTimes(0)
    for nodes in range(LINES_MAX + 5):
        times.on_records([noted("a.0.0", ms=1)], {"a": SimpleNamespace(nodes=nodes)})
    assert len(times.views()) == LINES_MAX
