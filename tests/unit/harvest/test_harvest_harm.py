"""Who waited because of us: times computed by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.harvest.account.broker_log import PlanMade, RegularStarted, decode, encode
from tidemill.harvest.account.harm import (
    LATENCIES_MIN,
    PLANS_MAX,
    OwnNodes,
    Totals,
    Tracker,
    Yielded,
    kind_of,
    wait_of,
)
from tidemill.harvest.plan.ours import Holding
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Decision, Limits, Situation, Waiting
from tidemill.model.figures.job_classes import ClassTotals, SizeAndLength
from tidemill.model.machine import Node, NodeState, Queued, Running, Snapshot

DAY_S = 20_000 * 86400.0  #: midnight


def queued(job: str, *, width: int = 4, submitted_s: float | None = DAY_S) -> Queued:
    return Queued(id=job, name="x", user="ann", width=width, walltime_s=600, submitted_s=submitted_s)


def running(job: str, started_s: float, **fields: Any) -> Running:
    told = {"name": "x", "user": "ann", "nodes": (), "width": 4, "ends_s": started_s + 600}
    return Running(id=job, started_s=started_s, **{**told, **fields})


def machine(at_s: float, *jobs: Queued | Running, hidden: list[str] | None = None) -> Snapshot:
    return Snapshot(
        at_s=at_s,
        nodes=[],
        running=[job for job in jobs if isinstance(job, Running)],
        queued=[job for job in jobs if isinstance(job, Queued)],
        hidden=hidden or [],
    )


def node(name: str) -> Node:
    return Node(name=name, state=NodeState.BUSY, cores=64, memory_mb=1, cores_free=0)


def yields(
    plan: str, snapshot: Snapshot, *jobs: str, idle: int = 0, ready: tuple[str, ...] = ()
) -> list[Yielded]:
    situation = Situation(
        now_s=snapshot.at_s,
        nodes=16,
        idle=idle,
        busy=[],
        queue=[Waiting(job.id, job.width, job.walltime_s) for job in snapshot.queued],
        outages=[],
        holdings=[],
        backlog=Backlog(node_s=0, nodes_max=0, event_s=1),
        limits=Limits(nodes_max=0, allocations_max=0),
    )
    return [Yielded(plan, situation, Decision(yields_to=list(jobs), ready=list(ready)))]


def looked(*, poll_s: float = 30) -> Tracker:
    tracker = Tracker(poll_s)
    assert tracker.on_poll(machine(DAY_S, running("old", DAY_S - 50)), []) == []
    return tracker


def test_what_stress_tests_stop_by_grows_while_a_job_waits_and_stays_when_it_has_started() -> None:
    tracker = looked()
    assert tracker.share_s == 0
    first = machine(DAY_S + 30, queued("7", submitted_s=DAY_S + 20))
    tracker.on_poll(first, yields("e1-4", first, "7"))
    assert tracker.share_s == 10
    second = machine(DAY_S + 60, queued("7", submitted_s=DAY_S + 20))
    tracker.on_poll(second, yields("e1-5", second, "7"))
    assert tracker.share_s == 40
    tracker.on_poll(machine(DAY_S + 90, running("7", DAY_S + 65)), [])
    assert tracker.share_s == 45
    tracker.on_poll(machine(DAY_S + 120, running("7", DAY_S + 65)), [])
    assert tracker.share_s == 45


def test_a_job_that_never_stood_behind_us_has_no_share() -> None:
    tracker = looked()
    now = machine(DAY_S + 30, running("old", DAY_S - 50), running("7", DAY_S + 20, submitted_s=DAY_S + 10))
    (record,) = tracker.on_poll(now, [])

    assert (record.id, record.share_s, record.could_start_s, record.plans) == ("7", 0.0, None, [])
    assert (record.submitted_s, record.started_s, record.uncertainty_s) == (DAY_S + 10, DAY_S + 20, 30)
    assert tracker.on_poll(now, []) == []
    assert tracker.day(now.at_s) == Totals(jobs=1, wait_s=10)


def test_the_share_runs_from_submission_to_start() -> None:
    tracker = looked()
    first = machine(DAY_S + 30, queued("7", submitted_s=DAY_S + 20))
    assert tracker.on_poll(first, yields("e1-4", first, "7")) == []
    assert tracker.waiting == 1
    (record,) = tracker.on_poll(machine(DAY_S + 60, running("7", DAY_S + 38)), [])

    assert (record.could_start_s, record.share_s, record.uncertainty_s) == (DAY_S + 20, 18, 10)
    assert record.plans == ["e1-4"]
    assert record.submitted_s == DAY_S + 20
    assert decode(encode(record)) == record
    assert tracker.waiting == 0
    assert tracker.day(DAY_S + 90) == Totals(
        jobs=1, delayed=1, share_s=18, worst_s=18, worst_id="7", share_high_s=18, wait_s=18
    )
    assert tracker.day(DAY_S + 86400) == Totals()


def test_totals_of_a_day_are_kept_by_share_of_the_machine_and_requested_walltime() -> None:
    nodes = [node(f"n{k}") for k in range(128)]
    tracker = looked()
    first = msgspec.structs.replace(
        machine(DAY_S + 30, queued("7", width=2, submitted_s=DAY_S + 20)), nodes=nodes
    )
    tracker.on_poll(first, yields("e1-4", first, "7"))
    started = [running("7", DAY_S + 38, width=2), running("8", DAY_S + 50, width=128, ends_s=DAY_S + 90_000)]
    later = msgspec.structs.replace(machine(DAY_S + 60, *started), nodes=nodes)
    records = tracker.on_poll(later, [])

    assert [(each.limit_s, each.nodes) for each in records] == [(600, 128), (89_950, 128)]
    assert tracker.day_classes(DAY_S + 60) == {
        SizeAndLength("1/64", "1h"): ClassTotals(jobs=1, delayed=1, wait_s=18, share_s=18),
        SizeAndLength("1", "longer"): ClassTotals(jobs=1),
    }
    assert tracker.day_classes(DAY_S + 86400) == {}

    again = Tracker(30)
    again.restore(records)
    assert again.day_classes(DAY_S) == tracker.day_classes(DAY_S)


def test_a_job_that_leaves_unseen_has_the_walltime_that_it_asked_for() -> None:
    tracker = looked()
    first = machine(DAY_S + 30, queued("7", submitted_s=DAY_S + 30))
    tracker.on_poll(first, yields("e1-4", first, "7"))
    (record,) = tracker.on_poll(machine(DAY_S + 60), [])
    assert record.limit_s == 600


def test_totals_of_old_days_are_forgotten() -> None:
    tracker = looked()
    for day in range(9):
        at_s = DAY_S + day * 86400 + 60
        tracker.on_poll(machine(at_s, running(f"j{day}", at_s - 5)), [])
    assert tracker.day(DAY_S + 60) == Totals()
    assert tracker.day(DAY_S + 8 * 86400).jobs == 1


def test_a_job_that_waited_before_could_start_about_half_an_interval_ago() -> None:
    tracker = looked()
    first = machine(DAY_S + 30, queued("7", submitted_s=DAY_S - 900))
    tracker.on_poll(first, yields("e1-4", first, "7"))
    (record,) = tracker.on_poll(machine(DAY_S + 60, running("7", DAY_S + 38)), [])
    assert (record.could_start_s, record.share_s, record.uncertainty_s) == (DAY_S + 15, 23, 30)


def test_waiting_on_free_nodes_is_the_schedulers() -> None:
    tracker = looked()
    now = machine(DAY_S + 30, queued("7", submitted_s=DAY_S + 30))
    tracker.on_poll(now, yields("e1-1", now, "7"))
    for at_s in (60, 90):
        now = machine(DAY_S + at_s, queued("7", submitted_s=DAY_S + 30))
        tracker.on_poll(now, yields("", now, idle=4))
    (record,) = tracker.on_poll(machine(DAY_S + 120, running("7", DAY_S + 95)), [])
    assert (record.share_s, record.plans) == (15, ["e1-1"])  # the nodes were free at 60, and were not at 30
    assert (record.share_low_s, record.share_high_s) == (0, 30)


def test_nodes_that_others_took_afterwards_are_no_more_ours() -> None:
    tracker = looked()
    for at_s, blocked, idle in ((30, ["7"], 0), (60, [], 4), (90, [], 0)):
        now = machine(DAY_S + at_s, queued("7", submitted_s=DAY_S + 30))
        tracker.on_poll(now, yields("e1-1", now, *blocked, idle=idle))
    (record,) = tracker.on_poll(machine(DAY_S + 120, running("7", DAY_S + 110)), [])
    assert (record.share_low_s, record.share_s, record.share_high_s) == (0, 15, 30)


def share_of(
    polls: int, *, jobs: int, held: list[int], ending: list[int], idle: int = 0
) -> tuple[float, int]:
    """Our part of the waits of `jobs` jobs of one node after polls of 30 s in which we hold so many nodes, and so many
    of ours are about to be free, on a machine that does not show its order; and how many jobs we yielded to."""
    tracker = looked()
    seen: set[str] = set()
    for poll in range(polls):
        ours, dying = (nodes[poll] if poll < len(nodes) else 0 for nodes in (held, ending))
        holding = Holding(
            key=1, width=1, count=ours, waiting=False, started_s=DAY_S - 900, ends_s=DAY_S + 9e4
        )
        now = machine(
            DAY_S + 30 * (poll + 1), *(queued(str(k), width=1, submitted_s=DAY_S) for k in range(jobs))
        )
        (bare,) = yields("", now, idle=idle)
        situation = msgspec.structs.replace(
            bare.situation, holdings=[holding] if ours else [], ending=dying, is_order_known=False
        )
        decision = decide(situation, Policy.YIELD)
        seen.update(decision.yields_to)
        tracker.on_poll(now, [Yielded("e1-1" if decision.yields_to else "", situation, decision)])
    return tracker.share_s, len(seen)


def test_who_holds_nothing_delays_nobody_on_a_machine_that_does_not_show_its_order() -> None:
    assert share_of(60, jobs=100, held=[], ending=[], idle=3) == (0.0, 0)


def test_as_many_jobs_wait_for_us_as_our_nodes_are_enough_for_until_these_are_free() -> None:
    """Before, one node of ours was 178,500 s for all 100 jobs behind it, until each of them started."""
    assert share_of(60, jobs=100, held=[1], ending=[]) == (
        30.0,
        1,
    )  # half a poll before, and half until it is seen
    assert share_of(60, jobs=100, held=[1], ending=[0, 1, 1]) == (90.0, 1)
    assert share_of(60, jobs=100, held=[5], ending=[0, 5]) == (5 * 60.0, 5)


def test_standing_in_the_way_again_is_ours_again() -> None:
    tracker = looked()
    for at_s, blocked, idle in ((30, ["7"], 0), (60, [], 4), (90, ["7"], 3)):
        now = machine(DAY_S + at_s, queued("7", submitted_s=DAY_S + 30))
        tracker.on_poll(now, yields(f"e1-{at_s}", now, *blocked, idle=idle))
    (record,) = tracker.on_poll(machine(DAY_S + 120, running("7", DAY_S + 110)), [])
    # until between the looks at 30 and 60, and again from between those at 60 and 90
    assert (record.share_s, record.plans) == (50, ["e1-30", "e1-90"])
    assert (record.share_low_s, record.share_high_s) == (0, 80)


def test_what_the_scheduler_would_not_start_without_us_either_does_not_wait_for_us() -> None:
    tracker = looked()
    for at_s, blocked in ((30, ["7"]), (60, []), (90, [])):
        now = machine(DAY_S + at_s, queued("7", submitted_s=DAY_S + 30))
        plans = yields(f"e1-{at_s}", now, *blocked)
        if not blocked:  # it is in no queue any more: `harvest.snapshot.foresight` has made it an outage
            plans = [
                msgspec.structs.replace(each, situation=msgspec.structs.replace(each.situation, queue=[]))
                for each in plans
            ]
        tracker.on_poll(now, plans)
    (record,) = tracker.on_poll(machine(DAY_S + 120, running("7", DAY_S + 110)), [])
    assert (record.share_low_s, record.share_s, record.share_high_s) == (0, 15, 30)


def test_idle_nodes_of_another_pool_are_enough() -> None:
    tracker = looked()
    now = machine(DAY_S + 30, queued("7", submitted_s=DAY_S + 20))
    tracker.on_poll(now, [*yields("e1-1", now, "7"), *yields("e1-2", now, idle=4, ready=("7",))])
    (record,) = tracker.on_poll(machine(DAY_S + 60, running("7", DAY_S + 55)), [])
    assert (record.share_low_s, record.share_s, record.share_high_s) == (0, 5, 10)


def test_an_idle_node_is_enough_for_the_first_job_alone() -> None:
    """Before, one idle node anywhere freed all jobs of one node from having waited for Tidemill."""
    tracker = looked()
    wishes = [queued(name, width=1, submitted_s=DAY_S + 20) for name in ("7", "8", "9")]
    now = machine(DAY_S + 30, *wishes)
    tracker.on_poll(now, [*yields("e1-1", now, "8", "9"), *yields("e1-2", now, idle=1, ready=("7",))])
    started = [running(name, DAY_S + 50, width=1, submitted_s=DAY_S + 20) for name in ("8", "9")]
    records = tracker.on_poll(machine(DAY_S + 60, *started), [])
    assert [(each.id, each.share_s) for each in records] == [("8", 30), ("9", 30)]


def test_a_part_of_a_job_that_idle_nodes_are_enough_for_is_not_the_job() -> None:
    """Of four nodes each of two pools gives two; those of one are idle, the others are Tidemill's."""
    tracker = looked()
    now = machine(DAY_S + 30, queued("7", width=4, submitted_s=DAY_S + 20))
    (mine,) = yields("e1-1", now, "7")
    (idle,) = yields("e1-2", now, idle=2, ready=("7",))
    part = [msgspec.structs.replace(job, width=2) for job in mine.situation.queue]
    plans = [
        msgspec.structs.replace(each, situation=msgspec.structs.replace(each.situation, queue=part))
        for each in (mine, idle)
    ]
    tracker.on_poll(now, plans)
    (record,) = tracker.on_poll(machine(DAY_S + 60, running("7", DAY_S + 55)), [])
    assert record.share_s == 35


