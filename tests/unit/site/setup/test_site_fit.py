"""What `site init` and `site check` say about a cluster before anything runs there."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.batch.contract import Facts, PartitionFacts
from tidemill.batch.slurm.node_time import NodeTime
from tidemill.model.machine import Node, NodeState
from tidemill.site.setup.finding import Finding
from tidemill.site.setup.fit import fit_findings, members, nodes_now

SHORT = PartitionFacts(name="short", nodes=6, cores_per_node=8, is_shared=True, sharing="OverSubscribe=NO")
SETTINGS = {"SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CORE_MEMORY"}


def node(number: int, state: NodeState, free: int = 0, *, gpus: int = 0, partition: str = "short") -> Node:
    return Node(
        name=f"n{number}",
        state=state,
        cores=8,
        memory_mb=16_000,
        cores_free=free,
        partitions=(partition,),
        devices=(("gpu", gpus),) if gpus else (),
    )


def mixed(*free: int) -> list[Node]:
    return [node(k, NodeState.SHARED, each) for k, each in enumerate(free)]


def day(idle: float, *, hours: int = 24, nodes: int = 6) -> NodeTime:
    return NodeTime(since_s=0, until_s=hours * 3600, nodes=nodes, idle=idle, part=0.0)


def told(
    nodes: list[Node], past: NodeTime | None, why: str = "", *, partition: PartitionFacts = SHORT
) -> Finding:
    facts = Facts(system="Slurm", nodes=nodes, partitions=[partition], scheduler=SETTINGS)
    return fit_findings(facts, partition, past, why)[0]


def test_a_cluster_of_shared_nodes_is_said_in_three_lines() -> None:
    finding = told(mixed(3, 3, 3, 3, 3, 3), day(0.12))
    assert finding.found.splitlines() == [
        "This version of Tidemill uses whole nodes; jobs of `short` share nodes (OverSubscribe=NO, select/cons_tres, "
        "CR_CORE_MEMORY).",
        "Now 0 of 6 nodes are wholly idle; over the last day 12 % of node time was.",
        "6 nodes have cores free that it cannot use (3 of 8 cores each). Work waits until a node is wholly idle: "
        "on average 0.72 of them were.",
    ]
    assert finding.state == "ok"


@pytest.mark.parametrize(
    ("nodes", "past", "state", "rest"),
    [
        (mixed(3, 1), day(0.001), "warn", "Expect long waits; a job array can use the free cores now."),
        (mixed(3, 1), None, "warn", "Work waits until a node is wholly idle."),
        ([node(0, NodeState.BUSY)], day(0.0), "warn", "Expect long waits."),
        ([node(0, NodeState.IDLE, 8), *mixed(1)], None, "ok", "Work can start now."),
        ([node(0, NodeState.IDLE, 8)], day(0.001), "ok", "Work can start now."),
        ([node(0, NodeState.BUSY)], day(0.4, nodes=100), "ok", "on average 40 of them were."),
    ],
)
def test_what_follows_depends_on_what_is_idle_and_was(
    nodes: list[Node], past: NodeTime | None, state: str, rest: str
) -> None:
    finding = told(nodes, past)
    assert finding.found.splitlines()[-1].endswith(rest)
    assert finding.state == state


def test_without_accounting_only_the_present_is_claimed() -> None:
    finding = told(mixed(2, 5), None, "there is no accounting to ask")
    assert "only the present is known: there is no accounting to ask." in finding.found
    assert "(2 to 5 of 8 cores each)" in finding.found
    assert "last day" not in finding.found


def test_a_shorter_past_is_called_so_and_a_small_share_is_not_none() -> None:
    assert "over the last hour 50 % of" in told(mixed(1), day(0.5, hours=1)).found
    assert "over the last 6 hours less than 1 % of" in told(mixed(1), day(0.004, hours=6)).found
    assert "over the last day 0 % of" in told(mixed(1), day(0.0)).found


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (
            msgspec.structs.replace(SHORT, is_shared=False, sharing="OverSubscribe=EXCLUSIVE"),
            "uses whole nodes, as all jobs of `short` do (OverSubscribe=EXCLUSIVE, ",
        ),
        (
            msgspec.structs.replace(SHORT, sharing="OverSubscribe=FORCE:4"),
            "jobs of `short` cannot keep others off their nodes (OverSubscribe=FORCE:4",
        ),
        (msgspec.structs.replace(SHORT, sharing=""), "jobs of `short` share nodes (select/cons_tres"),
    ],
)
def test_how_the_partition_hands_out_nodes_is_quoted(partition: PartitionFacts, words: str) -> None:
    assert words in told(mixed(1), None, partition=partition).found


def test_nodes_that_are_down_or_of_other_partitions_do_not_count() -> None:
    nodes = [
        node(0, NodeState.IDLE, 8),
        node(1, NodeState.AWAY),
        node(2, NodeState.IDLE, 8, partition="long"),
        node(3, NodeState.SHARED, 0),
        node(4, NodeState.SLEEPING),
    ]
    now = nodes_now(members(nodes, "short"))
    assert (now.working, now.idle, now.part) == (3, 1, 0)
    assert "Now 1 of 3 nodes is wholly idle" in told(nodes, None).found


def test_some_nodes_with_gpus_are_said_and_all_or_none_are_not() -> None:
    facts = Facts(system="Slurm", partitions=[SHORT])

    def findings(*nodes: Node) -> list[Finding]:
        return fit_findings(msgspec.structs.replace(facts, nodes=list(nodes)), SHORT, None)

    some = findings(
        node(0, NodeState.IDLE, 8), node(1, NodeState.IDLE, 8, gpus=2), node(2, NodeState.BUSY, gpus=2)
    )
    assert [each.found for each in some if each.check == "GPU nodes"] == [
        "2 of 3 nodes have GPUs, 1 of them wholly idle"
    ]
    assert len(findings(node(1, NodeState.IDLE, 8, gpus=2))) == 1
    assert len(findings(node(1, NodeState.IDLE, 8))) == 1


def test_a_partition_without_working_nodes_promises_nothing() -> None:
    facts = Facts(system="Slurm", partitions=[SHORT], nodes=[node(0, NodeState.AWAY)])
    assert fit_findings(facts, SHORT, None) == []
