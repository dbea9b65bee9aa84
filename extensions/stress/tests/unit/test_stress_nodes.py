"""Series of a site's nodes, from the samples that the server returns."""

from __future__ import annotations

import pytest

from tidemill.wire.monitoring import NodePoint, NodeSeries, SampleReply
from tidemill_stress.run import Series
from tidemill_stress.series.node_series import series_of

NAMES = ["cpu_idle", "cpu_iowait", "memory", "memory_used", "nfs_ops", "nfs_opens", "lustre_closes"]


def point(at_s: float, *values: float | None) -> NodePoint:
    return NodePoint(at_us=int(at_s * 1e6), over_us=30_000_000, values=list(values))


def reply(name: str, nodes: int, *mean: NodePoint, of: list[NodeSeries] | None = None) -> SampleReply:
    return SampleReply(
        site="s", allocation=name, quantities=NAMES, units=[""] * len(NAMES), nodes_total=nodes, nodes=of or [],
        mean=list(mean), until=0,
    )  # fmt: skip


def by_title(found: list[Series]) -> dict[str, Series]:
    return {each.title: each for each in found}


def test_means_of_allocations_are_weighted_by_their_nodes_interval_by_interval() -> None:
    large = reply("a", 3, point(3000, 0.2, 0.0, 100, 50, 0), point(3030, 0.1, 0.1, 100, 80, 0))
    small = reply("b", 1, point(3002, 0.6, 0.2, 100, 90, 0))
    found = by_title(series_of("s", [large, small], 2990, 3040))
    cpu = found["CPU in use"]
    assert (cpu.source, cpu.limit) == ("nodes of s", 1.0)
    assert [value for _, value in cpu.points] == [pytest.approx((3 * 0.8 + 0.2) / 4), pytest.approx(0.8)]
    assert [at for at, _ in cpu.points] == [pytest.approx(3000.5), 3030]
    assert [value for _, value in found["memory in use"].points] == [pytest.approx(0.6), pytest.approx(0.8)]
    assert "requests to NFS servers" not in found, "there is no NFS"


def test_opens_and_closes_of_each_file_system_are_series_of_their_own() -> None:
    one = reply(
        "a", 1, point(3000, 0.5, 0.0, 100, 50, 90, 12, None), point(3030, 0.5, 0.0, 100, 50, 90, 16, None)
    )
    found = by_title(series_of("s", [one], 2990, 3040))
    opens = found["files opened on NFS"]
    assert (opens.unit, [value for _, value in opens.points]) == ("1/s", [12, 16])
    assert "files closed on Lustre" not in found, "it is not known"


def test_what_lies_outside_the_window_or_is_not_known_is_left_out() -> None:
    early = reply("a", 1, point(2900, 0.0, 0.0, 100, 100, 5), point(3000, None, 0.1, None, 10, 7))
    found = by_title(series_of("s", [early], 2990, 3040))
    assert set(found) == {"CPU that waits for input and output", "requests to NFS servers"}
    assert series_of("s", [], 0, 1e9) == []


def test_an_allocation_whose_mean_is_not_told_yet_shows_its_nodes() -> None:
    nodes = [NodeSeries(node=f"n{k}", points=[point(3000, 0.5 * k, 0.0, 100, 50, 0)]) for k in range(2)]
    (cpu, _) = series_of("s", [reply("a", 2, of=nodes)], 2990, 3040)
    assert [value for _, value in cpu.points] == [pytest.approx(0.75)]