def among(*names: str, at_s: float, jobs: tuple[Running | Queued, ...] = ()) -> Snapshot:
    """Nodes of 8 cores, those that a job has busy, the others idle."""
    taken = {name for job in jobs if isinstance(job, Running) for name in job.nodes}
    nodes = [
        msgspec.structs.replace(
            node(name), cores=8, state=NodeState.BUSY if name in taken else NodeState.IDLE
        )
        for name in names
    ]
    return msgspec.structs.replace(machine(at_s, *jobs), nodes=nodes)


def small(job: str, node_name: str, *, submitted_s: float, started_s: float) -> Running:
    """A job of 5 of 8 cores."""
    told = {"width": 1, "nodes": (node_name,), "cores": 5, "whole": False, "submitted_s": submitted_s}
    return running(job, started_s, **told)


def ours(node_name: str) -> Running:
    return running(node_name, DAY_S - 100, nodes=(node_name,), width=1, ours=True, name="a")


def held(*names: str) -> OwnNodes:
    return OwnNodes(frozenset(names))


def test_a_job_that_no_poll_saw_wait_and_that_starts_on_a_node_of_tidemill_waited_for_it() -> None:
    """A job of 5 cores comes while Tidemill holds all nodes, and these are released before the next poll. Before, such
    a job had no part, and its wait counted as what the scheduler takes."""
    tracker = Tracker(30)
    tracker.on_poll(among("n1", "n2", at_s=DAY_S, jobs=(ours("n1"), ours("n2"))), [], held("n1", "n2"))
    later = among(
        "n1", "n2", at_s=DAY_S + 30,
        jobs=(small("7", "n1", submitted_s=DAY_S + 5, started_s=DAY_S + 16),
              small("8", "n2", submitted_s=DAY_S + 20, started_s=DAY_S + 21)),
    )  # fmt: skip
    first, second = tracker.on_poll(later, [], OwnNodes(released={"n1": DAY_S + 14, "n2": DAY_S + 14}))
    assert (first.could_start_s, first.share_low_s, first.share_s, first.share_high_s) == (
        DAY_S + 5,
        0,
        9,
        11,
    )
    assert (second.could_start_s, second.share_s, second.share_high_s) == (None, 0, 1), "it came after that"
    assert tracker.day(DAY_S).delayed == 1
    assert tracker.latency_s is None


