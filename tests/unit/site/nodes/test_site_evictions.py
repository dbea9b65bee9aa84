"""Allocations that have to go whatever the plan says, and what that tells of their nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.home.installed import bare_batch

from tidemill.config.site import Harvest, SiteConfig
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec, Resources
from tidemill.model.state import AllocationState
from tidemill.site.applications.programs import NodeShape
from tidemill.site.nodes.costs import Costs
from tidemill.site.nodes.evictions import AGAIN_S, LATE_SLACK_S, Silence, doomed, hopeless, late, suspended
from tidemill.site.nodes.quarantine import NodeQuarantine, owners_at_work
from tidemill.site.state.site_state import Allocation, GrantState, SiteJob, UndonePiece
from tidemill.wire.node import Done, Started

pytestmark = pytest.mark.timing(site={"START_BY_S": 600, "QUARANTINE_STARTS": 3})

SECOND = 1_000_000
HARVEST = Harvest()
CONFIG = SiteConfig(name="s", server="unix:/s", batch="slurm", harvest=HARVEST)


def allocation(
    name: str, state: AllocationState = AllocationState.ACTIVE, hosts: tuple[str, ...] = (), at_s: int = 1
) -> Allocation:
    return Allocation(
        name=name, fleet="f", nodes=max(1, len(hosts)), cores=1, state=state, intended_us=at_s * SECOND,
        started_us=at_s * SECOND, hosts=list(hosts),
    )  # fmt: skip


def test_what_runs_without_a_word_of_a_pilot_goes_after_its_bound_and_counts_once() -> None:
    silence, mine = Silence(300), [allocation("a", hosts=("n1", "n2")), allocation("b")]
    mine[1].pilots = 1
    assert silence.find_silent(mine, 1000) == []
    assert silence.find_silent(mine, 1299) == []
    (found,) = silence.find_silent(mine, 1300)
    assert (found.names, found.is_failure) == (["a"], True)
    assert found.why == (
        "it has run for 300 s on n1, n2 and no pilot of it was heard: its launcher hangs, or the file system there"
    )
    mine[0].canceled_us = 1
    assert silence.find_silent(mine, 1600) == [], "`Recancels` sees to it that it goes"


def test_the_time_of_silence_begins_when_it_runs_and_ends_with_the_first_word() -> None:
    silence, mine = Silence(300), allocation("a", AllocationState.QUEUED)
    assert silence.find_silent([mine], 0) == []
    mine.state = AllocationState.ACTIVE
    assert silence.find_silent([mine], 500) == []
    mine.pilots = 1
    assert silence.find_silent([mine], 900) == []


def test_what_can_never_start_goes_and_is_one_start_that_failed() -> None:
    mine = [allocation(name, AllocationState.QUEUED) for name in ("a", "b", "c")]
    word = "Can Never Run: Not enough total nodes available"
    found = hopeless(mine, {"a": word, "c": word}, 100 * SECOND)
    assert [(each.names, each.is_failure) for each in found] == [(["a"], True), (["c"], False)]
    assert found[0].why == f"it can never start: {word}"
    mine[0].canceled_us = mine[2].canceled_us = 100 * SECOND
    assert hopeless(mine, {"a": word, "c": word}, 101 * SECOND) == []
    mine[0].canceled_us, mine[0].state = 0, AllocationState.ACTIVE
    assert hopeless(mine, {"a": word}, 101 * SECOND) == [], "it runs all the same"


def test_what_met_a_limit_that_the_next_one_keeps_goes_and_is_no_failure() -> None:
    mine = [allocation(name, AllocationState.QUEUED) for name in ("a", "b", "c")]
    for each, walltime_s in zip(mine, (3600, 3600, 600), strict=True):
        each.walltime_s = walltime_s
    reasons = dict.fromkeys("abc", "PartitionTimeLimit")
    found = hopeless(mine, reasons, 100 * SECOND, is_over_limit=lambda each: each.walltime_s > 1200)
    assert [(each.names, each.is_failure, each.limit) for each in found] == [
        (["c"], True, ""),  # it keeps every limit that is known, and asking once more would be the same
        (["a", "b"], False, "PartitionTimeLimit"),
    ]


def test_what_is_suspended_goes_once_and_again_after_a_minute() -> None:
    mine = [allocation("a"), allocation("b")]
    (found,) = suspended(mine, ["b"], 100 * SECOND)
    assert (found.names, found.is_failure) == (["b"], False)
    mine[1].canceled_us = 100 * SECOND
    assert suspended(mine, ["b"], 101 * SECOND) == []
    assert suspended(mine, ["b"], int((101 + AGAIN_S) * SECOND))[0].names == ["b"]


def test_what_waits_past_its_last_start_goes_and_is_told_again() -> None:
    waits, runs = allocation("waits", AllocationState.QUEUED), allocation("runs")
    bound_us = int((1 + 600 + LATE_SLACK_S) * SECOND)
    assert late([waits, runs], HARVEST, bound_us) == []
    (found,) = late([waits, runs], HARVEST, bound_us + 1)
    assert found.names == ["waits"]
    waits.canceled_us = bound_us
    assert late([waits], HARVEST, bound_us + SECOND) == []
    assert late([waits], HARVEST, bound_us + int(AGAIN_S * SECOND))[0].names == ["waits"]


@pytest.fixture
def costs() -> Costs:
    return Costs(10)


@pytest.fixture
def nodes(tmp_path: Path, costs: Costs) -> NodeQuarantine:
    return NodeQuarantine(tmp_path / "quarantine.json", CONFIG, costs)


def test_an_owner_counts_whose_work_runs_or_could_run_and_not_one_whose_job_only_lies_here() -> None:
    shape = NodeShape(8, 16_000, {"gpu": 1})

    def job(
        number: int, owner: str, *, granted: bool = False, stopping: bool = False, **asked: Any
    ) -> SiteJob:
        return SiteJob(
            id=number, campaign="c", owner=owner, seed_base=0, open=IntervalSet(), done=IntervalSet(),
            spec=JobSpec(app="a", events=1, resources=Resources(**asked)), stopping=stopping,
            ready=[] if granted else [UndonePiece(0, 1)],
            grants={1: GrantState("f", IntervalSet([(0, 1)]))} if granted else {},
        )  # fmt: skip

    jobs = [
        job(1, "runs", granted=True, cores=8),
        job(2, "could", cores=8, memory_mb=16_000, devices={"gpu": 1}),
        job(3, "wide", cores=9),
        job(4, "large", memory_mb=16_001),
        job(5, "percent", devices={"gpu": 2}),
        job(6, "nodes", nodes=5),
        job(7, "stops", stopping=True),
        job(8, "waits"),
    ]
    assert owners_at_work(jobs, shape, 4, {8}.__contains__) == {"runs", "could"}


def test_only_what_was_asked_for_before_the_sentence_may_get_the_node_and_goes(nodes: NodeQuarantine) -> None:
    nodes.started(allocation("good", hosts=("n0",)))
    for at_s in (500, 1000, 1500):
        silent = allocation("bad", hosts=("n7",), at_s=at_s - 300)
        nodes.silent(silent, "no pilot was heard", at_s * SECOND)
    assert nodes.sentenced_s == 0
    verdict = nodes.judge(1500)
    assert verdict.exclude == ("n7",)
    assert nodes.sentenced_s == 1500
    before = allocation("q1", AllocationState.QUEUED, at_s=1490)
    after = allocation("q2", AllocationState.QUEUED, at_s=1501)
    (found,) = doomed([before, after, allocation("runs")], 1500, verdict.exclude, 1600 * SECOND)
    assert found.names == ["q1"]
    assert "n7" in found.why
    nodes.judge(1500 + 86401)
    assert nodes.sentenced_s == 0


def sentenced_s_on(batch: str, path: Path) -> float:
    """The time at which what waits on this batch system has to go, for a node that goes into quarantine at 1500 s."""
    nodes = NodeQuarantine(path, msgspec.structs.replace(CONFIG, batch=batch), Costs(10))
    nodes.started(allocation("good", hosts=("n0",)))
    for at_s in (500, 1000, 1500):
        silent = allocation("bad", hosts=("n7",), at_s=at_s - 300)
        nodes.silent(silent, "no pilot was heard", at_s * SECOND)
    assert nodes.judge(1500).exclude == ("n7",)
    return nodes.sentenced_s


def test_nothing_that_waits_goes_where_the_next_could_be_given_the_node_as_well(tmp_path: Path) -> None:
    """Otherwise it would be canceled and asked for again at each sentence, for nothing."""
    assert sentenced_s_on("slurm", tmp_path / "slurm.json") == 1500
    assert sentenced_s_on("pbs", tmp_path / "pbs.json") == 0
    with bare_batch(tmp_path / "installed") as batch:
        assert sentenced_s_on(batch, tmp_path / "bare.json") == 0


def test_first_work_tells_for_its_node_at_once(nodes: NodeQuarantine, costs: Costs) -> None:
    """One more failure after two would be a sentence; work in between forgives, while its allocation goes on."""
    nodes.started(allocation("good", hosts=("n0",)))
    mine = {"a": allocation("a", hosts=("n7",), at_s=1000)}
    for at_s in (400, 800):
        nodes.silent(allocation("bad", hosts=("n7",), at_s=at_s - 300), "no pilot was heard", at_s * SECOND)
    started = Started(
        p="a.r0.i1", s=1, allocation="a", node="n7", rank=0, cores=1, memory_mb=1, isolation="namespaces", note="",
        version="1", at_us=1001 * SECOND,
    )  # fmt: skip
    done = Done(
        p="a.r0.i1", s=2, grant=1, job=1, first=0, count=1, payloads=1, slot=0, started_us=1002 * SECOND,
        ended_us=1010 * SECOND, wall_us=1, setup_us=1, user_us=0, system_us=0, rss_kb=0, read_bytes=None,
        write_bytes=None, outputs=[],
    )  # fmt: skip
    costs.on_records([started, done], mine)
    nodes.on_first_work(mine)
    assert costs.take_first() == []
    nodes.silent(allocation("bad", hosts=("n7",), at_s=1200), "no pilot was heard", 1500 * SECOND)
    assert nodes.judge(1500).exclude == ()


def test_what_work_has_forgiven_is_not_taken_up_by_the_next_agent(
    nodes: NodeQuarantine, costs: Costs, tmp_path: Path
) -> None:
    nodes.silent(allocation("bad", hosts=("n1",)), "no pilot was heard", 400 * SECOND)
    assert "1 failure since" in nodes.judge(400).why
    assert "1 failure since" in NodeQuarantine(tmp_path / "quarantine.json", CONFIG, costs).judge(401).why
    good = allocation("good", hosts=("n1",), at_s=500)
    pilot = "good.r0.i1"
    started = Started(p=pilot, s=1, allocation="good", node="n1", rank=0, cores=1, memory_mb=1,
                      isolation="namespaces", note="", version="1", at_us=500 * SECOND)  # fmt: skip
    done = Done(
        p=pilot, s=2, grant=1, job=1, first=0, count=1, payloads=1, slot=0, started_us=501 * SECOND,
        ended_us=502 * SECOND, wall_us=1, setup_us=1, user_us=0, system_us=0, rss_kb=0, read_bytes=None,
        write_bytes=None, outputs=[],
    )  # fmt: skip
    costs.on_records([started, done], {"good": good})
    nodes.on_first_work({"good": good})
    assert nodes.judge(503).why == ""
    assert NodeQuarantine(tmp_path / "quarantine.json", CONFIG, costs).judge(504).why == ""
