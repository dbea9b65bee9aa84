"""Samples on their way through an agent: bounded while the server is away, with means over all nodes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.node.test_node_monitor import line, sampled

from tidemill.model.metrics import wrong
from tidemill.model.metrics.nodes import PLACES
from tidemill.model.state import AllocationState
from tidemill.site.state import site_state
from tidemill.site.watch import node_samples
from tidemill.site.watch.node_samples import Means, NodeSamples, UnsentSamples
from tidemill.wire.monitoring import NODES_SHOWN_MAX, VIEW_SAMPLES_MAX, NodePoint
from tidemill.wire.node import Sampled

S = 1_000_000
CPU = PLACES["cpu_user"]


def values(cpu: float | None) -> list[float | None]:
    return [cpu if place == CPU else None for place in range(len(PLACES))]


def test_a_mean_is_told_an_interval_after_its_own_and_what_comes_later_is_not_in_it() -> None:
    means = Means(10 * S)
    for at, cpu in ((1, 0.2), (9, 0.4), (12, 1.0), (5, None)):
        means.add(at * S, values(cpu), now_us=12 * S)
    assert list(means.complete(19 * S)) == []
    (first,) = means.complete(20 * S)
    assert (first.at_us, first.over_us, first.values[CPU]) == (10 * S, 10 * S, 0.3)
    assert first.values[0 if CPU else 1] is None
    means.add(3 * S, values(0.9), now_us=20 * S)
    (second,) = means.complete(30 * S)
    assert (second.at_us, second.values[CPU]) == (20 * S, 1.0)


def test_a_nodes_clock_that_is_far_off_counts_in_no_mean_and_one_of_ours_that_was_set_back_stops_none() -> (
    None
):
    means = Means(S)
    for at in range(1000):
        means.add(at * S, values(1.0), now_us=500 * S)
    found = list(means.complete(10**15))
    assert len(found) == node_samples.BINS_MAX
    means.add(900 * S, values(0.5), now_us=900 * S)
    assert len(list(means.complete(902 * S))) == 1
    means.add(10 * S, values(0.7), now_us=10 * S)
    (again,) = means.complete(12 * S)
    assert again.values[CPU] == 0.7


def test_what_the_server_did_not_answer_is_sent_again_and_the_oldest_goes_first() -> None:
    backlog = UnsentSamples()
    for at in range(3):
        backlog.add("a", "n", NodePoint(at, 1, []), sampled())
    backlog.add("a", "", NodePoint(7, 1, []))
    (first,) = backlog.next_samples({"a": 5})
    assert ([each.at_us for each in first.nodes[0].points], len(first.mean), first.nodes_total) == (
        [0, 1, 2],
        1,
        5,
    )
    backlog.add("b", "n", NodePoint(9, 1, []), sampled())
    assert [each.allocation for each in backlog.next_samples({})] == ["a", "b"]
    backlog.received()
    assert backlog.next_samples({}) == []
    for at in range(node_samples.SAMPLES_MAX + 5):
        backlog.add("a", "n", NodePoint(at, 1, []), sampled())
    (found,) = backlog.next_samples({})
    assert len(found.nodes[0].points) == VIEW_SAMPLES_MAX
    assert found.nodes[0].points[0].at_us == 5  # five were too many
    for at in range(10):
        backlog.add("a", "n", NodePoint(at, 1, []), sampled())  # they push out what is on its way
    backlog.received()
    (found,) = backlog.next_samples({})
    assert found.nodes[0].points[0].at_us == 5 + VIEW_SAMPLES_MAX


@pytest.fixture
def state() -> site_state.SiteState:
    fleet = site_state.SiteFleet(name="e1-1", epoch=1, created_us=1)
    running = site_state.Allocation(
        name="a", fleet="e1-1", nodes=5, cores=5, state=AllocationState.ACTIVE, intended_us=1
    )
    return site_state.SiteState(site="here", fleets={"e1-1": fleet}, allocations={"a": running})


def write(directory: Path, *found: Sampled) -> None:
    monitor = directory / "e1-1" / "monitor"
    monitor.mkdir(parents=True, exist_ok=True)
    with (monitor / "lead-1.1.log").open("ab") as log:
        for each in found:
            log.write(line(each))


class Clock:
    """An agent's step at a time, which is moved by hand."""

    def __init__(self) -> None:
        self.s = 1000.0

    def step(self, it: NodeSamples) -> None:
        it.step(now_s=self.s, now_us=int(self.s * 1e6))


@pytest.fixture
def now() -> Clock:
    return Clock()


def of(node: str, at_s: float, cpu: float, *, allocation: str = "a") -> Sampled:
    found = sampled(node, pilot=f"{allocation}.r0.i1", cores=1, user_ms=int(cpu * 10_000))
    return msgspec.structs.replace(found, at_us=int(at_s * 1e6))


def test_nodes_of_running_allocations_are_shown_up_to_a_bound_and_all_count_in_the_mean(
    tmp_path: Path, state: site_state.SiteState, now: Clock
) -> None:
    it = NodeSamples(tmp_path, 10.0, lambda: state)
    write(
        tmp_path,
        *(of(f"n{k:02}", 1001, k % 5 / 5) for k in range(100)),
        of("forged", 1001, 1.0, allocation="b"),
    )
    now.step(it)
    (found,) = it.next_samples()
    assert (found.allocation, found.nodes_total) == ("a", 100)
    assert [each.node for each in found.nodes] == [f"n{k:02}" for k in range(NODES_SHOWN_MAX)]
    assert found.mean == []
    metrics = list(it.samples())
    assert wrong(metrics) == []
    told = {(each.name, each.labels): each.value for each in metrics}
    assert told["tidemill_node_sampled_nodes", ()] == 100
    assert told["tidemill_node_cpu_ratio", (("mode", "user"),)] == pytest.approx(0.4)
    it.unsent.received()
    now.s = 1020.0
    now.step(it)
    ((mean,),) = [each.mean for each in it.next_samples()]
    assert (mean.at_us, mean.values[CPU]) == (1010 * S, 0.4)


def test_nodes_that_are_silent_leave_the_metrics_and_an_allocation_that_ended_the_memory(
    tmp_path: Path, state: site_state.SiteState, now: Clock
) -> None:
    it = NodeSamples(tmp_path, 10.0, lambda: state)
    write(tmp_path, of("n0", 1001, 0.5))
    now.step(it)
    now.s += 31
    now.step(it)
    assert {each.name: each.value for each in it.samples()}["tidemill_node_sampled_nodes"] == 0
    assert it._means
    state.allocations["a"].state = AllocationState.COMPLETED
    now.step(it)
    now.s += 31
    now.step(it)
    assert (it._means, it._latest, it._shown, it._shown_total) == ({}, {}, {}, 0)


def test_a_site_that_does_not_want_it_reads_and_counts_nothing(
    tmp_path: Path, state: site_state.SiteState, now: Clock
) -> None:
    write(tmp_path, of("n0", 1001, 0.5))
    it = NodeSamples(tmp_path, 0.0, lambda: state)
    now.step(it)
    assert it.next_samples() == []
    assert list(it.samples()) == []


def test_a_monitor_that_cannot_be_read_is_a_warning_and_no_more(
    tmp_path: Path, state: site_state.SiteState, now: Clock
) -> None:
    (tmp_path / "e1-1").mkdir()
    (tmp_path / "e1-1" / "monitor").write_text("a file")
    it = NodeSamples(tmp_path, 10.0, lambda: state)
    now.step(it)
    assert it.next_samples() == []
