"""What a plan for one pool asks the batch system for: its own nodes, and GPUs only where work needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidemill import clock
from tidemill.batch.contract import BatchSystem
from tidemill.config.site import Cluster, NodeUse, SiteConfig
from tidemill.harvest.plan.policies import Policy
from tidemill.harvest.plan.waves import Binding
from tidemill.model.machine import Node, NodeState, Partition, Running, Snapshot
from tidemill.model.state import AllocationState
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes.allocations import AllocationRequest, GpuUse
from tidemill.site.nodes.costs import Costs
from tidemill.site.nodes.planning import SINGLES_MAX, Starts, features_apart, hindrances_of
from tidemill.site.nodes.selection import Named
from tidemill.site.nodes.site_machine import SiteMachine
from tidemill.site.state.site_state import Allocation, SiteState
from tidemill.wire.node import Started

CONFIG = SiteConfig(name="s", server="unix:/s", batch="slurm", nodes_max=6)
CAMPAIGN = Demand(events=200, core_s=2500.0, slot_cores=1, cores=8, range_s=12.5)
TRAINING = Demand(events=50, core_s=5000.0, slot_cores=4, cores=8, range_s=100.0)


def node(name: str, *, gpus: int = 0, **fields: Any) -> Node:
    plain: dict[str, Any] = {"state": NodeState.IDLE, "cores": 8, "memory_mb": 16000, "cores_free": 8}
    devices = (("gpu", gpus),) if gpus else ()
    return Node(name=name, devices=devices, partitions=("short",), **{**plain, **fields})


def snapshot(*nodes: Node, **fields: Any) -> Snapshot:
    short = Partition(name="short", nodes=(), walltime_max_s=7200, is_default=True, is_shared=True)
    plain: dict[str, Any] = {"running": [], "queued": [], "partitions": [short]}
    return Snapshot(at_s=clock.now_us() / 1e6, nodes=list(nodes), **{**plain, **fields})


ORDINARY = [*(node(f"n{k}") for k in range(1, 5)), node("g1", gpus=2), node("g2", gpus=2)]


class Shown:
    """A batch system that shows one snapshot, and is asked for nothing else."""

    def __init__(self, seen: Snapshot) -> None:
        self.snapshot = lambda: seen


def machine_on(tmp_path: Path, seen: Snapshot, config: SiteConfig = CONFIG) -> SiteMachine:
    batch: BatchSystem = Shown(seen)  # type: ignore[assignment]
    return SiteMachine(config, tmp_path, batch, Costs(10.0))


def plans(machine: SiteMachine, demand: Demand, state: SiteState | None = None) -> list[Named]:
    return machine.plans(state or SiteState(site="s"), demand, Starts(), Policy.YIELD)


def asks(machine: SiteMachine, demand: Demand, state: SiteState | None = None) -> list[AllocationRequest]:
    return [ask for plan in plans(machine, demand, state) for ask in machine.asks(plan, "f")]


def test_a_plan_for_one_pool_is_kept_out_of_the_others(tmp_path: Path) -> None:
    plain, equipped = asks(machine_on(tmp_path, snapshot(*ORDINARY)), CAMPAIGN)
    assert (plain.pool, plain.count, plain.avoid, plain.gpus) == ("short/8c", 4, ("g1", "g2"), GpuUse.NONE)
    assert (equipped.count, equipped.avoid, equipped.gpus) == (2, ("n1", "n2", "n3", "n4"), GpuUse.LEAVE)


def test_a_site_of_one_pool_names_no_nodes(tmp_path: Path) -> None:
    (ask,) = asks(machine_on(tmp_path, snapshot(*ORDINARY[:4])), CAMPAIGN)
    assert (ask.avoid, ask.avoid_by, ask.gpus) == ((), (), GpuUse.ALL), "GPUs may not be shown at all"


def test_without_arrays_few_allocations_are_asked_for_at_once_each_by_itself(tmp_path: Path) -> None:
    nodes = [node(f"n{k}") for k in range(SINGLES_MAX + 4)]
    config = msgspec.structs.replace(CONFIG, nodes_max=len(nodes))
    much = msgspec.structs.replace(CAMPAIGN, core_s=25_000.0)
    (array,) = asks(machine_on(tmp_path, snapshot(*nodes), config), much)
    assert array.count == len(nodes)
    machine = machine_on(tmp_path, snapshot(*nodes, array_max=0), config)
    (plan,) = plans(machine, much)
    assert plan.waits_for == Binding.SUBMITS
    assert [each.count for each in machine.asks(plan, "f")] == [1] * SINGLES_MAX


def test_work_with_gpus_asks_for_them_first_and_for_no_other_nodes(tmp_path: Path) -> None:
    machine = machine_on(tmp_path, snapshot(*ORDINARY))
    only = msgspec.structs.replace(TRAINING, on_gpus=TRAINING)
    (ask,) = asks(machine, only)
    assert (ask.count, ask.gpus) == (2, GpuUse.ALL)
    one = msgspec.structs.replace(TRAINING, events=1, core_s=400.0)
    both = msgspec.structs.replace(CAMPAIGN, events=201, core_s=2900.0, on_gpus=one)
    told = [(each.count, each.gpus) for each in asks(machine, both)]
    assert told == [(4, GpuUse.NONE), (1, GpuUse.ALL), (1, GpuUse.LEAVE)]


def held(state: SiteState, name: str, *, without_gpus: bool) -> Running:
    now_us = clock.now_us()
    state.allocations[name] = Allocation(
        name=name, fleet="f", nodes=1, cores=8, state=AllocationState.ACTIVE, intended_us=now_us, hosts=[name[2:]],
        started_us=now_us, ends_us=now_us + 3_600_000_000, walltime_s=3600, without_gpus=without_gpus, pilots=1,
    )  # fmt: skip
    at_s = now_us / 1e6
    return Running(
        id=name,
        name=name,
        user="u",
        nodes=(name[2:],),
        width=1,
        started_s=at_s,
        ends_s=at_s + 3600,
        ours=True,
    )


def test_allocations_that_leave_gpus_make_room_for_work_that_needs_them(tmp_path: Path) -> None:
    """A campaign without GPUs holds both nodes with GPUs; then work with GPUs comes."""
    for leaves in (True, False):
        state = SiteState(site="s")
        running = [held(state, f"a-{name}", without_gpus=leaves) for name in ("g1", "g2")]
        busy = [
            msgspec.structs.replace(each, state=NodeState.BUSY, cores_free=0) if each.devices else each
            for each in ORDINARY
        ]
        machine = machine_on(tmp_path, snapshot(*busy, running=running))
        one = msgspec.structs.replace(TRAINING, events=1, core_s=400.0)
        both = msgspec.structs.replace(CAMPAIGN, events=201, core_s=2900.0, on_gpus=one)
        canceled = [name for plan in plans(machine, both, state) for name in plan.cancel]
        assert len(canceled) == (1 if leaves else 0), "one node is enough, and what holds GPUs can use them"


def test_gpus_that_only_the_settings_name_are_asked_for_as_before(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, node=NodeUse(gpus=2))
    (ask,) = asks(machine_on(tmp_path, snapshot(*ORDINARY[:4]), config), CAMPAIGN)
    assert ask.gpus is GpuUse.ALL


def test_a_limit_that_own_jobs_met_bounds_what_is_asked_for(tmp_path: Path) -> None:
    seen = snapshot(*ORDINARY, walltime_max_s=1200.0, walltime_by="QOSMaxWallDurationPerJobLimit")
    machine = machine_on(tmp_path, seen)
    assert {ask.walltime_s for ask in asks(machine, CAMPAIGN)} == {1200.0}
    old = Allocation(
        name="a",
        fleet="f",
        nodes=1,
        cores=8,
        state=AllocationState.QUEUED,
        intended_us=1,
        walltime_s=3600,
        pool="p",
    )
    assert machine.is_over_limit(old)
    assert not machine.is_over_limit(msgspec.structs.replace(old, walltime_s=1200.0))
    machine.met_limit("QOSMaxWallDurationPerJobLimit")
    assert all("since a limit has changed" in plan.decision.why for plan in plans(machine, CAMPAIGN))


def partition(name: str, **fields: Any) -> Partition:
    return Partition(name=name, nodes=(), is_default=name == "short", is_shared=True, **fields)


def test_what_is_asked_for_again_keeps_the_limit_that_the_last_one_met(tmp_path: Path) -> None:
    """Before, a wide allocation over the partition's limit was asked for and canceled at each poll, for ever; so was
    one of more nodes than the partition allows by now."""
    short = partition("short", walltime_max_s=1200, width_max=2)
    machine = machine_on(tmp_path, snapshot(*ORDINARY, partitions=[short]))
    waits = Allocation(
        name="a", fleet="f", nodes=4, cores=8, state=AllocationState.QUEUED, intended_us=1, walltime_s=3600
    )
    assert machine.wide_bounds(Starts()).walltime_max_s == 1200
    assert machine.is_over_limit(waits)
    again = msgspec.structs.replace(waits, walltime_s=machine.wide_bounds(Starts()).walltime_max_s)
    assert not machine.is_over_limit(again), (
        "its nodes are too many, and the next would have as many: a failed start"
    )
    least = machine_on(tmp_path, snapshot(*ORDINARY, partitions=[partition("short", width_min=5)]))
    assert not least.is_over_limit(again), "a payload needs exactly its nodes"
    assert least.is_over_limit(msgspec.structs.replace(again, pool="short/8c"))


def test_of_several_partitions_the_longest_limit_counts(tmp_path: Path) -> None:
    """A job that names both starts in the one that allows it."""
    both = [partition("short", walltime_max_s=1200), partition("long", walltime_max_s=86400)]
    config = msgspec.structs.replace(CONFIG, cluster=Cluster(partition="short,long"))
    machine = machine_on(tmp_path, snapshot(*ORDINARY, partitions=both), config)
    waits = Allocation(
        name="a",
        fleet="f",
        nodes=1,
        cores=8,
        state=AllocationState.QUEUED,
        intended_us=1,
        walltime_s=3600,
        pool="p",
    )
    assert not machine.is_over_limit(waits)


def test_nothing_makes_room_for_work_that_may_not_start_now(tmp_path: Path) -> None:
    state = SiteState(site="s")
    running = [held(state, f"a-{name}", without_gpus=True) for name in ("g1", "g2")]
    busy = [
        msgspec.structs.replace(each, state=NodeState.BUSY, cores_free=0) if each.devices else each
        for each in ORDINARY
    ]
    machine = machine_on(tmp_path, snapshot(*busy, running=running))
    one = msgspec.structs.replace(TRAINING, events=1, core_s=400.0)
    both = msgspec.structs.replace(CAMPAIGN, events=201, core_s=2900.0, on_gpus=one)
    paused = machine.plans(state, both, Starts(pause_s=300.0, why="a pause"), Policy.YIELD)
    assert [name for plan in paused for name in plan.cancel] == []
    (first,) = [name for plan in plans(machine, both, state) for name in plan.cancel]
    state.allocations[first].canceled_us = clock.now_us()
    assert [name for plan in plans(machine, both, state) for name in plan.cancel] == [], "one is on its way"


def test_features_that_set_a_pool_apart_are_as_few_as_may_be() -> None:
    inside = [node("n1", features=("cpu", "rack1")), node("n2", features=("cpu", "rack2"))]
    outside = [node("g1", gpus=1, features=("gpu", "rack1"))]
    assert features_apart(inside, outside) == ("cpu",)
    assert features_apart(outside, inside) == ("gpu",)
    assert features_apart(inside[:1], inside[1:]) == ("rack1",)
    assert features_apart(inside, [node("x", features=("cpu", "big"))]) == ()
    assert features_apart(inside, []) == ()


def started(on: str, memory_mb: int) -> Started:
    return Started(
        p="a.0.i1", s=1, allocation="a", node=on, rank=0, cores=8, memory_mb=memory_mb, isolation="namespaces", note="",
        version="1", at_us=1,
    )  # fmt: skip


def test_slots_have_the_memory_that_an_allocation_gets_and_not_the_nodes(tmp_path: Path) -> None:
    """Slurm gives 1,900 MB for each core where nothing is asked for: 15,200 of 16,000 MB."""
    short = Partition(name="short", nodes=(), is_default=True, memory_per_core_mb=1900)
    machine = machine_on(tmp_path, snapshot(*ORDINARY, partitions=[short]))
    assert machine.shape.memory_mb == 15200
    asked = msgspec.structs.replace(CONFIG, node=NodeUse(memory_mb=16000))
    assert machine_on(tmp_path, snapshot(*ORDINARY, partitions=[short]), asked).shape.memory_mb == 16000
    whole = machine_on(tmp_path, snapshot(*ORDINARY))
    assert whole.shape.memory_mb == 16000, "nothing is said: all of it"


def test_what_pilots_find_on_such_a_node_counts(tmp_path: Path) -> None:
    nodes = [*ORDINARY, node("small", cores=4, memory_mb=4000)]
    machine = machine_on(tmp_path, snapshot(*nodes))
    machine.on_records([started("small", 3900), started("elsewhere", 100)])
    assert machine.shape.memory_mb == 16000
    machine.on_records([started("n2", 15200)])
    machine.apply_snapshot(snapshot(*nodes))
    assert machine.shape.memory_mb == 15200
    machine.on_records([started("n2", 17000)])
    assert machine.shape.memory_mb == 16000, "no more than the batch system has"


def test_work_with_gpus_that_waits_says_which_nodes_it_waits_for(tmp_path: Path) -> None:
    """Both nodes with GPUs are in use in part, and three others are idle."""
    busy = [node(f"g{k}", gpus=2, state=NodeState.SHARED, cores_free=3) for k in (1, 2)]
    machine = machine_on(tmp_path, snapshot(*ORDINARY[:3], *busy))
    decided = plans(machine, msgspec.structs.replace(TRAINING, on_gpus=TRAINING))
    (found,) = [each for each in hindrances_of(decided, away=1) if each.cause == "idle"]
    assert found.nodes is not None
    assert (found.nodes.nodes, found.nodes.shared, found.nodes.are_for_gpus, found.nodes.bare) == (
        2,
        2,
        True,
        3,
    )
