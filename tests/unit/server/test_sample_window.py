"""The server's window of samples: bounded, by arrival, and clean whatever a site sends."""

from __future__ import annotations

import math

import msgspec

from tidemill.model.metrics.nodes import PLACES, QUANTITIES
from tidemill.server.monitoring.window import SERIES_MAX, SampleWindow
from tidemill.wire.monitoring import NODES_SHOWN_MAX, AllocationSamples, MountUse, NodePoint, NodeSeries


def point(at_s: float, value: float | None = 0.5) -> NodePoint:
    return NodePoint(int(at_s * 1e6), 1_000_000, [value])


def sent(
    allocation: str = "a",
    nodes: dict[str, list[NodePoint]] | None = None,
    mean: list[NodePoint] | None = None,
) -> AllocationSamples:
    series = [NodeSeries(node=name, points=points, cores="09") for name, points in (nodes or {}).items()]
    return AllocationSamples(allocation=allocation, nodes_total=3, nodes=series, mean=mean or [])


def test_a_reply_has_what_came_since_the_last_one_in_the_order_of_time() -> None:
    held = SampleWindow()
    held.add("s", [sent(nodes={"n2": [point(2), point(1)], "n1": [point(1)]}, mean=[point(1)])])
    first = held.reply("s", "a")
    assert [each.node for each in first.nodes] == ["n1", "n2"]
    assert [each.at_us for each in first.nodes[1].points] == [1_000_000, 2_000_000]
    assert (first.nodes_total, len(first.mean), first.nodes[0].cores) == (3, 1, "09")
    assert len(first.quantities) == len(first.units) == len(QUANTITIES)
    assert held.reply("s", "a", since=first.until).nodes == []
    held.add("s", [sent(nodes={"n1": [point(0.5)]})])  # it was measured before, and came later
    second = held.reply("s", "a", since=first.until)
    assert [(each.node, len(each.points)) for each in second.nodes] == [("n1", 1)]
    assert second.until > first.until


def test_an_allocation_of_another_site_with_the_same_name_is_another_one() -> None:
    held = SampleWindow()
    held.add("s", [sent(nodes={"n1": [point(1)]})])
    assert held.reply("t", "a").nodes == []
    assert held.has("s") == {"a"}
    assert held.has("t") == set()


def test_a_node_keeps_its_last_samples_and_an_allocation_its_first_nodes() -> None:
    held = SampleWindow()
    for at in range(SERIES_MAX + 10):
        held.add("s", [sent(nodes={"n": [point(at)]})])
    held.add("s", [sent(nodes={f"m{k:03}": [point(1)] for k in range(100)}, mean=[point(1)])])
    found = held.reply("s", "a")
    assert len(found.nodes) == NODES_SHOWN_MAX
    (node,) = [each for each in found.nodes if each.node == "n"]
    assert (len(node.points), node.points[0].at_us) == (SERIES_MAX, 10_000_000)


def test_too_much_in_all_takes_the_place_of_what_was_heard_of_longest_ago() -> None:
    held = SampleWindow(points_max=6)
    for name in ("a", "b", "a", "c"):
        held.add("s", [sent(name, {"n": [point(1)]}, [point(1)])])
    assert held.has("s") == {"a", "c"}
    few = SampleWindow(allocations_max=1)
    for name in ("a", "b"):
        few.add("s", [sent(name, {"n": [point(1)]})])
    assert few.has("s") == {"b"}
    assert few._points == 1


def test_what_a_site_of_an_older_version_does_not_send_is_unknown() -> None:
    older = b"""[{"allocation": "a", "nodes_total": 1, "mean": [], "nodes": [{"node": "n", "cores": "",
        "points": [[1000000, 1000000, [0.5, 0.0]]], "mounts": [["/sw", 210.0, 0.0, 4e6, 0.0, 0.0007]]}]}]"""
    held = SampleWindow()
    held.add("s", msgspec.json.decode(older, type=list[AllocationSamples]))
    ((mount,),) = [each.mounts for each in held.reply("s", "a").nodes]
    assert (mount.ops_per_s, mount.rtt_s, mount.opens_per_s, mount.closes_per_s) == (210, 0.0007, None, None)


def test_a_site_of_a_later_version_may_say_more_of_a_mount() -> None:
    later = (
        b'[{"allocation": "a", "nodes_total": 1, "nodes": [{"node": "n", "points": [[1, 1, []]], "mounts": [["/sw", '
        b"1.0, 0.0, 2.0, 0.0, null, 6.0, 1.5, 99.0]]}]}]"
    )
    held = SampleWindow()
    held.add("s", msgspec.json.decode(later, type=list[AllocationSamples]))
    ((mount,),) = [each.mounts for each in held.reply("s", "a").nodes]
    assert (mount.opens_per_s, mount.closes_per_s) == (6, 1.5)


def test_what_no_agent_sends_is_left_out() -> None:
    held = SampleWindow()
    values: list[float | None] = [math.nan, -1.0, math.inf, 0.123456789, None]
    points = [
        NodePoint(1, 1, values),
        NodePoint(-1, 1, []),
        NodePoint(1, 0, []),
        NodePoint(1, 1, [1.0] * 999),
    ]
    wrong = NodeSeries(
        node="n", points=points, cores="<script>", mounts=[MountUse("/x", math.nan, 1, 2, 3, None)] * 99
    )
    held.add("s", [
        AllocationSamples(allocation="a", nodes_total=-5, nodes=[wrong, NodeSeries(node="x\n", points=[point(1)])]),
        AllocationSamples(allocation="b" * 300, nodes_total=1), AllocationSamples(allocation="", nodes_total=1),
    ])  # fmt: skip
    (node,) = held.reply("s", "a").nodes
    assert (node.node, node.cores, len(node.mounts), node.mounts[0].ops_per_s) == ("n", "", 8, None)
    assert [len(each.values) for each in node.points] == [5, len(QUANTITIES)]
    assert node.points[0].values == [None, None, None, 0.1235, None]
    assert held.has("s") == {"a"}
    assert PLACES["cpu_user"] == 0
