"""What the broker decides, case by case."""

from __future__ import annotations

import msgspec
import pytest
from tests.effort import lines_run

from tidemill.harvest.plan.ours import EndOrder, Holding
from tidemill.harvest.plan.policies import POLICIES, Policy, decide
from tidemill.harvest.plan.profile import WIDTHS_MAX, ahead, play
from tidemill.harvest.plan.situation import Backlog, Busy, Limits, Outage, Situation, Submit, Waiting
from tidemill.harvest.plan.waves import SENTENCES, Binding, pieces

HOUR = 3600.0
LIMITS = Limits(nodes_max=10**6, allocations_max=10**6, startup_s=120.0, reservations=1)
SITUATION = Situation(
    now_s=0.0,
    nodes=100,
    idle=10,
    busy=[Busy(90, HOUR)],
    queue=[],
    outages=[],
    holdings=[],
    backlog=Backlog(node_s=1e12, nodes_max=10**6, event_s=300.0),
    limits=LIMITS,
)


def situation(**changes: object) -> Situation:
    """Ten idle nodes, others busy for an hour, with changes."""
    return msgspec.structs.replace(SITUATION, **changes)


def limits(**changes: object) -> Limits:
    """The limits with changes."""
    return msgspec.structs.replace(LIMITS, **changes)


def held(key: int, count: int, *, ends_s: float = 80000.0, loss_s: float = 0.0, width: int = 1) -> Holding:
    """Running allocations of ours."""
    return Holding(
        key=key, width=width, count=count, waiting=False, started_s=-500.0, ends_s=ends_s, loss_s=loss_s
    )


def test_idle_nodes_are_filled_in_one_submission() -> None:
    assert decide(situation(), Policy.YIELD).submit == [Submit(1, 10, 86400.0)]


def test_a_job_that_could_start_gets_exactly_the_nodes_it_lacks_from_the_cheapest_of_ours() -> None:
    found = decide(
        situation(
            busy=[Busy(60, HOUR)],
            holdings=[held(1, 10, loss_s=200), held(2, 20, loss_s=10)],
            queue=[Waiting("a", 25, HOUR)],
        ),
        Policy.YIELD,
    )

    assert found.cancel == [EndOrder(2, 15)]
    assert found.yields_to == ["a"]
    assert found.submit == []


def test_nothing_is_cancelled_for_a_job_that_could_not_start_without_us_either() -> None:
    found = decide(
        situation(busy=[Busy(60, HOUR)], holdings=[held(1, 30)], queue=[Waiting("a", 50, HOUR)]), Policy.YIELD
    )

    assert found.cancel == []
    assert found.yields_to == []


def test_ours_end_before_the_planned_start_of_the_first_blocked_job() -> None:
    found = decide(
        situation(busy=[Busy(60, HOUR)], holdings=[held(1, 30)], queue=[Waiting("a", 95, HOUR)]), Policy.YIELD
    )

    assert found.shorten == [EndOrder(1, 25, HOUR - LIMITS.death_s)]  # 5 may stay beside it
    assert [(each.count, each.walltime_s) for each in found.submit] == [(10, 3540.0)]


def test_a_job_that_backfilling_would_start_gets_nodes_too() -> None:
    queue = [Waiting("head", 100, HOUR), Waiting("short", 30, HOUR / 2), Waiting("long", 5, 2 * HOUR)]
    found = decide(situation(busy=[Busy(60, HOUR)], holdings=[held(1, 30)], queue=queue), Policy.YIELD)

    assert found.yields_to == ["short"]
    assert found.cancel == [EndOrder(1, 20)]


def test_where_the_order_is_a_guess_every_job_that_could_start_gets_its_nodes() -> None:
    """A guess has `head` first, which does not fit; a scheduler that reserves nothing starts `long` or `both`."""
    queue = [Waiting("head", 100, HOUR), Waiting("long", 15, 2 * HOUR), Waiting("both", 25, HOUR / 2)]
    known = situation(busy=[Busy(60, HOUR)], holdings=[held(1, 30)], queue=queue)
    assert decide(known, Policy.YIELD).yields_to == ["both"]
    found = decide(msgspec.structs.replace(known, is_order_known=False), Policy.YIELD)
    assert found.yields_to == ["long", "both"]
    assert found.cancel == [EndOrder(1, 30)]
    assert found.submit == []