def test_without_the_time_of_a_release_half_of_such_a_wait_is_likely_or_all_but_the_schedulers() -> None:
    for known, share_s in ((0, 5.5), (LATENCIES_MIN, 9.0)):
        tracker = Tracker(30)
        at_s = DAY_S
        tracker.on_poll(among("n1", "n2", at_s=at_s), [])
        for number in range(known):
            at_s += 30
            quick = small(f"f{number}", "n2", submitted_s=at_s - 10, started_s=at_s - 8)
            tracker.on_poll(among("n1", "n2", at_s=at_s, jobs=(quick,)), [])
            at_s += 30
            tracker.on_poll(among("n1", "n2", at_s=at_s, jobs=(ours("n1"),)), [], held("n1"))
        if not known:
            tracker.on_poll(among("n1", "n2", at_s=at_s, jobs=(ours("n1"),)), [], held("n1"))
        job = small("7", "n1", submitted_s=at_s + 5, started_s=at_s + 16)
        (record,) = tracker.on_poll(among("n1", "n2", at_s=at_s + 30, jobs=(job,)), [])
        assert (record.share_s, record.share_high_s) == (share_s, 11)


def test_a_job_that_waited_at_the_last_poll_and_was_not_yielded_to_has_an_upper_bound_alone() -> None:
    """Its start was planned, and Tidemill made way for it in time."""
    tracker = Tracker(30)
    tracker.on_poll(among("n1", at_s=DAY_S, jobs=(ours("n1"),)), [], held("n1"))
    job = small("7", "n1", submitted_s=DAY_S - 500, started_s=DAY_S + 16)
    (record,) = tracker.on_poll(
        among("n1", at_s=DAY_S + 30, jobs=(job,)), [], OwnNodes(released={"n1": DAY_S + 14})
    )
    assert (record.could_start_s, record.share_s, record.share_high_s) == (None, 0, 16)


