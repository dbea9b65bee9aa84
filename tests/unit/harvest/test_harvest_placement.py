"""What is given back is what the scheduler would have taken."""

from __future__ import annotations

from tidemill.harvest.plan.ours import Held
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Limits, Waiting
from tidemill.harvest.snapshot.backfill import NodesRelease
from tidemill.harvest.snapshot.placement import Homes, Layout, layout_of
from tidemill.harvest.snapshot.pools import Terms, cut, decide_each
from tidemill.model.machine import Node, NodeState, Queued, Running, Snapshot


def layout(ours: dict[str, int], idle: set[int], *queue: Waiting) -> Layout:
    others = [NodesRelease(500.0, frozenset(range(8)) - idle - set(ours.values()))]
    held = {name: NodesRelease(450.0, frozenset({place})) for name, place in ours.items()}
    places = {f"n{place}": place for place in range(8)}
    return Layout(0.0, places, frozenset(idle), held, others, [*queue])


OURS = {"a": 1, "b": 2, "c": 5, "d": 6}


def test_ours_on_those_nodes_go_and_the_next_job_gets_others() -> None:
    two, again, three = Waiting("1", 2, 60.0), Waiting("2", 2, 60.0), Waiting("3", 3, 60.0)
    assert layout(OURS, {0}, two).homes({"1"}) == Homes({"1": ["c", "d"]}, {})
    assert layout(OURS, {0}, two, again).homes({"1", "2"}).now == {"1": ["c", "d"], "2": ["a"]}
    assert layout(OURS, {0}, three).homes({"3"}).now == {"3": ["a", "b"]}


def test_beside_a_planned_job_are_the_nodes_that_it_does_not_need() -> None:
    wide, one = Waiting("wide", 6, 60.0), Waiting("one", 1, 900.0)
    here = layout(OURS, {0}, wide, one)
    homes = here.homes({"one"})
    assert homes == Homes({"one": ["d"]}, {"a": 500.0, "b": 500.0, "c": 500.0})
    assert here.late({"one"}, ["a"], {}) == ["one"]  # planned for the wide one at once
    assert here.late({"one"}, ["d"], {}) == []


def test_where_counts_see_a_start_and_the_plan_sees_none_counts_are_believed() -> None:
    wide, one = Waiting("wide", 8, 60.0), Waiting("one", 1, 900.0)  # the wide one needs all nodes
    here = layout(OURS, {0}, wide, one)
    assert here.homes({"one"}).now == {"one": ["c"]}
    assert here.late({"one"}, ["c"], {}) == ["one"]


def test_the_jobs_of_a_pool_are_placed_on_its_nodes_only() -> None:
    nodes = [
        Node(name=name, cores=64, memory_mb=1000, cores_free=0, state=NodeState.BUSY, features=features)
        for name, features in {"c0": (), "c1": (), "g0": ("gpu",), "g1": ("gpu",), "g2": ("gpu",)}.items()
    ]
    snapshot = Snapshot(
        at_s=10,
        nodes=nodes,
        running=[
            Running(
                id=node.name, name=node.name, user="us", nodes=(node.name,), width=1, started_s=0, ends_s=9e3, ours=True
            )
            for node in nodes
        ],
        queued=[Queued(id="7", name="j", user="them", width=2, walltime_s=60, features=("gpu",))],
    )  # fmt: skip
    held = [Held(name=node.name, width=1, is_waiting=False) for node in nodes]
    limits = Limits(nodes_max=9, allocations_max=9)
    backlog = Backlog(node_s=1e18, nodes_max=9, event_s=1.0)
    pools = cut(snapshot, held, Terms(), backlog=backlog, limits=limits)
    found = {
        pool.features: layout_of(snapshot, pool).homes({*decision.ready, *decision.yields_to})
        for pool, decision in decide_each(pools, lambda situation: decide(situation, Policy.YIELD))
    }
    assert found == {(): Homes({}, {}), ("gpu",): Homes({"7": ["g0", "g1"]}, {})}
