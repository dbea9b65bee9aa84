"""The staircase of nodes that nobody needs, on machines small enough to check by eye."""

from __future__ import annotations

from typing import Any

import pytest
from tests.effort import lines_run

from tidemill.cli.site.windows import unseen
from tidemill.errors import ConfigError
from tidemill.harvest.snapshot.windows import UNLIMITED_S, Request, Step, windows
from tidemill.model.machine import Node, NodeState, Partition, Queued, Reservation, Running, Snapshot

NOW = 1_000_000.0
PLAIN = Request(partition="batch", guard_s=10)


def node(name: str, **fields: Any) -> Node:
    told = {
        "state": NodeState.IDLE,
        "cores": 64,
        "memory_mb": 1000,
        "cores_free": 64,
        "partitions": ("batch",),
    }
    return Node(name=name, **{**told, **fields})


def queued(number: int, **fields: Any) -> Queued:
    return Queued(**{"id": str(number), "name": "x", "user": "u", "width": 1, "walltime_s": 600, **fields})


def machine(*nodes: Node, **fields: Any) -> Snapshot:
    batch = Partition(name="batch", nodes=(), walltime_max_s=3600, is_default=True)
    return Snapshot(
        **{"at_s": NOW, "nodes": list(nodes), "running": [], "queued": [], "partitions": [batch], **fields}
    )


def stairs(snapshot: Snapshot, request: Request = PLAIN) -> list[tuple[int, float, str]]:
    return [(step.nodes, step.seconds, step.by) for step in windows(snapshot, request).steps]


def test_nodes_are_free_until_the_plan_the_reservation_or_the_limit() -> None:
    snapshot = machine(
        *(node(f"n{k}") for k in range(6)),
        queued=[queued(17, planned_s=NOW + 300, planned_nodes=("n0", "n1"))],
        reservations=[Reservation(name="maint", start_s=NOW + 1000, end_s=NOW + 9000, nodes=("n1", "n2"))],
    )
    assert windows(snapshot, PLAIN).steps == [
        Step(nodes=3, seconds=3590, until_s=NOW + 3600, by="time limit of batch"),
        Step(nodes=4, seconds=990, until_s=NOW + 1000, by="reservation maint"),
        Step(nodes=6, seconds=290, until_s=NOW + 300, by="job 17"),
    ]


def test_without_a_limit_a_window_is_a_year_long() -> None:
    snapshot = machine(node("n0"), partitions=[Partition(name="batch", nodes=())])
    assert stairs(snapshot) == [(1, UNLIMITED_S - 10, "")]


def test_nodes_that_take_no_job_are_not_free() -> None:
    states = [state for state in NodeState if state is not NodeState.IDLE]
    snapshot = machine(*(node(f"n{state}", state=state, cores_free=32) for state in states))

    assert stairs(snapshot) == []
    woken = Request(partition="batch", guard_s=10, wake_nodes=True)
    assert stairs(snapshot, woken) == [(1, 3590, "time limit of batch")]


def test_a_shared_node_counts_only_for_those_who_ask_for_cores() -> None:
    snapshot = machine(node("n0", state=NodeState.SHARED, cores_free=16), node("n1"))

    assert stairs(snapshot) == [(1, 3590, "time limit of batch")]
    assert stairs(snapshot, Request(partition="batch", cores=16, guard_s=10))[0][0] == 2
    assert stairs(snapshot, Request(partition="batch", cores=17, guard_s=10))[0][0] == 1


def test_a_job_planned_in_another_partition_takes_the_nodes_that_both_have() -> None:
    snapshot = machine(
        node("n0", partitions=("batch", "debug")),
        node("n1"),
        queued=[queued(5, partitions=("debug",), planned_s=NOW + 60, planned_nodes=("n0",))],
    )
    assert stairs(snapshot) == [(1, 3590, "time limit of batch"), (2, 50, "job 5")]


def test_only_nodes_with_the_wanted_features_count() -> None:
    snapshot = machine(node("n0", features=("big", "gpu")), node("n1", features=("big",)))
    request = Request(partition="batch", features=("big", "gpu"), guard_s=10)
    assert stairs(snapshot, request) == [(1, 3590, "time limit of batch")]


def test_a_planned_start_without_nodes_may_be_anywhere_that_the_job_can_run() -> None:
    snapshot = machine(
        node("n0", features=("big",)),
        node("n1"),
        queued=[
            queued(5, features=("big",), planned_s=NOW + 60),
            queued(6, features=("big",), planned_s=NOW + 99),
        ],
    )
    assert stairs(snapshot) == [(1, 3590, "time limit of batch"), (2, 50, "job 5")]


def test_a_node_promised_to_a_job_that_we_cannot_see_is_not_free() -> None:
    snapshot = machine(
        node("n0", word="PLANNED"), node("n1", word="plnd"), node("n2"), hidden=["others' jobs"]
    )
    found = windows(snapshot, PLAIN)

    assert [step.nodes for step in found.steps] == [1]
    assert (found.promised, found.idle, found.hidden) == (2, 3, ["others' jobs"])


def test_a_planned_node_is_free_until_the_plan_that_we_see() -> None:
    job = queued(5, planned_s=NOW + 60, planned_nodes=("n0",))
    assert stairs(machine(node("n0", word="IDLE+PLANNED"), queued=[job])) == [(1, 50, "job 5")]


