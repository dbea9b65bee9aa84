"""How many nodes to ask for, and how much work: pure decisions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.worlds.home.installed import bare_batch

from tidemill.config.site import Harvest, SiteConfig
from tidemill.harvest.plan.policies import Policy, decide
from tidemill.harvest.plan.situation import Backlog, Decision, Limits, Situation
from tidemill.harvest.plan.waves import SENTENCES, Binding
from tidemill.model.failure import FailureClass
from tidemill.model.machine import Queued, Snapshot
from tidemill.model.state import AllocationState
from tidemill.site import constants
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes.capacity import Ahead, wanted
from tidemill.site.nodes.planning import (
    SINGLES_MAX,
    Starts,
    anything,
    backlog_of,
    causes_of,
    death_s_of,
    elements_max_of,
    for_others,
    group_by_start,
    has_grown,
    local_situation,
    own_nodes,
    pause_s_of,
    policy_of,
    poll_s_of,
    size_of,
    starts_left,
    submissions_of,
    with_hour,
)
from tidemill.site.nodes.selection import Named, PlacedDecision, Shape, with_names
from tidemill.site.state.failures import decide as decide_retry
from tidemill.site.state.site_state import Allocation, UndonePiece

pytestmark = pytest.mark.timing(site={"START_BACKOFF_S": 2, "START_BACKOFF_MAX_S": 60})

CONFIG = SiteConfig(name="s", server="unix:/s", nodes_max=10)
CLUSTER = msgspec.structs.replace(CONFIG, batch="slurm")


def demand(events: int, core_s: float) -> Demand:
    return Demand(events=events, core_s=core_s, slot_cores=1, cores=4)


def submitted(
    count: int,
    config: SiteConfig,
    *,
    policy: Policy = Policy.YIELD,
    made: int = 0,
    array_max: int | None = None,
) -> list[int]:
    """The submissions for `count` allocations on a machine that shows this bound of arrays."""
    shown = Snapshot(at_s=0, nodes=[], running=[], queued=[], array_max=array_max)
    most = elements_max_of(config, shown)
    return submissions_of(count, config, policy=policy, made=made, elements_max=most)


def held(*states: AllocationState) -> list[Allocation]:
    return [
        Allocation(name=f"a{n}", fleet="f", nodes=1, cores=4, state=state, intended_us=n, walltime_s=3600)
        for n, state in enumerate(states)
    ]


def local(work: Demand, allocations: list[Allocation], starts: Starts | None = None) -> Named:
    starts = starts or Starts()
    holdings = group_by_start(allocations)
    situation = local_situation(CONFIG, work, nodes=8, holdings=holdings, starts=starts)
    shape = Shape(pool="local", cores=4, memory_mb=100)
    decision = decide(situation, Policy.DEMAND)
    return with_names(shape, situation, choice=PlacedDecision(decision=decision), starts_wait=starts.why)


def asked(plan: Named) -> int:
    return sum(count for _, count, _ in plan.submit)


def test_on_pbs_what_may_have_to_be_shortened_is_asked_for_alone_up_to_a_number() -> None:
    pbs = msgspec.structs.replace(CONFIG, batch="pbs")
    assert submitted(3, pbs) == [1, 1, 1]
    assert submitted(20, pbs) == [*[1] * SINGLES_MAX, 20 - SINGLES_MAX]
    assert submitted(20, pbs, made=SINGLES_MAX) == [20]
    assert submitted(20, pbs, policy=Policy.WINDOWS) == [20]
    assert submitted(20, CLUSTER) == [20]
    assert submitted(3, CONFIG, policy=Policy.DEMAND) == [1, 1, 1]


@pytest.mark.parametrize("array_max", [0, 1])
@pytest.mark.parametrize("batch", ["slurm", "pbs"])
def test_without_arrays_each_allocation_is_submitted_by_itself(batch: str, array_max: int) -> None:
    """Slurm with MaxArraySize 0 or 1 refuses `--array`, and with 2 an array has one element."""
    assert submitted(3, msgspec.structs.replace(CONFIG, batch=batch), array_max=array_max) == [1, 1, 1]


def test_a_kind_without_arrays_is_asked_for_none(tmp_path: Path) -> None:
    with bare_batch(tmp_path / "installed") as batch:
        config = msgspec.structs.replace(CONFIG, batch=batch)
        assert submitted(3, config) == [1, 1, 1]
        assert submitted(3, config, array_max=1000) == [1, 1, 1]


def test_no_array_has_more_elements_than_the_batch_system_takes() -> None:
    assert submitted(25, CLUSTER, array_max=10) == [10, 10, 5]
    assert submitted(20, CLUSTER, array_max=10) == [10, 10]
    pbs = msgspec.structs.replace(CONFIG, batch="pbs")
    assert submitted(20, pbs, array_max=10) == [*[1] * SINGLES_MAX, 10, 2]


def test_a_death_takes_five_seconds_until_it_is_measured() -> None:
    assert death_s_of(0.0) == constants.DEATH_S == 5.0
    assert death_s_of(8.0) == 8.0


def test_nodes_are_asked_for_as_the_backlog_fills_them() -> None:
    assert asked(local(demand(0, 0), [])) == 0
    assert asked(local(demand(1, 0.05), [])) == 1
    assert asked(local(demand(100_000, 20), [])) == 1  # many short events fit on one node
    assert asked(local(demand(12, 12 * 3600), [])) == 3
    assert asked(local(demand(1000, 1e6), [])) == 8
    some = held(*[AllocationState.ACTIVE] * 5, AllocationState.QUEUED)
    assert asked(local(demand(1000, 1e6), some)) == 2


def test_a_laptop_asks_for_its_whole_walltime() -> None:
    assert local(demand(1, 1), []).submit == [(1, 1, CONFIG.walltime_s)]


def test_waiting_allocations_that_nothing_would_fill_are_given_up_newest_first() -> None:
    waiting = held(AllocationState.ACTIVE, AllocationState.QUEUED, AllocationState.QUEUED)
    assert local(demand(0, 0), waiting).cancel == ["a2", "a1"]


def test_failed_starts_slow_it_down_with_a_reason_and_then_one_is_tried() -> None:
    pausing = local(demand(1000, 1e6), [], Starts(pause_s=3, tries=1, why="3 did not start"))
    assert (asked(pausing), pausing.waits_for) == (0, "3 did not start")
    assert causes_of([pausing], Starts(), wide_waits=True) == ["failed_starts", "wide"]
    assert causes_of([local(demand(0, 0), [])], Starts(), wide_waits=False) == ["backlog"]
    assert asked(local(demand(1000, 1e6), [], Starts(tries=1, why="3 did not start"))) == 1


def test_pauses_double_up_to_their_bound_and_never_become_for_ever() -> None:
    assert pause_s_of(0, 0, config=CONFIG) == 0
    assert pause_s_of(1, 0, config=CONFIG) == 2
    assert pause_s_of(3, 5, config=CONFIG) == 3
    assert pause_s_of(10_000, 0, config=CONFIG) == 60
    assert pause_s_of(10_000, 60, config=CONFIG) == 0


def test_starts_in_an_hour_are_bounded_where_others_use_the_machine() -> None:
    assert starts_left(Starts(hour=10), CLUSTER, nodes=16, policy=Policy.YIELD) == 6 * 16 - 10
    assert starts_left(Starts(hour=1000), CLUSTER, nodes=16, policy=Policy.YIELD) == 0
    assert starts_left(Starts(hour=30), CLUSTER, nodes=4, policy=Policy.YIELD) == 30, (
        "60 on small machines, too"
    )
    assert starts_left(Starts(hour=1000), CONFIG, nodes=1, policy=Policy.DEMAND) > 1e6


def test_a_used_up_hour_is_told_with_the_time_of_the_next_start_also_after_a_failed_one() -> None:
    failed = Starts(tries=1, why="1 failure since anything worked")
    asked_for = [(0, 40), (600_000_000, 21)]
    assert with_hour(failed, asked_for[:1], CLUSTER, nodes=4) == msgspec.structs.replace(failed, hour=40)
    used_up = with_hour(failed, asked_for, CLUSTER, nodes=4)
    assert used_up.why == "all 60 starts of an hour are used up; the next at 1970-01-01T01:00:00Z"
    assert "01:10:00" in with_hour(failed, [(0, 1), asked_for[1], (700_000_000, 59)], CLUSTER, nodes=4).why
    pausing = Starts(pause_s=9, tries=1, why="3 did not start")
    assert with_hour(pausing, asked_for, CLUSTER, nodes=4).why == "3 did not start"
    assert with_hour(failed, asked_for, CONFIG, nodes=4).why == failed.why, "allocations queue like any job"

    limits = Limits(nodes_max=4, allocations_max=9, starts_left=0)
    idle = Situation(now_s=0, nodes=4, idle=4, busy=[], queue=[], outages=[], holdings=[], limits=limits,
                     backlog=backlog_of(demand(1000, 1e6), limits))  # fmt: skip
    choice = PlacedDecision(decision=decide(idle, Policy.YIELD))
    shape = Shape(pool="p", cores=4, memory_mb=100)
    plan = with_names(shape, idle, choice=choice, starts_wait=used_up.why)
    assert plan.waits_for == used_up.why
    assert plan.decision.why == f"4 idle, 0 for regular jobs that can start now; {used_up.why}"
    assert causes_of([plan], used_up, wide_waits=False) == ["starts"]
    assert causes_of([plan], failed, wide_waits=False) == ["failed_starts"]


def test_it_says_why_work_that_waits_gets_no_more_nodes() -> None:
    limits = Limits(nodes_max=4, allocations_max=100)
    guessed = msgspec.structs.replace(demand(60, 60), is_guessed=True)
    assert backlog_of(guessed, limits).bound_by == Binding.LEARNING
    assert backlog_of(demand(60, 60), limits).bound_by == Binding.SHORT
    assert backlog_of(demand(4, 1e6), limits).bound_by == Binding.BACKLOG, "each event has a slot"
    assert local(guessed, []).waits_for == Binding.LEARNING
    assert local(guessed, []).decision.why == SENTENCES[Binding.LEARNING]


def test_each_batch_system_has_its_policy_and_its_pause() -> None:
    policies = {
        batch: policy_of(msgspec.structs.replace(CONFIG, batch=batch)) for batch in ("local", "slurm", "pbs")
    }
    assert policies == {
        "local": Policy.DEMAND,
        "slurm": Policy.YIELD,
        "pbs": Policy.YIELD,
    }
    told = msgspec.structs.replace(CLUSTER, harvest=Harvest(policy="capped"))
    assert policy_of(told) is Policy.CAPPED
    assert (poll_s_of(CONFIG), poll_s_of(CLUSTER)) == (1, 30)


def test_a_little_work_is_worth_one_node_and_more_at_the_server_fills_all() -> None:
    limits = Limits(nodes_max=16, allocations_max=100, startup_s=10, payback=3)
    little = backlog_of(demand(1, 0.1), limits)
    assert (little.nodes_max, little.node_s) == (1, 30)
    assert backlog_of(demand(0, 0), limits).nodes_max == 0
    more = backlog_of(msgspec.structs.replace(demand(4, 4), more=True), limits)
    assert more.nodes_max == 16
    assert more.node_s > 1e9
    assert anything(limits).nodes_max == 16


def test_work_has_grown_where_idle_nodes_were_left_and_it_is_for_twice_the_nodes() -> None:
    limits = Limits(nodes_max=16, allocations_max=100, startup_s=1, payback=3)

    def work(nodes: int) -> Backlog:
        return backlog_of(demand(100, nodes * 120), limits)

    def grown(before: int, now: int, *, held: int = 1, waits_for: str = "learning") -> bool:
        decisions = [Decision(waits_for="idle"), Decision(waits_for=waits_for)]
        return has_grown(size_of(work(before), limits, decisions), work(now), held=held)

    assert grown(1, 2)
    assert grown(3, 6)
    assert not grown(3, 5), "it causes few polls, whatever its size"
    assert not grown(1, 4, waits_for="idle"), "no node was left"
    assert not grown(0, 4, held=3), "what is held has room for nearly all of it"
    assert grown(8, 100), "no more than the site may hold"
    assert not grown(9, 100)


def test_room_that_pilots_make_for_our_own_wide_jobs_is_no_wait_of_others() -> None:
    theirs = Queued(id="7", name="job", user="them", width=2, walltime_s=60)
    queued = [theirs, msgspec.structs.replace(theirs, id="8", name="tm-s-e1-1", user="us", ours=True)]
    snapshot = Snapshot(at_s=0, nodes=[], running=[], queued=queued)
    decision = Decision(yields_to=["8", "7"], waits_for="queue")
    assert for_others(decision, snapshot) == Decision(yields_to=["7"], waits_for="queue")


AHEAD = Ahead(
    cores=4,
    open_core_s=0,
    open_ranges=0,
    rate_core_s=0,
    sync_s=10,
    lease_ahead_s=60,
    core_s_max=1e6,
    ranges_max=100,
)


def test_work_for_a_minute_is_kept_ahead() -> None:
    assert wanted(AHEAD) == (240, 100)
    assert wanted(msgspec.structs.replace(AHEAD, open_core_s=230)) == (0, 0)
    assert wanted(msgspec.structs.replace(AHEAD, open_core_s=100, open_ranges=60)) == (140, 40)
    assert wanted(msgspec.structs.replace(AHEAD, open_ranges=100)) == (0, 0)


def test_what_three_syncs_eat_is_kept_ahead_where_that_is_more() -> None:
    assert wanted(msgspec.structs.replace(AHEAD, rate_core_s=100))[0] == 3000


def test_named_culprit_takes_the_blame_alone() -> None:
    verdict = decide_retry(FailureClass.PAYLOAD, [(0, 10)], culprit=4, failures={}, retries=1)
    assert verdict.again == [UndonePiece(0, 4), UndonePiece(5, 5), UndonePiece(4, 1, 1)]
    assert (verdict.counted, verdict.failed) == ([4], [])
    assert decide_retry(FailureClass.PAYLOAD, [(4, 5)], culprit=4, failures={4: 1}, retries=1).failed == [4]


def test_range_is_halved_and_uncounted_failures_are_not() -> None:
    halves = decide_retry(FailureClass.MEMORY, [(0, 5)], culprit=None, failures={}, retries=0)
    assert halves.again == [UndonePiece(0, 3, 3), UndonePiece(3, 2, 2)]
    whole = decide_retry(FailureClass.NODE, [(0, 5)], culprit=None, failures={}, retries=0)
    assert (whole.again, whole.counted) == ([UndonePiece(0, 5)], [])


def test_nodes_that_yield_are_those_of_pools_until_their_last_allocation_has_ended() -> None:
    runs, over, older, wide = held(
        AllocationState.ACTIVE, AllocationState.CANCELED, AllocationState.COMPLETED, AllocationState.ACTIVE
    )
    for each, host, ended_us in (
        (runs, "n1", 0),
        (over, "n2", 9_000_000),
        (older, "n2", 4_000_000),
        (wide, "n3", 0),
    ):
        each.hosts, each.ended_us = [host], ended_us
        each.pool = "" if each is wide else "batch/8c"
    found = own_nodes([runs, over, older, wide])
    assert (found.held, found.released) == (frozenset({"n1"}), {"n2": 9.0})