def test_waits_for_nodes_of_others_are_not_taken_for_the_schedulers() -> None:
    """Before, they were, also over the long pauses of a site without work: and later parts were shorter by that."""
    tracker = Tracker(30)
    at_s = DAY_S
    for number in range(LATENCIES_MIN):
        other = small(f"o{number}", "n1", submitted_s=at_s - 900, started_s=at_s - 800)
        tracker.on_poll(among("n1", "n2", at_s=at_s, jobs=(other,)), [])
        at_s += 30
        after = small(f"p{number}", "n1", submitted_s=at_s - 29, started_s=at_s - 1)
        tracker.on_poll(among("n1", "n2", at_s=at_s, jobs=(after,)), [])
        at_s += 300
        rare = small(f"r{number}", "n2", submitted_s=at_s - 200, started_s=at_s - 1)
        tracker.on_poll(among("n1", "n2", at_s=at_s, jobs=(rare,)), [])
        at_s += 30
    assert tracker.latency_s is None


def test_a_job_that_leaves_unseen_counts_until_it_was_last_seen() -> None:
    """Before, it counted until the poll that missed it: more than it can have waited, if it had started meanwhile."""
    tracker = looked()
    first = machine(DAY_S + 30, queued("7", submitted_s=DAY_S + 30))
    tracker.on_poll(first, yields("e1-4", first, "7"))
    second = machine(DAY_S + 60, queued("7", submitted_s=DAY_S + 30))
    tracker.on_poll(second, yields("e1-5", second, "7"))
    (record,) = tracker.on_poll(machine(DAY_S + 90), [])
    assert (record.started_s, record.share_s, record.uncertainty_s) == (None, 30, 30)
    assert (record.share_low_s, record.share_high_s, wait_of(record)) == (30, 60, 30)
    assert (record.user, record.width) == ("ann", 4)