def test_our_own_waiting_jobs_and_those_that_cannot_start_claim_nothing() -> None:
    ours = queued(5, ours=True, planned_s=NOW + 60, planned_nodes=("n0",))
    later = queued(6, eligible=False, planned_s=NOW + 70)  # `--begin` sets a start, too
    assert stairs(machine(node("n0"), queued=[ours, later])) == [(1, 3590, "time limit of batch")]


def test_where_no_plan_is_told_what_a_waiting_job_could_use_is_not_free() -> None:
    """PBS plans nothing by default: a job of two nodes takes the second one, ours or not, when another ends."""
    nodes = (node("n0"), node("n1", partitions=("batch", "wide")))
    wide = queued(7, width=2, partitions=("wide",))
    assert stairs(machine(*nodes, queued=[wide])) == [(1, 3590, "time limit of batch")]
    assert stairs(machine(*nodes, queued=[wide], plan_age_s=5.0)) == [(2, 3590, "time limit of batch")]
    held = queued(8, eligible=False)
    assert stairs(machine(*nodes, queued=[held])) == [(2, 3590, "time limit of batch")]
    planned = queued(9, planned_s=NOW + 600, planned_nodes=("n1",))
    assert stairs(machine(*nodes, queued=[planned])) == [
        (1, 3590, "time limit of batch"), (2, 590, "job 9"),
    ]  # fmt: skip


def test_where_others_are_hidden_and_no_plan_is_told_nothing_is_free() -> None:
    assert stairs(machine(node("n0"), are_others_hidden=True)) == []


def test_eligible_jobs_without_a_plan_are_told() -> None:
    snapshot = machine(
        node("n0"),
        queued=[
            queued(1),
            queued(2, planned_s=NOW + 60, planned_nodes=("n9",)),
            queued(3, eligible=False),
            queued(4, features=("gpu",)),
            queued(5, features=("gpu",), is_feature_list_exact=False),
        ],
        plan_age_s=45.0,
    )
    found = windows(snapshot, PLAIN)
    assert found.unplanned == ["1", "5"]
    assert found.plan_age_s == 45.0


def test_an_old_plan_is_told_only_while_jobs_wait_for_slurm_plans_none_for_an_empty_queue() -> None:
    late = queued(1, planned_s=NOW + 60, planned_nodes=("n9",))
    assert unseen(windows(machine(node("n0"), queued=[late], plan_age_s=1092.0), PLAIN)) == [
        "not seen: the scheduler's plan is 18 m 12 s old"
    ]
    assert unseen(windows(machine(node("n0"), plan_age_s=1092.0), PLAIN)) == []


def test_a_running_job_holds_its_nodes_whatever_their_state_says() -> None:
    late = Running(id="1", name="x", user="u", nodes=("n0",), width=1, started_s=NOW - 99, ends_s=NOW - 5)
    assert stairs(machine(node("n0"), running=[late])) == []


def test_the_reservation_in_which_we_run_is_ours_until_its_end() -> None:
    mine = Reservation(name="R17 mine", start_s=NOW - 10, end_s=NOW + 500, nodes=("n0",), usable=True)
    over = Reservation(name="old", start_s=NOW - 99, end_s=NOW - 1, nodes=("n0",))
    snapshot = machine(node("n0", state=NodeState.RESERVED), reservations=[mine, over])
    for name in ("R17", "mine", "R17 mine"):
        request = Request(partition="batch", reservation=name, guard_s=10)
        assert stairs(snapshot, request) == [(1, 490, "reservation R17 mine")]
    assert stairs(snapshot) == []


def test_windows_shorter_than_the_guard_are_none() -> None:
    job = queued(5, planned_s=NOW + 10, planned_nodes=("n0",))
    assert stairs(machine(node("n0"), queued=[job])) == []


def test_a_partition_that_is_down_has_no_windows() -> None:
    snapshot = machine(node("n0"), partitions=[Partition(name="batch", nodes=(), is_up=False)])
    assert stairs(snapshot) == []


def test_excluded_nodes_are_not_offered() -> None:
    snapshot = machine(node("n0"), node("n1"))
    assert stairs(snapshot, Request(partition="batch", exclude=frozenset({"n1"}), guard_s=10))[0][0] == 1


def test_without_a_name_it_is_the_default_partition() -> None:
    snapshot = machine(
        node("n0"),
        node("n1", partitions=("debug",)),
        partitions=[Partition(name="debug", nodes=()), Partition(name="batch", nodes=(), is_default=True)],
    )
    found = windows(snapshot, Request(guard_s=10))
    assert (found.partition, found.nodes) == ("batch", 1)


def test_an_unknown_partition_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        windows(machine(node("n0")), Request(partition="bach"))
    assert caught.value.hint == "did you mean `batch`?"


def test_jobs_that_name_a_host_each_end_the_windows_of_these_with_work_in_proportion_to_them() -> None:
    def work(count: int) -> int:
        nodes = [node(f"n{k}", features=(f"host=n{k}",)) for k in range(count)]
        jobs = [queued(k, features=(f"host=n{k}",)) for k in range(1, count)]
        snapshot = machine(*nodes, queued=jobs)
        assert stairs(snapshot) == [(1, 3590, "time limit of batch")]
        assert windows(snapshot, PLAIN).unplanned == [str(k) for k in range(1, count)]
        return lines_run(lambda: windows(snapshot, PLAIN))

    assert work(400) < 2.5 * work(200)
