"""A machine cut into pools: what is idle, whose the rest is and until when, which jobs count where."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.effort import lines_run

from tidemill.harvest.plan.ours import Held, Holding
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import (
    Backlog,
    Busy,
    Decision,
    Limits,
    Outage,
    Situation,
    Submit,
    Waiting,
)
from tidemill.harvest.plan.waves import Binding
from tidemill.harvest.snapshot.occupancy import FAR_S
from tidemill.harvest.snapshot.pools import Pool, Terms, cut, decide_each
from tidemill.model.machine import Node, NodeState, Partition, Queued, Reservation, Running, Snapshot

NOW = 1_000_000.0
BACKLOG = Backlog(node_s=1e6, nodes_max=100, event_s=300)
LIMITS = Limits(nodes_max=50, allocations_max=40, width_max=8)
TERMS = Terms(partition="batch", end_slack_s=30)


def node(name: str, **fields: Any) -> Node:
    told = {
        "state": NodeState.IDLE,
        "cores": 64,
        "memory_mb": 1000,
        "cores_free": 64,
        "partitions": ("batch",),
    }
    return Node(name=name, **{**told, **fields})


def busy(name: str, **fields: Any) -> Node:
    return node(name, **{"state": NodeState.BUSY, "cores_free": 0, **fields})


def job(number: int, width: int = 1, **fields: Any) -> Queued:
    told = {
        "id": str(number),
        "name": "x",
        "user": "u",
        "width": width,
        "walltime_s": 600,
        "submitted_s": 5.0,
    }
    return Queued(**{**told, **fields})


def runs(number: int, *nodes: str, **fields: Any) -> Running:
    told = {
        "id": str(number),
        "name": "x",
        "user": "u",
        "nodes": nodes,
        "width": len(nodes),
        "started_s": NOW - 60,
    }
    return Running(**{**told, "ends_s": NOW + 600, **fields})


def machine(*nodes: Node, **fields: Any) -> Snapshot:
    batch = Partition(name="batch", nodes=(), walltime_max_s=3600, width_max=4, is_default=True)
    told = {"at_s": NOW, "nodes": list(nodes), "running": [], "queued": [], "partitions": [batch]}
    return Snapshot(**{**told, **fields})


def pools(snapshot: Snapshot, *held: Held, terms: Terms = TERMS) -> list[Pool]:
    return cut(snapshot, held, terms, backlog=BACKLOG, limits=LIMITS)


def only(snapshot: Snapshot, *held: Held, terms: Terms = TERMS) -> Situation:
    found = pools(snapshot, *held, terms=terms)
    assert len(found) == 1
    return found[0].situation


def test_a_uniform_machine_is_one_pool() -> None:
    found = pools(machine(node("n0"), busy("n1"), running=[runs(1, "n1")], queued=[job(2, 2)]))

    assert [pool.name for pool in found] == ["batch/64c"]
    situation = found[0].situation
    assert (situation.nodes, situation.idle, situation.busy) == (2, 1, [Busy(1, NOW + 600)])
    assert situation.queue == [Waiting("2", 2, 600, 5.0)]
    assert situation.knows_plan
    assert (situation.limits.walltime_max_s, situation.limits.width_max) == (3600, 4)


def test_nodes_that_end_wake_or_are_over_time_come_free_soon_and_those_away_do_not_count() -> None:
    snapshot = machine(
        node("n0", state=NodeState.ENDING),
        node("n1", state=NodeState.WAKING),
        busy("n2"),
        node("n3", state=NodeState.AWAY),
        busy("n4"),
        running=[runs(1, "n2", ends_s=NOW - 50), runs(2, "n3")],
    )
    situation = only(snapshot)
    assert (situation.nodes, situation.idle) == (4, 0)
    assert situation.busy == [Busy(3, NOW + 30), Busy(1, FAR_S)]  # nobody says who is on n4


def test_several_jobs_on_a_node_hold_it_until_the_last_ends() -> None:
    shared = node("n0", state=NodeState.SHARED, cores_free=32)
    jobs = [runs(1, "n0", whole=False), runs(2, "n0", whole=False, ends_s=NOW + 900)]
    assert only(machine(shared, running=jobs)).busy == [Busy(1, NOW + 900)]


def test_jobs_with_hidden_nodes_lend_their_ends_to_busy_nodes() -> None:
    hidden = [runs(1, width=1, ends_s=NOW + 900), runs(2, width=1, ends_s=NOW + 100)]
    situation = only(machine(busy("n0"), busy("n1"), busy("n2"), running=hidden))
    assert situation.busy == [Busy(1, NOW + 100), Busy(1, NOW + 900), Busy(1, FAR_S)]


def test_reservations_close_nodes_once_whoever_is_on_them() -> None:
    snapshot = machine(
        node("n0", state=NodeState.RESERVED),
        busy("n1"),
        node("n2"),
        busy("n3"),
        running=[runs(1, "n1"), runs(2, "n3", ends_s=NOW + 1500)],
        reservations=[
            Reservation(name="now", start_s=NOW - 5, end_s=NOW + 1000, nodes=("n0", "n1")),
            Reservation(name="later", start_s=NOW + 900, end_s=NOW + 2000, nodes=("n1", "n2", "n3")),
            Reservation(name="over", start_s=NOW - 5, end_s=NOW - 1, nodes=("n2",)),
        ],
    )
    situation = only(snapshot)
    assert situation.idle == 1
    assert situation.busy == [Busy(1, NOW + 1000), Busy(1, NOW + 1500), Busy(1, NOW + 2000)]
    assert situation.outages == [Outage(1, NOW + 900, NOW + 2000), Outage(1, NOW + 1500, NOW + 2000)]


def test_in_a_reservation_only_its_nodes_are_ours_and_only_until_its_end() -> None:
    mine = Reservation(name="mine", start_s=NOW - 5, end_s=NOW + 900, nodes=("n0", "n1"), usable=True)
    snapshot = machine(
        node("n0", state=NodeState.RESERVED),
        busy("n1"),
        node("n2"),
        running=[runs(1, "n1")],
        queued=[job(3, reservation="mine"), job(4)],
        reservations=[mine],
    )
    situation = only(snapshot, terms=msgspec.structs.replace(TERMS, reservation="mine"))
    assert (situation.nodes, situation.idle, situation.busy) == (2, 1, [Busy(1, NOW + 600)])
    assert situation.outages == [Outage(2, NOW + 900, FAR_S)]
    assert [each.id for each in situation.queue] == ["3"]


def test_our_allocations_are_gathered_the_cheapest_first() -> None:
    ours = {
        "a": Held(name="a", width=1, is_waiting=False, loss_s=290),
        "b": Held(name="b", width=1, is_waiting=False, loss_s=10),
        "c": Held(name="c", width=1, is_waiting=False, loss_s=5),
        "w": Held(name="w", width=1, is_waiting=True, walltime_s=600),
    }
    running = [runs(k, f"n{k}", name=name, ours=True) for k, name in enumerate("abc")]
    found = pools(machine(busy("n0"), busy("n1"), busy("n2"), node("n3"), running=running), *ours.values())

    situation = found[0].situation
    assert (situation.nodes, situation.idle, situation.busy) == (4, 1, [])
    told = [(each.waiting, each.count, each.ends_s, each.loss_s) for each in situation.holdings]
    assert told == [(True, 1, NOW + 600, 0.0), (False, 2, NOW + 600, 7.5), (False, 1, NOW + 600, 290.0)]
    assert [each.names for each in situation.holdings] == [("w",), ("c", "b"), ("a",)]


def test_what_runs_is_told_by_the_machine_and_what_waits_by_us() -> None:
    snapshot = machine(
        busy("n0"),
        busy("n1"),
        node("n2"),
        running=[
            runs(1, "n0", name="began", ours=True),
            runs(2, "n1", name="stranger", ours=True),
        ],
    )
    held = [
        Held(name="began", width=1, is_waiting=True, walltime_s=600),
        Held(name="ended", width=1, is_waiting=False),
        Held(name="young", width=1, is_waiting=True, walltime_s=600),
    ]
    found = pools(snapshot, *held)
    assert sorted(name for each in found[0].situation.holdings for name in each.names) == [
        "began",
        "stranger",
        "young",
    ]
    assert sum(each.count for each in found[0].situation.holdings if not each.waiting) == 2


def test_what_is_gone_when_its_node_is_cleaned_up_is_held_no_more() -> None:
    running = [runs(k, f"n{k}", name=name, ours=True) for k, name in enumerate("ab")]
    held = [Held(name=name, width=1, is_waiting=False) for name in "ab"]
    nodes = [busy("n0"), node("n1", state=NodeState.ENDING)]
    (pool,) = pools(machine(*nodes, running=running), *held)
    assert [each.names for each in pool.situation.holdings] == [("a",)]
    assert pool.situation.busy == [Busy(1, NOW + 30)]


def test_an_end_that_we_have_ordered_counts_before_the_batch_system_tells_it() -> None:
    snapshot = machine(busy("n0"), running=[runs(1, "n0", name="a", ours=True)])
    held = Held(name="a", width=1, is_waiting=False, ends_s=NOW + 60)
    assert only(snapshot, held).holdings == [
        Holding(key=0, width=1, count=1, waiting=False, started_s=NOW - 60, ends_s=NOW + 60, names=("a",))
    ]


def test_nodes_are_told_apart_only_by_what_a_job_asks_for() -> None:
    nodes = [node("n0", memory_mb=1000, features=("rack1",)), node("n1", memory_mb=2000, features=("rack2",))]
    assert len(pools(machine(*nodes))) == 1
    assert len(pools(machine(*nodes, queued=[job(1, features=("rack1",))]))) == 2
    assert len(pools(machine(*nodes, queued=[job(1, memory_mb_per_node=500)]))) == 1
    found = pools(machine(*nodes, queued=[job(1, memory_mb_per_node=1500)]))
    assert [(pool.name, len(pool.situation.queue)) for pool in found] == [
        ("batch/64c/1000MB", 0),
        ("batch/64c/2000MB", 1),
    ]
    assert len(pools(machine(node("n0"), node("n1", cores=32)))) == 2
    assert len(pools(machine(node("n0"), node("n1", devices=(("gpu", 4),))))) == 2


def test_a_job_counts_wherever_it_could_run() -> None:
    nodes = [node("n0", cores=64), node("n1", cores=32), node("n2", partitions=("batch", "debug"))]
    snapshot = machine(
        *nodes,
        queued=[
            job(1),
            job(2, cores=64),
            job(3, partitions=("debug",)),
            job(4, partitions=("other",)),
            job(5, features=("gpu",)),
            job(6, features=("gpu",), is_feature_list_exact=False),
            job(7, eligible=False),
            job(8, ours=True),
            job(9, reservation="theirs"),
        ],
    )
    told = {pool.name: [each.id for each in pool.situation.queue] for pool in pools(snapshot)}
    assert told == {
        "batch/64c": ["1", "2", "6"],
        "batch/32c": ["1", "6"],
        "batch/64c/debug": ["1", "2", "3", "6"],
    }


def test_a_job_of_more_cores_than_its_nodes_have_needs_more_nodes() -> None:
    snapshot = machine(node("n0"), node("n1"), node("n2"), queued=[job(1, cores=129), job(2, cores=128)])
    assert [(each.id, each.width) for each in only(snapshot).queue] == [("1", 3), ("2", 2)]


def test_a_job_that_spans_pools_counts_where_it_could_start_with_nodes_of_all() -> None:
    nodes = [node("n0"), node("n1"), node("n2", cores=32), busy("n3", cores=32)]
    snapshot = machine(*nodes, running=[runs(9, "n3")], queued=[job(1, 3), job(2, 4), job(3, 2)])
    told = {pool.name: [(each.id, each.width) for each in pool.situation.queue] for pool in pools(snapshot)}
    # Job 1 can start now on n0, n1 and n2; job 2 cannot, and fits nowhere alone; job 3 fits either pool.
    assert told == {"batch/64c": [("1", 2), ("3", 2)], "batch/32c": [("1", 1), ("3", 1)]}


def test_a_regular_job_may_start_with_nodes_that_we_do_not_use() -> None:
    terms = msgspec.structs.replace(TERMS, exclude=frozenset({"bad"}))
    running = [runs(k, f"n{k}", name=f"a{k}", ours=True) for k in range(2)]
    snapshot = machine(
        busy("n0"), busy("n1"), node("bad"), node("zzz", state=NodeState.SLEEPING), running=running
    )
    for width, charged in ((2, [2]), (3, [2]), (4, [2]), (5, [])):
        queued = msgspec.structs.replace(snapshot, queued=[job(1, width)])
        assert [each.width for each in only(queued, terms=terms).queue] == charged, width


def test_a_bad_node_that_we_still_hold_can_be_given_back() -> None:
    terms = msgspec.structs.replace(TERMS, exclude=frozenset({"n0"}))
    snapshot = machine(busy("n0"), node("n1"), running=[runs(1, "n0", name="a", ours=True)])
    situation = only(snapshot, terms=terms)
    assert (situation.nodes, situation.idle, len(situation.holdings)) == (2, 1, 1)


def test_sleeping_nodes_are_idle_only_if_we_may_wake_them() -> None:
    snapshot = machine(node("n0"), node("n1", state=NodeState.SLEEPING))
    assert only(snapshot).idle == 1
    assert only(snapshot, terms=msgspec.structs.replace(TERMS, wake_nodes=True)).idle == 2


def test_where_others_are_hidden_only_windows_count() -> None:
    planned = job(1, planned_s=NOW + 400, planned_nodes=("n0",))
    snapshot = machine(node("n0"), node("n1"), queued=[planned], hidden=["others' jobs"])
    situation = only(snapshot)
    assert not situation.knows_plan
    assert situation.windows == [(1, 3510.0), (2, 310.0)]
    told = only(
        msgspec.structs.replace(snapshot, hidden=[]), terms=msgspec.structs.replace(TERMS, windows_only=True)
    )
    assert told.windows == situation.windows


def test_a_plan_that_leaves_no_gap_is_told_apart_from_one_that_is_not_known() -> None:
    """Slurm says when it planned last, PBS only gives some jobs a start: one of these is enough to know of a plan."""
    planned = job(1, planned_s=NOW, planned_nodes=("n0",))
    assert only(machine(node("n0"), queued=[job(1)])).planned_gaps is None
    assert only(machine(node("n0"), queued=[planned])).planned_gaps == []
    assert only(machine(node("n0"), queued=[planned], plan_age_s=1.0)).planned_gaps == []
    assert only(machine(node("n0"), plan_age_s=1.0)).planned_gaps == [(1, 3600.0)]


def test_a_partition_that_is_down_gets_no_submissions_and_is_named() -> None:
    down = Partition(name="batch", nodes=(), is_up=False)
    found = decide(only(machine(node("n0"), partitions=[down])), Policy.YIELD)
    assert (found.submit, found.waits_for) == ([], Binding.CLOSED)


@pytest.mark.parametrize("policy", [Policy.YIELD, Policy.WINDOWS, Policy.DEMAND])
@pytest.mark.parametrize("nodes", [[node("n0")], [busy("n0")]], ids=["idle", "busy"])
def test_a_scheduler_that_starts_nothing_gets_no_submissions_and_is_named(
    policy: Policy, nodes: list[Node]
) -> None:
    snapshot = machine(*nodes, running=[runs(1, "n0")] if nodes[0].state is NodeState.BUSY else [])
    terms = msgspec.structs.replace(TERMS, windows_only=policy is Policy.WINDOWS)
    assert decide(only(snapshot, terms=terms), policy).waits_for != Binding.SCHEDULER
    stopped = msgspec.structs.replace(snapshot, starts_nothing="its scheduler does not run")
    found = decide(only(stopped, terms=terms), policy)
    assert found.submit == []
    if policy is not Policy.WINDOWS:
        assert found.waits_for == Binding.SCHEDULER


@pytest.mark.parametrize(
    ("hidden", "expected"),
    [([], Binding.REGULAR), (["planned starts"], Binding.REGULAR), (["others' jobs"], Binding.HIDDEN)],
    ids=["seen", "only the plan is hidden", "hidden"],
)
def test_jobs_are_called_hidden_only_where_they_are(hidden: list[str], expected: Binding) -> None:
    """PBS plans nothing by default, and Grid Engine does not show its plan: the job may take any node, and the policy
    `windows` leaves it all of them."""
    are_hidden = expected is Binding.HIDDEN
    snapshot = machine(node("n0"), queued=[job(1)], hidden=hidden, are_jobs_hidden=are_hidden)
    terms = msgspec.structs.replace(TERMS, windows_only=True)
    if are_hidden:
        snapshot = msgspec.structs.replace(snapshot, queued=[job(1, planned_s=NOW, planned_nodes=("n0",))])
    found = decide(only(snapshot, terms=terms), Policy.WINDOWS)
    assert (found.submit, found.waits_for) == ([], expected)
    assert ("hides other users' jobs" in found.why) is are_hidden


def test_pools_share_the_limits_and_the_backlog_of_the_site() -> None:
    snapshot = machine(
        busy("n0"),
        node("n1"),
        node("n2", cores=32),
        running=[runs(1, "n0", name="a", ours=True)],
    )
    first, second = pools(snapshot)
    assert (first.name, second.name) == ("batch/32c", "batch/64c")
    assert (first.situation.limits.nodes_max, first.situation.limits.allocations_max) == (49, 39)
    assert (first.situation.backlog.nodes_max, first.situation.backlog.node_s) == (99, 1e6), (
        "the node that works takes one of the nodes, not its 600 s of walltime of the work"
    )
    assert second.situation.limits.nodes_max == 50

    seen: list[Situation] = []

    def ask(situation: Situation) -> Decision:
        seen.append(situation)
        return Decision(submit=[Submit(width=2, count=3, walltime_s=100)])

    assert [pool.name for pool, _ in decide_each([first, second], ask)] == ["batch/32c", "batch/64c"]
    assert (seen[1].limits.nodes_max, seen[1].limits.allocations_max) == (44, 37)
    assert (seen[1].backlog.nodes_max, seen[1].backlog.node_s) == (94, 1e6)


def test_a_waiting_allocation_stays_in_its_pool_when_the_pools_name_grows() -> None:
    nodes = [node("n0", cores=32), node("n1", memory_mb=1000), node("n2", memory_mb=2000)]
    held = Held(name="w", width=1, is_waiting=True, walltime_s=60, pool="batch/32c")
    snapshot = machine(*nodes, queued=[job(1, memory_mb_per_node=900), job(2, memory_mb_per_node=1500)])
    told = {pool.name: len(pool.situation.holdings) for pool in pools(snapshot, held)}
    assert told == {"batch/32c/1000MB": 1, "batch/64c/1000MB": 0, "batch/64c/2000MB": 0}


def test_names_of_pools_are_short_and_differ_however_long_the_words_of_jobs_are() -> None:
    words = ["scratch>=6." + "0" * 50_000 + end for end in ("1gb", "2gb")]
    nodes = [node("n0", features=(words[0],)), node("n1", features=(words[1],)), node("n2")]
    asked = [job(k, features=(word,)) for k, word in enumerate(words)]
    names = {pool.name for pool in pools(machine(*nodes, queued=asked))}
    assert len(names) == 3
    assert max(map(len, names)) < 80
    again = {pool.name for pool in pools(machine(*nodes[::-1], queued=asked))}
    assert names == again, "they are stable, so that allocations stay in their pools"


def test_a_machine_of_8000_nodes_and_20000_jobs_is_cut_with_bounded_work() -> None:
    draw = random.Random(1)
    names = [f"n{k:04}" for k in range(8000)]
    kinds = [("batch",), ("batch", "debug"), ("batch", "long")]
    nodes = [
        busy(name, partitions=kinds[k % 3], memory_mb=1000 * (1 + k % 2), features=(f"rack{k // 64}",))
        for k, name in enumerate(names)
    ]
    ours = [
        runs(k, names[k], name=f"a{k}", ours=True, ends_s=NOW + draw.randint(60, 4000)) for k in range(2500)
    ]
    others = [runs(k, *names[k : k + 100], ends_s=NOW + k) for k in range(2500, 8000, 100)]
    queued = [
        job(
            k,
            draw.choice([1, 16, 700]),
            partitions=draw.choice(kinds),
            memory_mb_per_node=draw.choice([0, 500, 1500]),
        )
        for k in range(20_000)
    ]
    snapshot = machine(*nodes, running=[*ours, *others], queued=queued)
    held = [Held(name=f"a{k}", width=1, is_waiting=False, loss_s=draw.uniform(0, 300)) for k in range(2500)]

    assert sum(pool.situation.nodes for pool in pools(snapshot, *held)) == 8000
    assert lines_run(lambda: pools(snapshot, *held)) < 3_000_000  # 1,733,582 with Python 3.11, run in 90 ms


def test_nodes_without_cores_do_not_end_the_plan() -> None:
    snapshot = machine(node("n0"), node("n1", cores=0, cores_free=0), queued=[job(1, 1, cores=500)])
    assert {pool.cores: len(pool.situation.queue) for pool in pools(snapshot)} == {64: 0, 0: 0}


def test_a_job_like_one_that_is_left_out_counts_where_the_order_is_known() -> None:
    terms = msgspec.structs.replace(TERMS, left_out=frozenset({"1"}))
    for is_order_known, waiting in ((True, ["2"]), (False, [])):
        snapshot = machine(node("n0"), queued=[job(1), job(2)], is_order_known=is_order_known)
        assert [each.id for each in only(snapshot, terms=terms).queue] == waiting


# ---- the work shared among pools --------------------------------------------------------------------------------

CAMPAIGN = Backlog(node_s=2500 / 8, nodes_max=11, event_s=12.5, bound_by="short")
"""200 events of 5 to 20 s on nodes of 8 cores, as `planning.backlog_of` sees them."""
ORDINARY = Limits(nodes_max=6, allocations_max=1000)
HOLDS_ALL = Partition(name="batch", nodes=(), is_default=True, gives_all=True)


def ordinary(*, gpu_jobs: tuple[str, ...] = (), idle: int = 4, **fields: Any) -> Snapshot:
    """Plain nodes, of which `idle` are idle, and two with GPUs; Tidemill's jobs on these."""
    plain = [(node if k < idle else busy)(f"n{k}", cores=8) for k in range(4)]
    equipped = [
        (busy if f"g{k}" in gpu_jobs else node)(f"g{k}", cores=8, devices=(("gpu", 2),)) for k in range(2)
    ]
    mine = [runs(k, name, name=f"a-{name}", ours=True, ends_s=NOW + 3600) for k, name in enumerate(gpu_jobs)]
    others = [runs(10 + k, f"n{k}") for k in range(idle, 4)]
    return machine(*plain, *equipped, running=[*mine, *others], **fields)