def test_where_the_order_is_a_guess_only_those_wait_for_us_that_our_nodes_are_enough_for() -> None:
    queue = [Waiting(str(k), 1, HOUR) for k in range(100)]
    none = decide(situation(idle=3, busy=[Busy(97, HOUR)], queue=queue, is_order_known=False), Policy.YIELD)
    assert (none.ready, none.yields_to, none.cancel) == (["0", "1", "2"], [], [])
    some = situation(idle=3, busy=[Busy(95, HOUR)], holdings=[held(1, 2)], queue=queue, is_order_known=False)
    found = decide(some, Policy.YIELD)
    assert (found.ready, found.yields_to) == (["0", "1", "2"], ["3", "4"])
    assert found.cancel == [EndOrder(1, 2)]
    wide = msgspec.structs.replace(some, queue=[Waiting("a", 3, HOUR), Waiting("b", 4, HOUR)])
    found = decide(wide, Policy.YIELD)
    assert (found.ready, found.yields_to) == (["a"], ["b"]), "who waits for nodes that are released is named"
    assert found.cancel == [EndOrder(1, 2)]


def test_where_the_order_is_a_guess_a_blocked_job_is_planned_as_if_it_were_the_first() -> None:
    """Were it planned behind `long`, Tidemill would stay for two hours, and a scheduler that has it first would plan
    it that late, and start other long jobs ahead of it."""
    queue = [Waiting("long", 5, 2 * HOUR), Waiting("head", 96, HOUR)]
    here = situation(idle=0, busy=[Busy(60, HOUR)], holdings=[held(1, 40)], queue=queue, is_order_known=False)
    found = decide(here, Policy.YIELD)
    assert found.yields_to == ["long"]
    assert found.cancel == [EndOrder(1, 5)]
    assert found.shorten == [EndOrder(1, 35, HOUR - LIMITS.death_s)]


def test_where_the_order_is_a_guess_many_widths_are_planned_in_groups_none_too_late() -> None:
    queue = [Waiting(str(width), width, HOUR) for width in range(1001, 2001)]
    profile = ahead(0.0, 1000, [Busy(1, 60.0 * k) for k in range(1, 1001)], [])
    planned = play(profile, queue, 1, is_order_known=False).planned
    assert len(planned) <= WIDTHS_MAX
    free = dict(zip(profile.times, profile.free, strict=True))
    for job in queue:
        at = 60.0 * (job.width - 1000)
        assert free[at] <= 1000 + at / 60.0 - job.width


def test_an_outage_is_neither_filled_nor_run_into() -> None:
    found = decide(
        situation(holdings=[held(1, 40)], busy=[Busy(50, HOUR)], outages=[Outage(100, 2000.0, 9000.0)]),
        Policy.YIELD,
    )

    assert found.shorten == [EndOrder(1, 40, 1995.0)]
    assert found.submit == [Submit(1, 10, 1920.0)]  # a cycle and its death before the outage


def test_a_gap_that_does_not_pay_back_a_start_stays_empty() -> None:
    found = decide(situation(outages=[Outage(100, 500.0, 9000.0)]), Policy.YIELD)

    assert found.submit == []
    assert found.waits_for == Binding.PAYBACK


def test_allocations_that_wait_count_and_go_when_they_no_longer_fit() -> None:
    waiting = Holding(key=7, width=1, count=10, waiting=True, started_s=0.0, ends_s=HOUR)
    filled = decide(situation(holdings=[waiting]), Policy.YIELD)
    in_the_way = decide(situation(holdings=[waiting], queue=[Waiting("a", 6, HOUR)]), Policy.YIELD)

    assert (filled.submit, filled.cancel) == ([], [])
    assert filled.waits_for == Binding.OURS, "nobody else is about to use the idle nodes"
    assert in_the_way.cancel == [EndOrder(7, 6)]


