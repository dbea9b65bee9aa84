"""Jobs that wait for Tidemill and that no plan of a single pool yields to."""

from __future__ import annotations

from typing import Any

from tidemill.harvest.plan.ours import Held
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Decision, Limits, Situation
from tidemill.harvest.snapshot.neighbours import also_waiting
from tidemill.harvest.snapshot.pools import Terms, cut, decide_each
from tidemill.model.machine import Node, NodeState, Partition, Queued, Running, Snapshot

NOW = 1_000_000.0


def node(name: str, *, idle: bool = False, cores: int = 8) -> Node:
    state = NodeState.IDLE if idle else NodeState.BUSY
    devices = (("gpu", 2),) if name.startswith("g") else ()
    return Node(
        name=name, state=state, cores=cores, memory_mb=16000, cores_free=cores if idle else 0, partitions=("short",),
        devices=devices,
    )  # fmt: skip


def job(name: str, cores: int = 5, **fields: Any) -> Queued:
    plain: dict[str, Any] = {"width": 1, "walltime_s": 600.0, "submitted_s": NOW - 5, "whole": False}
    return Queued(id=name, name="x", user="bob", cores=cores, partitions=("short",), **{**plain, **fields})


def ours(name: str) -> tuple[Running, Held]:
    allocation, began_s, ends_s = f"a-{name}", NOW - 60, NOW + 3000
    runs = Running(
        id=name, name=allocation, user="ada", nodes=(name,), width=1, started_s=began_s, ends_s=ends_s, ours=True
    )  # fmt: skip
    return runs, Held(name=allocation, width=1, is_waiting=False, started_s=began_s, ends_s=ends_s)


def decisions(situation: Situation) -> Decision:
    return decide(situation, Policy.YIELD)


def behind(nodes: list[Node], holds: list[str], *queue: Queued) -> tuple[set[str], set[str]]:
    """The jobs that plans yield to, and those that wait for Tidemill besides."""
    pairs = [ours(name) for name in holds]
    short = Partition(name="short", nodes=(), is_default=True, is_shared=True)
    seen = Snapshot(
        at_s=NOW, nodes=nodes, running=[runs for runs, _ in pairs], queued=list(queue), partitions=[short]
    )
    pools = cut(
        seen,
        [held for _, held in pairs],
        Terms(partition="short"),
        backlog=Backlog(node_s=1e6, nodes_max=10, event_s=10),
        limits=Limits(nodes_max=10, allocations_max=10),
    )
    decided = decide_each(pools, decisions)
    also = also_waiting(decided, seen.queued, decisions)
    told = {name for _, decision in decided for name in decision.yields_to}
    return told, {name for names in also.values() for name in names}


def test_where_jobs_wait_for_two_pools_each_job_waits_for_one_node() -> None:
    """Tidemill holds three plain nodes and one with GPUs; without it four jobs of 5 cores would run."""
    nodes = [node("n1"), node("n2"), node("n3"), node("g1")]
    queue = [job(str(k)) for k in range(6)]
    told, more = behind(nodes, ["n1", "n2", "n3", "g1"], *queue)
    assert told == {"0", "1", "2"}
    assert more == {"3"}


def test_a_job_that_an_idle_node_is_enough_for_needs_no_other() -> None:
    nodes = [node("n1"), node("n2"), node("n3"), node("g1", idle=True)]
    told, more = behind(nodes, ["n1", "n2", "n3"], *(job(str(k)) for k in range(6)))
    assert told | more == {"0", "1", "2", "3"}
    assert more == {"3"}, "0 runs on g1"


def test_jobs_that_would_share_a_node_wait_for_it_together() -> None:
    told, more = behind([node("n1")], ["n1"], *(job(str(k), 3) for k in range(4)))
    assert told == {"0"}
    assert more == {"1"}, "3 of 8 cores: two fit"
    assert behind([node("n1")], ["n1"], job("0", 3, whole=True), job("1", 3))[1] == set()
    assert behind(
        [node("n1")], ["n1"], job("0", 3, memory_mb_per_node=9000), job("1", 3, memory_mb_per_node=9000)
    ) == (
        {"0"},
        set(),
    )


def test_what_fits_beside_a_job_on_an_idle_node_does_not_wait_for_tidemill() -> None:
    nodes = [node("n1"), node("n2", idle=True)]
    told, more = behind(nodes, ["n1"], job("0", 5), job("1", 5), job("2", 3), job("3", 3))
    assert told == {"1"}
    assert more == {"3"}, "2 runs beside 0"


def test_behind_a_job_that_waits_only_what_ends_with_its_host_may_start() -> None:
    queue = [job("0", 5), job("wide", 16, width=2), job("1", 3), job("2", 3, walltime_s=7200.0)]
    assert behind([node("n1"), node("n2")], ["n1"], *queue[:1], *queue[2:])[1] == {"1"}
    told, more = behind(
        [node("n1")], ["n1"], job("0", 5), job("6", 6), job("2", 3, walltime_s=7200.0), job("1", 3)
    )
    assert (told, more) == ({"0"}, {"1"})


def test_where_no_plan_yields_nothing_is_asked() -> None:
    assert behind([node("n1", idle=True)], [], job("0"), job("1")) == (set(), set())
