"""Samples of nodes from a real pilot to the API, the page and the metrics; and what they cost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from tests.worlds.home.metrics_text import of_site
from tests.worlds.home.world import World, world

from tidemill.model.job import JobSpec
from tidemill.model.metrics import wrong
from tidemill.model.metrics.nodes import PLACES
from tidemill.node.binary import find_binary
from tidemill.wire.monitoring import SampleReply

SPIN = "import time; until = time.monotonic() + 6\nwhile time.monotonic() < until: pass"


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    """A site that measures often, and whose node has begun to compute."""
    with world(nodes=1, cores=2, timing={"site": {"MONITOR_INTERVAL_S": 0.5}}) as running:
        running.submit("busy", *[JobSpec(command=["/usr/bin/env", "python3", "-c", SPIN])] * 2)
        running.wait_for(lambda: (found := reply(running)) is not None and found.nodes, "samples")
        # of a node that has nothing to do for long the pilot leaves, and there are no more samples
        running.submit("kept", JobSpec(command=["/bin/sleep", "600"]))
        yield running


def reply(it: World) -> SampleReply | None:
    rows = it.client.allocations()
    return it.client.node_samples(rows[0].name) if rows else None


def test_a_busy_payload_is_seen_as_busy_and_its_allocations_samples_reach_the_api(it: World) -> None:
    found: list[SampleReply] = []

    def is_there() -> bool:
        each = reply(it)
        if each is not None and len(each.mean) >= 4:
            found.append(each)
        return bool(found)

    it.wait_for(is_there, "samples and means")
    (node,) = found[0].nodes
    assert (found[0].site, found[0].nodes_total) == ("here", 1)
    cpu = [sum(point.values[PLACES[name]] or 0 for name in ("cpu_user", "cpu_nice")) for point in node.points]
    assert max(cpu) > 0.4, cpu
    last = node.points[-1]
    assert 400_000 < last.over_us < 5_000_000
    for name in ("cores", "load1", "running", "memory", "memory_used", "network_in", "packets_out"):
        assert last.values[PLACES[name]] is not None, name
    assert len(node.cores) == last.values[PLACES["cores"]]
    assert [point.at_us for point in node.points] == sorted(point.at_us for point in node.points)
    it.wait_campaign("busy")


def test_the_next_reply_has_what_came_since(it: World) -> None:
    name = it.client.allocations()[0].name
    first = it.client.node_samples(name)
    it.wait_for(lambda: it.client.node_samples(name, since=first.until).nodes, "another sample")
    seen = {point.at_us for point in first.nodes[0].points}
    later = [point.at_us for point in it.client.node_samples(name, since=first.until).nodes[0].points]
    assert seen.isdisjoint(later)


def test_the_means_are_in_the_agents_metrics_and_samples_not_in_any_log(it: World) -> None:
    path = it.home / "site" / "metrics.prom"
    it.wait_for(lambda: "tidemill_node_cpu_ratio" in path.read_text(), "the metrics have nodes")
    samples = of_site(path.read_text(), "here")
    assert wrong(samples) == []
    cpu = {
        dict(each.labels)["mode"]: each.value for each in samples if each.name == "tidemill_node_cpu_ratio"
    }
    assert 0.9 < sum(cpu.values()) < 1.1
    for log in [*(it.home / "site" / "log").iterdir(), *it.home.glob("site/fleets/*/journal/*")]:
        assert b"over_us" not in log.read_bytes().replace(b'"numbers":{"over_us"', b""), log


def test_a_sample_costs_far_less_than_a_hundredth_of_a_core() -> None:
    command = [str(find_binary()), "monitor", "--rounds", "100", "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    assert told["interval_s"] == 30
    assert 0 < told["monitor_core_share"] < 0.01
    assert told["bytes"] < 600
    assert told["figures"]["cores"] == len(told["cores"]) or told["figures"]["cores"] > 128