def asked(
    snapshot: Snapshot, *held: Held, backlog: Backlog = CAMPAIGN, on_gpus: Backlog | None = None
) -> dict[str, int]:
    found = cut(snapshot, held, TERMS, backlog=both(backlog, on_gpus), limits=ORDINARY)
    decided = decide_each(found, lambda situation: decide(situation, Policy.YIELD))
    return {pool.name: sum(each.count for each in decision.submit) for pool, decision in decided}


def both(backlog: Backlog, on_gpus: Backlog | None) -> Backlog:
    return msgspec.structs.replace(backlog, on_gpus=on_gpus)


def mine(name: str, **fields: Any) -> Held:
    return Held(name=f"a-{name}", width=1, is_waiting=False, ends_s=NOW + 3600, walltime_s=3600, **fields)


def test_an_allocation_in_one_pool_does_not_stop_the_others() -> None:
    """200 runs of 5 to 20 s sat on one node with GPUs for 9 minutes, while 3 plain nodes were idle: the hour that the
    allocation had left counted as an hour of the work."""
    assert asked(ordinary(gpu_jobs=("g1",)), mine("g1")) == {"batch/8c": 4, "batch/8c/gpu*2": 1}


def test_work_without_gpus_takes_plain_nodes_first_and_nodes_with_gpus_for_what_is_left() -> None:
    short = msgspec.structs.replace(CAMPAIGN, nodes_max=3)
    assert asked(ordinary(), backlog=short) == {"batch/8c": 3, "batch/8c/gpu*2": 0}
    assert asked(ordinary()) == {"batch/8c": 4, "batch/8c/gpu*2": 2}
    assert asked(ordinary(idle=1), backlog=short) == {"batch/8c": 1, "batch/8c/gpu*2": 2}


