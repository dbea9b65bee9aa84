"""Samples of nodes from a real pilot as a data frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.world import World, world

from tidemill import frames
from tidemill.model.job import JobSpec
from tidemill.model.metrics.nodes import QUANTITIES


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    """A site that measures often, whose node has sent samples."""
    pytest.importorskip("pyarrow")
    with world(nodes=1, cores=2, timing={"site": {"MONITOR_INTERVAL_S": 0.5}}) as running:
        running.submit("kept", JobSpec(command=["/bin/sleep", "600"]))
        running.wait_for(lambda: has_samples(running), "samples and means")
        yield running


def has_samples(it: World) -> bool:
    rows = it.client.allocations()
    return bool(rows) and len(it.client.node_samples(rows[0].name).mean) >= 4


def test_the_samples_of_an_allocation_are_a_table_with_units(it: World) -> None:
    name = it.client.allocations()[0].name
    told = it.client.node_samples(name)
    table = frames.samples(it.client, name).arrow
    assert table.column_names == ["node", "at_us", "over_s", *(each.name for each in QUANTITIES)]
    units = {field.name: field.metadata[b"unit"].decode() for field in table.schema}
    assert (units["cpu_user"], units["nfs_opens"], units["at_us"]) == ("ratio", "1/s", "us")
    rows = {(row["node"], row["at_us"]): row for row in table.to_pylist()}
    for node, points in ((told.nodes[0].node, told.nodes[0].points), (None, told.mean)):
        for point in points[len(points) // 2 :]:  # the oldest may have left the server meanwhile
            row = rows[node, point.at_us]
            assert [row[each.name] for each in QUANTITIES] == point.values
            assert row["over_s"] == pytest.approx(point.over_us / 1e6)
    if "fstype nfs" not in Path("/proc/self/mountstats").read_text():
        assert set(table["nfs_opens"].to_pylist()) == {None}, "without NFS it is unknown, and not 0"