def test_our_own_allocations_are_nobody_whom_we_delay() -> None:
    tracker = looked()
    assert tracker.on_poll(machine(DAY_S + 30, running("a", DAY_S + 20, ours=True)), []) == []


def test_a_snapshot_that_hides_others_says_nothing_about_them() -> None:
    tracker = looked()
    first = machine(DAY_S + 30, queued("7", submitted_s=DAY_S + 30))
    tracker.on_poll(first, yields("e1-4", first, "7"))
    assert tracker.on_poll(machine(DAY_S + 60, hidden=["others' jobs"]), []) == []
    (record,) = tracker.on_poll(machine(DAY_S + 90, running("7", DAY_S + 50)), [])
    assert record.share_s == 20


def test_the_next_agent_goes_on_with_what_was_written() -> None:
    plan = PlanMade(
        at_s=DAY_S + 31,
        plan="e1-4",
        pool="batch/64c",
        snapshot_s=DAY_S + 30,
        nodes=16,
        idle=0,
        busy=12,
        held=4,
        waiting=0,
        queue=2,
        yields_to=["7", "8"],
    )
    began = RegularStarted(
        at_s=DAY_S + 60,
        id="8",
        user="ann",
        width=1,
        submitted_s=None,
        could_start_s=DAY_S + 30,
        started_s=DAY_S + 35,
        share_s=5,
        uncertainty_s=30,
    )
    tracker = Tracker(30)
    tracker.restore([plan, msgspec.structs.replace(plan, plan="e1-5"), began])
    assert tracker.waiting == 1
    assert tracker.day(DAY_S) == Totals(
        jobs=1, delayed=1, share_s=5, worst_s=5, worst_id="8", share_high_s=5, wait_s=5
    )

    (record,) = tracker.on_poll(machine(DAY_S + 90, running("7", DAY_S + 70), running("9", DAY_S + 80)), [])
    assert (record.id, record.share_s, record.plans) == ("7", 40, ["e1-4", "e1-5"])