def test_where_allocations_hold_gpus_whatever_they_ask_for_work_without_gpus_leaves_these_nodes() -> None:
    assert asked(ordinary(partitions=[HOLDS_ALL])) == {"batch/8c": 4, "batch/8c/gpu*2": 0}
    alone = machine(node("g0", devices=(("gpu", 2),)), partitions=[HOLDS_ALL])
    assert asked(alone) == {"batch/64c": 1}, "a site that has no others uses them"


def test_work_with_gpus_has_the_nodes_with_gpus_and_no_others() -> None:
    nothing = Backlog(node_s=0.0, nodes_max=0, event_s=1.0)
    training = Backlog(node_s=7200.0, nodes_max=5, event_s=60.0)
    assert asked(ordinary(), backlog=nothing, on_gpus=training) == {"batch/8c": 0, "batch/8c/gpu*2": 2}
    assert asked(ordinary(), on_gpus=training) == {"batch/8c": 4, "batch/8c/gpu*2": 2}


def test_work_with_gpus_keeps_its_nodes_of_the_few_that_the_site_may_hold() -> None:
    few = msgspec.structs.replace(ORDINARY, nodes_max=4)
    training = Backlog(node_s=7200.0, nodes_max=1, event_s=60.0)
    found = cut(ordinary(), (), TERMS, backlog=both(CAMPAIGN, training), limits=few)
    decided = decide_each(found, lambda situation: decide(situation, Policy.YIELD))
    assert [(pool.name, sum(each.count for each in decision.submit)) for pool, decision in decided] == [
        ("batch/8c", 3),
        ("batch/8c/gpu*2", 1),
    ]