@pytest.mark.parametrize(
    ("changes", "count", "binding"),
    [
        ({"limits": limits(nodes_max=4)}, 4, Binding.NODES),
        ({"limits": limits(allocations_max=3)}, 3, Binding.ALLOCATIONS),
        ({"limits": limits(starts_left=2)}, 2, Binding.STARTS),
        ({"limits": limits(submits_max=5)}, 5, Binding.SUBMITS),
        ({"limits": limits(waiting_per_idle=0.6)}, 6, Binding.WAITING),
        ({"limits": limits(node_s_left=3 * 500.0)}, 3, Binding.GRANT),
        ({"backlog": Backlog(node_s=1e9, nodes_max=1, event_s=300.0)}, 1, Binding.BACKLOG),
        ({"backlog": Backlog(node_s=720.0, nodes_max=9, event_s=300.0)}, 2, Binding.BACKLOG),
        ({"limits": limits(width_min=32, width_max=32)}, 0, Binding.WIDTH),
        ({"idle": 0, "busy": [Busy(100, HOUR)]}, 0, Binding.IDLE),
        ({"queue": [Waiting("a", 10, HOUR)]}, 0, Binding.REGULAR),
        ({"knows_plan": False, "are_others_hidden": True}, 0, Binding.HIDDEN),
        ({"knows_plan": False}, 0, Binding.REGULAR),
        ({"limits": limits(closed_by="scheduler")}, 0, Binding.SCHEDULER),
        ({"limits": limits(closed_by="closed"), "idle": 0, "busy": [Busy(100, HOUR)]}, 0, Binding.CLOSED),
    ],
)
def test_every_bound_holds_and_is_named(changes: dict[str, object], count: int, binding: Binding) -> None:
    found = decide(situation(**changes), Policy.YIELD)

    assert sum(each.count * each.width for each in found.submit) == count
    assert found.waits_for == binding
    assert SENTENCES[binding] in found.why


def test_where_the_plan_is_hidden_only_windows_are_used_and_nothing_is_given_back() -> None:
    found = decide(
        situation(knows_plan=False, windows=[(4, 2 * HOUR), (8, HOUR)], holdings=[held(1, 5)]), Policy.YIELD
    )

    assert (found.cancel, found.shorten) == ([], [])
    assert [(each.count, each.walltime_s) for each in found.submit] == [(4, 7140.0), (4, 3540.0)]


def test_too_few_allocations_become_wide_and_most_are_kept_for_later_gaps() -> None:
    assert pieces(100, 1000, 1, 1) == [(1, 100)]
    assert pieces(100, 20, 1, 100) == [(50, 2)]
    assert pieces(100, 68, 1, 100) == [(2, 50)]
    assert pieces(100, 1, 1, 100) == [(100, 1)]
    assert pieces(100, 1000, 32, 32) == [(32, 3)]
    assert pieces(31, 1000, 32, 32) == []


def test_a_narrow_allocation_goes_when_a_wide_one_in_its_place_pays() -> None:
    few = limits(allocations_max=2, width_max=100)
    holdings = [held(1, 1, width=2, loss_s=100), held(2, 1, width=50)]
    wide_gap = situation(idle=40, busy=[Busy(8, HOUR)], holdings=holdings, limits=few)
    small_gap = situation(idle=1, busy=[Busy(47, HOUR)], holdings=holdings, limits=few)

    assert decide(wide_gap, Policy.YIELD).cancel == [EndOrder(1, 1)]
    assert decide(wide_gap, Policy.YIELD).waits_for == Binding.ALLOCATIONS
    assert decide(small_gap, Policy.YIELD).cancel == [EndOrder(1, 1)]
    assert (
        decide(
            msgspec.structs.replace(small_gap, busy=[Busy(47, 60.0)], queue=[Waiting("a", 100, HOUR)]),
            Policy.YIELD,
        ).cancel
        == []
    )