def test_an_agent_that_was_away_for_long_does_not_charge_the_time_in_which_nobody_looked() -> None:
    plan = PlanMade(
        at_s=DAY_S + 31, plan="e1-4", pool="batch/64c", snapshot_s=DAY_S + 30, nodes=16, idle=0, busy=12, held=4,
        waiting=0, queue=2, yields_to=["7", "8"],
    )  # fmt: skip
    tracker = Tracker(30)
    tracker.restore([plan])
    records = tracker.on_poll(machine(DAY_S + 3630, running("7", DAY_S + 2000)), [])
    assert [(each.id, each.share_s, each.share_high_s) for each in records] == [
        ("7", 0, 2000),  # from a poll before the plan
        ("8", 0, 3630),  # it may have waited until now
    ]


def test_what_a_scheduler_takes_to_start_a_job_on_free_nodes_is_no_harm() -> None:
    tracker = looked()
    at_s = DAY_S
    for number in range(LATENCIES_MIN):
        at_s += 30
        tracker.on_poll(machine(at_s, running(f"f{number}", at_s - 8, submitted_s=at_s - 10)), [])
    assert tracker.latency_s == 2
    at_s += 30
    first = machine(at_s, queued("7", submitted_s=at_s - 10))
    tracker.on_poll(first, yields("e1-4", first, "7"))
    (record,) = tracker.on_poll(machine(at_s + 30, running("7", at_s + 5)), [])
    assert (record.share_low_s, record.share_s, record.share_high_s) == (3, 13, 15)


def test_a_job_on_shared_nodes_is_as_large_as_its_cores() -> None:
    nodes = [msgspec.structs.replace(node(f"n{k}"), cores=8) for k in range(6)]
    tracker = looked()
    shared = running("7", DAY_S + 20, width=1, cores=5, whole=False)
    whole = running("8", DAY_S + 20, width=4, cores=32)
    records = tracker.on_poll(msgspec.structs.replace(machine(DAY_S + 30, shared, whole), nodes=nodes), [])
    assert [kind_of(each).size for each in records] == ["1/4", "1"]


def test_evidence_is_bounded() -> None:
    tracker = looked()
    for number in range(2 * PLANS_MAX):
        now = machine(DAY_S + 30 + number, queued("7"))
        tracker.on_poll(now, yields(f"e1-{number}", now, "7"))
    (record,) = tracker.on_poll(machine(DAY_S + 990, running("7", DAY_S + 980)), [])
    assert len(record.plans) == PLANS_MAX
