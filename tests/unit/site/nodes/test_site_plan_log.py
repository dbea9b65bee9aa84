"""What of the plans is recorded, and what the agent keeps in memory for it."""

from __future__ import annotations

from pathlib import Path

from tidemill.harvest.account.records import PoolGone
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Limits, Situation
from tidemill.site.nodes.plan_log import PlanLog
from tidemill.site.nodes.selection import Named, PlacedDecision, Shape, with_names

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
        groups=[],
        starts_wait="",
    )


def is_recorded(log: PlanLog, pool: str) -> bool:
    return log.made(plan(pool), epoch=1, observes=False) is not None


def test_a_pool_is_forgotten_when_it_is_gone_and_recorded_when_it_is_back(tmp_path: Path) -> None:
    log = PlanLog(tmp_path)
    assert [is_recorded(log, pool) for pool in ("a", "b", "a")] == [True, True, False]
    log.keep({"a"})
    assert [each.pool for each in log.recent() if isinstance(each, PoolGone)] == ["b"]
    assert [is_recorded(log, pool) for pool in ("a", "b")] == [False, True]