def test_a_rest_that_is_too_narrow_for_the_longest_gap_does_not_leave_the_others_empty() -> None:
    found = decide(
        situation(
            idle=64,
            busy=[Busy(36, HOUR)],
            queue=[Waiting("a", 90, HOUR)],
            limits=limits(width_min=32, width_max=32),
        ),
        Policy.YIELD,
    )

    assert [(each.width, each.count) for each in found.submit] == [(32, 2)]


def test_wide_allocations_are_given_back_with_as_little_surplus_as_possible() -> None:
    found = decide(
        situation(
            idle=0,
            busy=[Busy(52, HOUR)],
            holdings=[held(1, 1, width=16), held(2, 1, width=32, loss_s=320)],
            queue=[Waiting("a", 30, HOUR)],
        ),
        Policy.YIELD,
    )

    assert found.cancel == [EndOrder(2, 1)]


def test_policies_that_never_yield_cancel_nothing_that_runs() -> None:
    crowded = situation(busy=[Busy(60, HOUR)], holdings=[held(1, 30)], queue=[Waiting("a", 25, HOUR)])

    for policy in (Policy.CAPPED, Policy.TITAN, Policy.WINDOWS, Policy.PREEMPT, Policy.DEMAND):
        found = decide(crowded, policy)
        assert (found.cancel, found.shorten) == ([], []), policy


def test_a_titan_broker_submits_one_fixed_job_as_wide_as_the_backfill() -> None:
    big = situation(nodes=18_688, idle=1000, busy=[Busy(17_688, HOUR)])

    assert [(each.width, each.walltime_s) for each in decide(big, Policy.TITAN).submit] == [
        (300, 6120.0), (300, 6120.0), (300, 6120.0), (100, 6120.0)
    ]  # fmt: skip


def test_every_policy_and_every_binding_has_its_entry() -> None:
    assert set(POLICIES) == set(Policy)
    assert set(SENTENCES) == set(Binding)


def test_a_large_machine_with_a_long_queue_is_decided_on_with_bounded_work() -> None:
    crowded = Situation(
        now_s=0.0,
        nodes=20_000,
        idle=500,
        busy=[Busy(46, 100.0 * k + 60) for k in range(250)],
        queue=[Waiting(str(k), 10 + k % 900, 60.0 * (1 + k % 1440)) for k in range(20_000)],
        outages=[Outage(20_000, 5e5, 6e5)],
        holdings=[held(k, 40, ends_s=500.0 * k + 100, loss_s=float(k % 300)) for k in range(200)],
        backlog=Backlog(node_s=1e12, nodes_max=10**6, event_s=300.0),
        limits=limits(reservations=100),
    )
    assert lines_run(lambda: decide(crowded, Policy.YIELD)) < 600_000  # 325,501 with Python 3.11, run in 5 ms


def test_a_queue_in_an_unknown_order_costs_a_few_lines_a_job() -> None:
    """It took a minute: each job that could start was taken off each step of the profile, and looked for in a list."""
    crowded = Situation(
        now_s=0.0,
        nodes=8_000,
        idle=50,
        busy=[Busy(1, 60.0 * k + 60) for k in range(1_950)],
        queue=[Waiting(str(k), 1 + k % 64, 60.0 * (1 + k % 86_400)) for k in range(100_000)],
        outages=[],
        holdings=[held(k, 40, ends_s=500.0 * k + 100, loss_s=float(k)) for k in range(150)],
        backlog=Backlog(node_s=1e12, nodes_max=10**6, event_s=300.0),
        limits=limits(reservations=100),
        is_order_known=False,
    )
    assert lines_run(lambda: decide(crowded, Policy.YIELD)) < 2_000_000  # run in 0.1 s


def test_nodes_that_the_scheduler_has_planned_without_a_gap_are_left_alone() -> None:
    assert decide(situation(planned_gaps=None), Policy.YIELD).submit == [Submit(1, 10, 86400.0)]
    assert decide(situation(planned_gaps=[(4, HOUR)]), Policy.YIELD).submit == [Submit(1, 4, 3540.0)]
    none = decide(situation(planned_gaps=[]), Policy.YIELD)
    assert (none.submit, none.waits_for) == ([], Binding.REGULAR.value)
