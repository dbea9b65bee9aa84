"""What is canceled gives its nodes to the job that it was canceled for, however long it takes to end."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.harvest.plan.ours import EndOrder, Held
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Decision, Limits, Situation
from tidemill.harvest.snapshot.placement import layout_of
from tidemill.harvest.snapshot.pools import Terms, cut
from tidemill.model.machine import Node, NodeState, Queued, Reservation, Running, Snapshot
from tidemill.model.state import AllocationState
from tidemill.site.nodes.evictions import Recancels
from tidemill.site.nodes.planning import (
    DYING_DEATHS,
    DYING_S_MIN,
    dying_us,
    just_ended,
    on_their_way,
    without_dying,
)
from tidemill.site.nodes.selection import PlacedDecision, Shape, with_names
from tidemill.site.state.site_state import Allocation

SECOND_US = 1_000_000
LIMITS = Limits(nodes_max=9, allocations_max=9, startup_s=10.0)


def machine(
    *, ours: list[str], state: NodeState = NodeState.BUSY, queued: int = 1, order: bool = True
) -> Snapshot:
    """Nodes n-a, n-b..., each with an allocation of ours, and waiting jobs of one node."""
    return Snapshot(
        at_s=1000.0,
        nodes=[
            Node(
                name=f"n-{name}",
                state=state if name == "a" else NodeState.BUSY,
                cores=4,
                memory_mb=1,
                cores_free=0,
            )
            for name in ours
        ],
        running=[
            Running(
                id=name,
                name=name,
                user="u",
                nodes=(f"n-{name}",),
                width=1,
                started_s=0,
                ends_s=9000,
                ours=True,
            )
            for name in ours
        ],
        queued=[Queued(id=f"j{k}", name="j", user="v", width=1, walltime_s=600) for k in range(queued)],
        is_order_known=order,
    )


def canceled_next(
    snapshot: Snapshot, gone: set[str], before: Snapshot | None = None
) -> tuple[list[str], Situation, Decision]:
    """What is canceled for the jobs that wait, after `gone` was. `before`: the snapshot before this one."""
    held = [
        Held(name=job.name, width=1, is_waiting=False, loss_s=30.0)
        for job in snapshot.running
        if job.name not in gone
    ]
    snapshot, ending = without_dying(snapshot, gone, just_ended(before, snapshot))
    work = Backlog(node_s=1e9, nodes_max=9, event_s=60.0)
    (pool,) = cut(snapshot, held, Terms(ending=ending), backlog=work, limits=LIMITS)
    situation = pool.situation
    decision = decide(situation, Policy.YIELD)
    choice = PlacedDecision(decision=decision, layout=layout_of(snapshot, pool))
    shape = Shape(pool="p", cores=4, memory_mb=1)
    named = with_names(shape, situation, choice=choice, starts_wait="")
    return named.cancel, situation, named.decision


@pytest.mark.parametrize("state", [NodeState.BUSY, NodeState.ENDING, NodeState.SHARED])
@pytest.mark.parametrize("order", [True, False])
def test_no_other_allocation_ends_for_a_job_whose_nodes_are_about_to_be_free(
    state: NodeState, order: bool
) -> None:
    seen = machine(ours=["a", "b", "c"], state=state, order=order)
    cancel, situation, decision = canceled_next(seen, {"a"})
    assert (cancel, decision.submit) == ([], [])
    assert (situation.idle, situation.ending, situation.nodes) == (0, 1, 3)
    assert decision.yields_to == ["j0"], "it waits for the node that Tidemill still has"


@pytest.mark.parametrize("state", [NodeState.BUSY, NodeState.ENDING, NodeState.SHARED])
@pytest.mark.parametrize("gone", [{"a", "b"}, {"b"}])
def test_a_node_whose_allocation_ended_between_two_queries_costs_no_other_one(
    state: NodeState, gone: set[str]
) -> None:
    """The reply with nodes, the older one, still shows it in use; the one with jobs shows no job there."""
    before = machine(ours=["a", "b", "c"], state=state)
    seen = msgspec.structs.replace(before, running=before.running[1:])
    cancel, situation, _ = canceled_next(seen, gone, before)
    assert (cancel, situation.ending, situation.nodes) == ([], len({"a", *gone}), 3)
    if gone == {"a", "b"}:
        jobs = [msgspec.structs.replace(job, width=2) for job in seen.queued]
        wide = msgspec.structs.replace(seen, queued=jobs)
        assert canceled_next(wide, gone, before)[0] == []
        assert canceled_next(wide, gone)[0] == ["c"], "as it would be without the snapshot before"


def test_an_idle_node_whose_allocation_has_ended_is_filled_at_once() -> None:
    before = machine(ours=["a", "b"], queued=0)
    idle = msgspec.structs.replace(before.nodes[0], state=NodeState.IDLE, cores_free=4)
    seen = msgspec.structs.replace(before, nodes=[idle, before.nodes[1]], running=before.running[1:])
    _, situation, decision = canceled_next(seen, set(), before)
    assert (situation.idle, situation.ending) == (1, 0)
    assert sum(each.count for each in decision.submit) == 1


def pool_after(seen: Snapshot, gone: set[str], *, windows_only: bool = False) -> Situation:
    snapshot, ending = without_dying(seen, gone)
    terms = Terms(ending=ending, windows_only=windows_only)
    (pool,) = cut(snapshot, [], terms, backlog=Backlog(node_s=1e9, nodes_max=9, event_s=60.0), limits=LIMITS)
    return pool.situation


def test_a_reservation_that_has_begun_on_ending_nodes_hides_no_idle_ones() -> None:
    seen = machine(ours=["a"], queued=0)
    seen = msgspec.structs.replace(
        seen,
        nodes=[*seen.nodes, Node(name="free", state=NodeState.IDLE, cores=4, memory_mb=1, cores_free=4)],
        reservations=[Reservation(name="r", nodes=("n-a",), start_s=0.0, end_s=9000.0)],
    )
    situation = pool_after(seen, {"a"})
    assert (situation.idle, situation.ending) == (1, 0)


def test_windows_are_those_of_idle_nodes_alone() -> None:
    seen = machine(ours=["a", "b"], queued=0)
    situation = pool_after(seen, {"a", "b"}, windows_only=True)
    assert (situation.idle, situation.ending, situation.windows) == (0, 2, [])


def test_a_second_job_gets_a_second_node() -> None:
    cancel, _, decision = canceled_next(machine(ours=["a", "b", "c"], queued=2), {"a"})
    assert len(cancel) == 1
    assert decision.yields_to == ["j0", "j1"]


def test_a_node_that_stays_in_other_hands_or_is_down_is_not_about_to_be_free() -> None:
    seen = machine(ours=["a", "b"], state=NodeState.AWAY)
    assert without_dying(seen, {"a"})[1] == frozenset()
    both = Running(id="r", name="r", user="v", nodes=("n-b",), width=1, started_s=0, ends_s=9000)
    shared = Snapshot(at_s=1.0, nodes=seen.nodes, running=[*seen.running, both], queued=[])
    assert without_dying(shared, {"b"})[1] == frozenset()


AT_US = 10_000 * SECOND_US


def canceled(name: str, at_us: int = AT_US, *, state: AllocationState = AllocationState.ACTIVE) -> Allocation:
    return Allocation(name=name, fleet="f", nodes=1, cores=4, state=state, intended_us=1, canceled_us=at_us)


def test_what_does_not_go_in_several_death_times_counts_like_a_regular_job() -> None:
    queued = canceled("q", state=AllocationState.QUEUED)
    for death_s in (5.0, 120.0):
        most_us = int(max(DYING_S_MIN, DYING_DEATHS * death_s) * SECOND_US)
        assert most_us >= 60 * SECOND_US, "an epilog takes a minute"
        both = [canceled("a"), queued]
        assert on_their_way(both, AT_US + most_us - 1, death_s=death_s) == ({"a", "q"}, set())
        assert on_their_way(both, AT_US + most_us, death_s=death_s) == (set(), {"a"})


def test_an_agent_that_begins_ends_no_others_for_a_job_that_the_last_one_released_nodes_for() -> None:
    living = [canceled("a"), canceled("b")]
    seen = machine(ours=["a", "b", "c", "d"], queued=2)
    recancels = Recancels(living)
    now_us = AT_US + 4 * SECOND_US
    gone, stuck = on_their_way(living, now_us, death_s=5.0)
    assert (canceled_next(seen, gone)[0], stuck) == ([], set())
    assert recancels.due(living, now_us, pause_us=dying_us(5.0)) == ["a", "b"], "were the cancels sent?"


def test_cancels_are_sent_again_until_they_are_confirmed_and_then_whenever_they_should_have_worked() -> None:
    pause_us = dying_us(5.0)
    recancels = Recancels([])
    living = [canceled("a"), msgspec.structs.replace(canceled("b"), canceled_us=0)]
    assert recancels.due(living, AT_US, pause_us=pause_us) == []
    recancels.sent(["a"], AT_US, is_confirmed=False)
    assert recancels.due(living, AT_US + 1, pause_us=pause_us) == ["a"]
    assert recancels.due(living, AT_US + 2, pause_us=pause_us) == ["a"]
    recancels.sent(["a"], AT_US + 3, is_confirmed=True)
    assert recancels.due(living, AT_US + pause_us, pause_us=pause_us) == []
    assert recancels.due(living, AT_US + 3 + pause_us, pause_us=pause_us) == ["a"]
    recancels.sent(["a"], AT_US + 3 + pause_us, is_confirmed=True)
    assert recancels.due(living, AT_US + 4 + pause_us, pause_us=pause_us) == []
    assert recancels.due(living[1:], AT_US + 9 * pause_us, pause_us=pause_us) == []


def test_nodes_that_are_about_to_be_free_are_not_filled_before() -> None:
    situation = Situation(
        now_s=0.0,
        nodes=4,
        idle=1,
        ending=3,
        busy=[],
        queue=[],
        outages=[],
        holdings=[],
        backlog=Backlog(node_s=1e9, nodes_max=9, event_s=60.0),
        limits=LIMITS,
    )
    for policy in (Policy.YIELD, Policy.CAPPED, Policy.PREEMPT, Policy.WINDOWS):
        found = decide(situation, policy)
        assert sum(each.width * each.count for each in found.submit) == 1, policy
        assert found.cancel == list[EndOrder]()
