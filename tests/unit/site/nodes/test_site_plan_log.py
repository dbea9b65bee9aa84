"""What of the plans is recorded, and what the agent keeps in memory for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.harvest.account.broker_log import PoolGone
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Limits, Situation
from tidemill.model.figures.awaited import NodeCounts
from tidemill.model.state import AllocationState
from tidemill.site.nodes.plan_log import PlanLog
from tidemill.site.nodes.planning import as_reported
from tidemill.site.nodes.selection import Named, PlacedDecision, Shape, with_names
from tidemill.site.state.site_state import Allocation

SITUATION = Situation(
    now_s=0.0,
    nodes=1,
    idle=0,
    busy=[],
    queue=[],
    outages=[],
    holdings=[],
    backlog=Backlog(node_s=0.0, nodes_max=0, event_s=1.0),
    limits=Limits(nodes_max=0, allocations_max=0),
)


def plan(pool: str) -> Named:
    return with_names(
        Shape(pool=pool, cores=4, memory_mb=1),
        SITUATION,
        choice=PlacedDecision(decision=decide(SITUATION, Policy.YIELD)),
        starts_wait="",
    )


def is_recorded(log: PlanLog, pool: str) -> bool:
    return log.made(plan(pool), epoch=1, observes=False) is not None


def test_a_pool_is_forgotten_when_it_is_gone_and_recorded_when_it_is_back(tmp_path: Path) -> None:
    log = PlanLog(tmp_path)
    assert [is_recorded(log, pool) for pool in ("a", "b", "a")] == [True, True, False]
    log.retain({"a"})
    assert [each.pool for each in log.recent() if isinstance(each, PoolGone)] == ["b"]
    assert [is_recorded(log, pool) for pool in ("a", "b")] == [False, True]


QUEUED, ACTIVE, CANCELED = AllocationState.QUEUED, AllocationState.ACTIVE, AllocationState.CANCELED


def allocation(
    name: str, state: AllocationState, *, pilots: int = 0, ended: int = 0, canceled: int = 0
) -> Allocation:
    return Allocation(
        name=name, fleet="f", nodes=1, cores=4, state=state, intended_us=1, pool="p", pilots=pilots,
        pilots_ended=ended, canceled_us=canceled,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("now", "shown", "idle", "ours", "other"),
    [
        (allocation("held", ACTIVE), "ACTIVE", 3, 1, 0),
        (allocation("held", ACTIVE, pilots=1), "ACTIVE", 3, 1, 0),
        (allocation("held", ACTIVE, pilots=1, ended=1), "COMPLETED", 3, 0, 1),
        (allocation("held", ACTIVE, pilots=1, ended=1, canceled=9), "RELEASED", 3, 0, 1),
        (allocation("held", CANCELED, pilots=1), "CANCELED", 3, 0, 1),
        (allocation("asked", QUEUED), "QUEUED", 3, 1, 0),
        (allocation("asked", QUEUED, pilots=1), "ACTIVE", 2, 2, 0),
    ],
)
def test_allocations_and_nodes_are_shown_as_pilots_have_reported_since_the_poll(
    now: Allocation, shown: str, idle: int, ours: int, other: int
) -> None:
    assert now.shown == shown
    polled = msgspec.structs.replace(plan("p"), nodes=NodeCounts(nodes=4, idle=3, ours=1))
    elsewhere = msgspec.structs.replace(plan("q"), nodes=NodeCounts(nodes=1, ours=1))
    mine, others = as_reported([polled, elsewhere], {now.name: now}, {"held"})
    assert mine.nodes == NodeCounts(nodes=4, idle=idle, ours=ours, other=other)
    assert others == elsewhere
