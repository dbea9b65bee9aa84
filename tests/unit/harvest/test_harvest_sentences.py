"""Why work waits for nodes, in sentences made from what a poll showed."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.batch.kinds import shown_reason
from tidemill.batch.reasons import slurm_meaning
from tidemill.harvest.plan.sentences import (
    awaited_text,
    capacity_text,
    hindrances_text,
    merged_hindrances,
    sentence,
)
from tidemill.harvest.plan.waves import SENTENCES, Binding
from tidemill.harvest.snapshot.counting import count_nodes, held_nodes, with_away
from tidemill.model.figures.awaited import (
    Hindrance,
    NodeCounts,
    QueuedReason,
    queued_text,
    states_text,
    total,
)
from tidemill.model.machine import Node, NodeState, Running, Snapshot
from tidemill.wire.monitoring import AwaitedNodes


def node(name: str, state: NodeState, free: int = 0, cores: int = 8) -> Node:
    return Node(name=name, state=state, cores=cores, memory_mb=16_000, cores_free=free)


def job(*nodes: str, ours: bool) -> Running:
    return Running(
        id=nodes[0], name="j", user="u", nodes=nodes, width=len(nodes), started_s=0, ends_s=1e9, ours=ours
    )


def machine(*nodes: Node, ours: tuple[str, ...] = ()) -> Snapshot:
    running = [job(name, ours=True) for name in ours]
    return Snapshot(at_s=0, nodes=list(nodes), running=running, queued=[])


def counted(snapshot: Snapshot, *, idle_max: int | None = None) -> NodeCounts:
    return count_nodes(snapshot.nodes, held_nodes(snapshot), idle_max=idle_max)


SHARED, BUSY, AWAY, IDLE = NodeState.SHARED, NodeState.BUSY, NodeState.AWAY, NodeState.IDLE


@pytest.mark.parametrize(
    ("snapshot", "said"),
    [
        (
            machine(*[node(f"n{k}", SHARED, 3) for k in range(6)]),
            "waiting for a wholly idle node: 6 nodes have 3 of 8 cores free, and this version uses whole nodes",
        ),
        (
            machine(node("a", SHARED, 1), node("b", SHARED, 3), node("c", BUSY), node("d", AWAY)),
            "waiting for a wholly idle node: 2 nodes have 1 to 3 of 8 cores free, and this version uses whole nodes; "
            "1 is fully in use; 1 is down or drained",
        ),
        (
            machine(*[node(f"n{k}", BUSY) for k in range(6)]),
            "waiting for an idle node: all 6 nodes are fully in use",
        ),
        (machine(node("a", SHARED, 0)), "waiting for an idle node: the only node is fully in use"),
        (
            machine(node("a", BUSY), node("b", BUSY), node("c", AWAY)),
            "waiting for an idle node: of 3 nodes 2 are fully in use; 1 is down or drained",
        ),
        (
            machine(node("a", BUSY), node("b", BUSY), ours=("a",)),
            "waiting for an idle node: of 2 nodes 1 is fully in use; 1 is in use by Tidemill",
        ),
        (
            machine(node("a", BUSY), ours=("a",)),
            "waiting for an idle node: the only node is in use by Tidemill",
        ),
        (
            machine(node("a", NodeState.RESERVED), node("b", NodeState.SLEEPING)),
            "waiting for an idle node: of 2 nodes 2 are reserved, asleep or not free yet",
        ),
    ],
)
def test_work_that_waits_for_an_idle_node_says_what_the_nodes_are(snapshot: Snapshot, said: str) -> None:
    assert sentence("idle", counted(snapshot)) == said


def test_an_idle_node_that_is_kept_does_not_count_as_idle() -> None:
    counts = counted(machine(node("a", IDLE), node("b", IDLE)), idle_max=1)
    assert (counts.idle, counts.other) == (1, 1)


def test_nodes_that_are_down_belong_to_no_pool_and_are_said_all_the_same() -> None:
    counts = with_away(counted(machine(node("a", BUSY))), 2)
    assert sentence("idle", counts) == (
        "waiting for an idle node: of 3 nodes 1 is fully in use; 2 are down or drained"
    )


def test_the_same_cause_in_several_pools_is_one_sentence_over_all_their_nodes() -> None:
    plain = counted(machine(node("a", SHARED, 3), node("b", SHARED, 3)))
    gpus = counted(machine(node("g", SHARED, 5)))
    found = merged_hindrances([Hindrance(cause="idle", nodes=plain), Hindrance(cause="idle", nodes=gpus)])
    assert [each.nodes for each in found] == [total([plain, gpus])]
    assert "3 nodes have 3 to 5 of 8 cores free" in hindrances_text(found)


def test_work_with_gpus_waits_for_nodes_with_gpus() -> None:
    two = counted(machine(node("a", SHARED, 3), node("b", SHARED, 3)))
    equipped = msgspec.structs.replace(two, equipped=2, bare=3)
    assert sentence("idle", equipped) == (
        "waiting for a wholly idle node with GPUs: 2 nodes have 3 of 8 cores free, and this version uses whole nodes; "
        "3 nodes without GPUs are idle"
    )
    full = msgspec.structs.replace(counted(machine(node("a", BUSY), node("b", BUSY))), equipped=2, bare=1)
    assert sentence("idle", full) == (
        "waiting for an idle node with GPUs: all 2 nodes are fully in use; 1 node without GPUs is idle"
    )
    both = total([equipped, counted(machine(node("c", BUSY)))])
    assert "GPU" not in sentence("idle", both), "other work waits for any node"


def test_a_cause_that_says_nothing_is_left_out_beside_another_one() -> None:
    backlog = Hindrance(cause=Binding.BACKLOG.value)
    assert hindrances_text([backlog, Hindrance(cause="starts fail")]) == "starts fail"
    assert hindrances_text([backlog]) == SENTENCES[Binding.BACKLOG]


def test_every_cause_is_a_sentence_without_brackets() -> None:
    for binding in Binding:
        text = sentence(binding.value) if binding else SENTENCES[binding]
        assert " " in text, binding
        assert text.count("(") <= 1, "a setting may stand in brackets, nothing else"


def test_allocations_that_wait_beside_idle_nodes_are_said_with_their_number() -> None:
    idle = counted(machine(node("a", IDLE), node("b", IDLE)))
    assert (
        sentence("ours", idle)
        == "allocations of Tidemill that wait in the queue are meant for the 2 idle nodes"
    )


def test_all_nodes_of_a_pool_are_said_by_what_they_are() -> None:
    counts = counted(machine(node("a", IDLE), node("b", SHARED, 3), node("c", BUSY)))
    assert states_text(counts) == "3 nodes: 1 is idle; 1 node has 3 of 8 cores free; 1 is fully in use"


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        (
            "PartitionTimeLimit",
            "its time limit is above the limit of the partition: it cannot start as it is",
        ),
        ("Priority", "jobs of a higher priority are before it"),
        ("Resources", "it is next, and waits for nodes to become free"),
        ("QOSMaxCpuPerUserLimit", "the QOS has a limit of cores at once for each user, which is reached"),
        (
            "AssocGrpCPUMinutesLimit",
            "the account has a limit of core-minutes for all its users together, which is reached",
        ),
        (
            "AssocGrpCpuLimit",
            "the account has a limit of cores at once for all its users together, which is reached",
        ),
        ("QOSMaxJobsPerUserLimit", "the QOS has a limit of jobs at once for each user, which is reached"),
        (
            "QOSMaxWallDurationPerJobLimit",
            "it asks for more walltime than a job of the QOS may have: it cannot start as it is",
        ),
        ("QOSMaxGRESPerUser", "the QOS has a limit of GPUs and the like for each user, which is reached"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n[1-4]",
            "nodes that it could use are down, drained or reserved",
        ),
        (
            "Resources,JobHeldAdmin",
            "it is next, and waits for nodes to become free; an administrator of the cluster holds it",
        ),
        ("SomethingNew", ""),
    ],
)
def test_reasons_of_slurm_are_explained(reason: str, meaning: str) -> None:
    assert slurm_meaning(reason) == meaning


def test_the_comment_of_pbs_is_shown_without_its_first_words() -> None:
    comment = "Not Running: Insufficient amount of resource: ncpus"
    assert shown_reason("pbs", comment) == ("Insufficient amount of resource: ncpus", "")
    assert shown_reason("slurm", "Priority") == ("Priority", "jobs of a higher priority are before it")


def test_allocations_of_which_nothing_is_known_yet_are_counted() -> None:
    four = AwaitedNodes(asked_us=1_000_000, asked=4)
    assert (
        awaited_text(four, 29_000_000)
        == "4 allocations of Tidemill, asked for 28 s ago, have not reported yet"
    )
    known = AwaitedNodes(asked_us=1_000_000, asked=4, starting=1)
    assert "1 allocation of Tidemill, asked for 28 s ago, has started" in awaited_text(known, 29_000_000)


def test_reasons_of_several_allocations_are_counted() -> None:
    one, two = (QueuedReason(reason=word, allocations=n) for word, n in (("Priority", 2), ("Resources", 1)))
    assert queued_text([one]) == "`Priority`"
    assert queued_text([one, two]) == "2 of them `Priority`; 1 of them `Resources`"


def test_a_site_that_has_asked_for_nothing_yet_says_so() -> None:
    assert awaited_text(AwaitedNodes(), 0) == "no allocation was asked for yet"


def test_what_more_nodes_wait_for_does_not_read_as_if_all_work_waited() -> None:
    full = {"polled_us": 1, "hindrances": [{"cause": "idle", "nodes": {"nodes": 2, "full": 2}}]}
    said = "waiting for an idle node: all 2 nodes are fully in use"
    assert capacity_text({"awaits": full}, 1) == said
    assert capacity_text({"awaits": None, "more": full}, 1) == f"for more nodes: {said}"
    assert capacity_text({"more": {"next_us": 9_000_000}}, 1) == (
        "for more nodes: nothing is known to hold them back; the next poll is in 9 s at the latest"
    )
    assert capacity_text({"more": {"is_stopped": True, "why": "lunch"}}, 1) == "the site is stopped: lunch"