def test_what_leaves_the_gpus_of_its_node_does_not_count_as_a_node_with_gpus() -> None:
    nothing = Backlog(node_s=0.0, nodes_max=0, event_s=1.0)
    training = Backlog(node_s=7200.0, nodes_max=2, event_s=60.0)
    snapshot = ordinary(gpu_jobs=("g0", "g1"))
    for leaves, missing in ((True, 2), (False, 0)):
        held = [mine(name, without_gpus=leaves) for name in ("g0", "g1")]
        found = cut(snapshot, held, TERMS, backlog=both(nothing, training), limits=ORDINARY)
        equipped = next(pool for pool in found if pool.has_gpus)
        assert (equipped.gpu_nodes, len(equipped.bare)) == (missing, 2 if leaves else 0)


def test_no_more_nodes_are_asked_for_than_the_work_is_for_however_the_pools_are_cut() -> None:
    draw = random.Random(7)
    for _ in range(200):
        kinds = [(8, ()), (8, (("gpu", 2),)), (16, ())]
        nodes = [
            node(f"n{k}", cores=cores, devices=devices)
            for k in range(12)
            for cores, devices in [draw.choice(kinds)]
        ]
        held_on = draw.sample(nodes, draw.randint(0, 5))
        nodes = [
            msgspec.structs.replace(each, state=NodeState.BUSY, cores_free=0) if each in held_on else each
            for each in nodes
        ]
        running = [runs(k, each.name, name=f"a-{each.name}", ours=True) for k, each in enumerate(held_on)]
        held = [mine(each.name, without_gpus=draw.random() < 0.5) for each in held_on]
        plain = Backlog(node_s=draw.choice([0.0, 100.0, 1e5]), nodes_max=draw.randint(0, 9), event_s=5.0)
        training = draw.choice([None, Backlog(node_s=1e5, nodes_max=draw.randint(1, 4), event_s=5.0)])
        told = asked(machine(*nodes, running=running), *held, backlog=plain, on_gpus=training)
        wanted = min(plain.nodes_max, int(plain.node_s // 30)) + (training.nodes_max if training else 0)
        assert sum(told.values()) <= max(0, wanted - len(held)) + len(held), told
        assert sum(told.values()) + len(held) <= max(len(held), ORDINARY.nodes_max)
        if not any(each.without_gpus for each in held) and training is None:
            assert sum(told.values()) <= max(0, wanted - len(held)), "each node that is held takes one"
