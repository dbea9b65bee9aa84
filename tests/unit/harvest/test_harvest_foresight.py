"""Where the scheduler's plan is foretold, counts are not asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tidemill.harvest.plan.ours import Held
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Decision, Limits, Outage
from tidemill.harvest.snapshot.foresight import foreseen, foretold
from tidemill.harvest.snapshot.placement import layout_of
from tidemill.harvest.snapshot.pools import Pool, Terms, cut
from tidemill.model.machine import Node, NodeState, Queued, Running, Snapshot

NOW = 1_795_266_922.0
OTHERS = {"a": (201, range(5, 10)), "b": (385, range(4)), "c": (323, (10, 14, 15))}
OURS = {4: 347, 11: 347, 13: 527}
IDLE = 12


def waits(
    number: str, width: int, walltime_s: float, *planned: int, planned_s: float | None = None
) -> Queued:
    at_s = None if planned_s is None else NOW + planned_s
    nodes = tuple(f"n{place:02}" for place in planned)
    return Queued(
        id=number,
        name="j",
        user="them",
        width=width,
        walltime_s=walltime_s,
        planned_s=at_s,
        planned_nodes=nodes,
    )


def runs(name: str, end_s: float, *places: int, ours: bool = False) -> Running:
    return Running(
        id=name,
        name=name,
        user="us" if ours else "them",
        nodes=tuple(f"n{place:02}" for place in places),
        width=len(places),
        started_s=NOW - 100,
        ends_s=NOW + end_s,
        ours=ours,
    )


def machine(
    *queued: Queued,
    others: Mapping[str, tuple[float, Iterable[int]]] = OTHERS,
    ours: Mapping[int, float] = OURS,
    idle: int = IDLE,
) -> tuple[Snapshot, Pool]:
    """Sixteen nodes, unless said otherwise as they once were on a real Slurm."""
    snapshot = Snapshot(
        at_s=NOW,
        nodes=[
            Node(
                name=f"n{place:02}",
                state=NodeState.IDLE if place == idle else NodeState.BUSY,
                cores=1,
                memory_mb=1000,
                cores_free=place == idle,
            )
            for place in range(16)
        ],
        running=[
            *(runs(name, end_s, *places) for name, (end_s, places) in others.items()),
            *(runs(f"p{place}", end_s, place, ours=True) for place, end_s in ours.items()),
        ],
        queued=[*queued],
    )
    held = [Held(name=f"p{place}", width=1, is_waiting=False) for place in ours]
    limits = Limits(nodes_max=16, allocations_max=16)
    backlog = Backlog(node_s=1e9, nodes_max=16, event_s=1.0)
    (pool,) = cut(snapshot, held, Terms(), backlog=backlog, limits=limits)
    return snapshot, pool


def decided(snapshot: Snapshot, pool: Pool) -> Decision:
    return decide(foreseen(pool, layout_of(snapshot, pool), snapshot.queued).situation, Policy.YIELD)


WIDE = waits("11", 13, 360.0, *range(13), planned_s=385)


def test_a_job_that_the_scheduler_would_not_start_without_us_either_is_given_nothing() -> None:
    """Counts: four nodes are free without us, 13 of 16 are planned, so three may go now. Yet n13, n14 and n15 are left
    beside the planned ones, and two of these are busy: Slurm planned it 320 s later."""
    snapshot, pool = machine(WIDE, waits("12", 3, 420.0))
    assert decide(pool.situation, Policy.YIELD).yields_to == ["12"]
    decision = decided(snapshot, pool)
    assert (decision.cancel, decision.yields_to, decision.ready) == ([], [], [])
    seen = foreseen(pool, layout_of(snapshot, pool), snapshot.queued)
    assert seen.situation.queue == []
    # ours make way for them then
    assert seen.situation.outages == [Outage(13, NOW + 385, NOW + 745), Outage(3, NOW + 323, NOW + 743)]


def test_one_that_would_start_is_yielded_to() -> None:
    snapshot, pool = machine(WIDE, waits("12", 1, 420.0))
    assert decided(snapshot, pool).ready == ["12"]
    snapshot, pool = machine(WIDE, waits("12", 3, 360.0))
    assert decided(snapshot, pool).yields_to == ["12"]  # it ends before the wide one starts


def test_a_job_that_counts_leave_no_room_for_starts_where_the_scheduler_would_start_it() -> None:
    """Counts: at 230 six nodes come free, with the two that are free without us eight, which the planned job takes.
    Slurm looks at the ends at 230 and 240 together, and plans it on the first eight of all: two are left at once."""
    planned = waits("13", 8, 180.0, *range(8), planned_s=240)
    others = {"a": (230, range(6)), "b": (240, range(6, 14))}
    snapshot, pool = machine(planned, waits("15", 2, 300.0), others=others, ours={15: 3600}, idle=14)
    assert decide(pool.situation, Policy.YIELD).yields_to == []
    decision = decided(snapshot, pool)
    assert (decision.yields_to, [each.count for each in decision.cancel]) == (["15"], [1])


def test_counts_are_believed_where_the_scheduler_tells_another_plan() -> None:
    elsewhere = msgspec.structs.replace(WIDE, planned_nodes=tuple(f"n{place:02}" for place in range(3, 16)))
    for told in (elsewhere, waits("11", 13, 360.0)):
        snapshot, pool = machine(told, waits("12", 3, 420.0))
        assert not foretold(layout_of(snapshot, pool), snapshot.queued)
        assert decided(snapshot, pool).yields_to == ["12"]
