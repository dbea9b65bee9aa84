"""Work that comes when no pilot is at work is polled for at once, within the bound of commands, and says what it waits
for. The batch system is a fake, and the clock is the test's."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill import clock
from tidemill.batch.contract import (
    Answer,
    BatchSubmission,
    CommandCounts,
    Ending,
    Facts,
    MachineTotals,
    PlainReply,
    Status,
)
from tidemill.config.site import Cluster, SiteConfig
from tidemill.harvest.account.harm import Yielded
from tidemill.harvest.plan.pace import LEFT_S, POLL_CALLS
from tidemill.harvest.plan.situation import STARTS_PER_HOUR_MIN, Decision
from tidemill.model.machine import JobCounts, Node, NodeState, Queued, Running, Snapshot
from tidemill.model.state import AllocationState
from tidemill.site import constants
from tidemill.site.agent import Agent
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes.costs import Costs
from tidemill.site.nodes.harvesting import Harvesting
from tidemill.site.nodes.planning import Starts, local_situation
from tidemill.site.nodes.site_machine import SiteMachine
from tidemill.site.state import site_state
from tidemill.site.state.epoch import claim
from tidemill.site.state.served_site import serve
from tidemill.wire.node import Ended, Failed, Started

MINE = "tm-s-e1-1"
STEP_S = 0.5
POLL_S = constants.CLUSTER_POLL_S
CALLS_PER_MIN_MAX = 30
NOTHING = Demand(events=0, core_s=0.0, slot_cores=1)
WORK = Demand(events=8, core_s=80.0, slot_cores=1)
GUESSED = Demand(events=100, core_s=100.0, slot_cores=1, cores=4, is_guessed=True)
LEARNT = Demand(events=100, core_s=1000.0, slot_cores=1, cores=4)


class TwoNodes:
    """Two nodes, one of them Tidemill's until `has_ended`; each command is counted with its time."""

    def __init__(self, times: list[float]) -> None:
        self.calls = CommandCounts()
        self.times = times
        self.has_ended = False
        self.node_state = NodeState.ENDING
        self.polls: list[float] = []
        self.jobs: tuple[Queued | Running, ...] = ()  #: other users', at each poll

    def _query(self, number: int) -> None:
        self.calls.queries += number
        self.times += [clock.monotonic_s()] * number

    def submit(self, submission: BatchSubmission) -> str:
        raise AssertionError(f"no fleet takes {submission.name}")

    def status(self, names: Collection[str]) -> dict[str, Status]:
        self._query(1)
        state = AllocationState.COMPLETED if self.has_ended else AllocationState.ACTIVE
        ending = Ending.DONE if self.has_ended else Ending.NONE
        return {
            name: Status(answer=Answer.FOUND, state=state, ending=ending, batch_id="7", nodes=("n1",))
            for name in names
        }

    def plain(self, names: Collection[str]) -> PlainReply:
        raise AssertionError(f"all are shown: {names}")

    def cancel(self, names: Collection[str]) -> None:
        raise AssertionError(f"nothing ends {names}")

    def shorten(self, ends_s: Mapping[str, float]) -> dict[str, float]:
        return dict(ends_s)

    def machine(self) -> MachineTotals:
        return MachineTotals(nodes=2, nodes_free=1, cores_per_node=4, memory_mb_per_node=4000)

    def snapshot(self) -> Snapshot:
        self._query(POLL_CALLS - 1)
        self.polls.append(clock.monotonic_s())
        nodes = [
            Node(name=name, state=self.node_state, cores=4, memory_mb=4000, cores_free=0)
            for name in ("n1", "n2")
        ]
        return Snapshot(
            at_s=clock.now_us() / 1e6,
            nodes=nodes,
            running=[each for each in self.jobs if isinstance(each, Running)],
            queued=[each for each in self.jobs if isinstance(each, Queued)],
        )

    def glance(self) -> JobCounts:
        self.calls.glances += 1
        self._query(1)
        return JobCounts(submitted=1, ended=0)

    def facts(self) -> Facts:
        return Facts(system="fake")

    def output(self, name: str) -> Path:
        return Path("/dev/null")

    def forget(self, names: Collection[str], submissions: Collection[str]) -> None:
        pass


class Watched:
    """An agent's harvesting that is ticked every half second of the test's clock."""

    def __init__(self, agent: Agent, batch: TwoNodes, now: list[float]) -> None:
        self.agent, self.batch, self._now = agent, batch, now
        self.harvesting: Harvesting = agent.harvesting

    @property
    def now_s(self) -> float:
        return self._now[0]

    def tick(self, demand: Demand) -> None:
        self.harvesting.calls.wait(1.0)  # for ever, as the clock stands still while calls are under way
        self._now[0] += STEP_S
        for _ in range(2):  # start a call, take its answer
            self.harvesting.poll(demand)
            self.harvesting.calls.wait(1.0)
        self.harvesting.poll(demand)
        self.harvesting.step(demand, contested="")

    def until_poll(self, demand: Demand, most_s: float) -> float:
        """Tick until the next poll; the seconds until then, at most `most_s`."""
        began_s, polls = self.now_s, len(self.batch.polls)
        while len(self.batch.polls) == polls and self.now_s < began_s + most_s:
            self.tick(demand)
        return self.now_s - began_s

    def pilot(self, *, ends: bool) -> None:
        """A pilot of the allocation starts, or signs off after it was idle."""
        where: dict[str, Any] = {"p": f"{MINE}.r0.i1", "s": 2 if ends else 1, "at_us": 1}
        started = Started(
            **where, allocation=MINE, node="n1", rank=0, cores=4, memory_mb=4000, isolation="namespaces",
            note="", version="1",
        )  # fmt: skip
        ended = Ended(**where, reason="idle", message="", busy_us=1, slot_us=2)
        self.agent.site.log.apply(
            site_state.Read(fleet="f1", offsets={}, records=[ended if ends else started])
        )
        self.harvesting.on_records([ended if ends else started])


@pytest.fixture
def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9))
    config = SiteConfig(
        name="s", server="unix:/absent", batch="slurm", cluster=Cluster(calls_per_min_max=CALLS_PER_MIN_MAX)
    )  # fmt: skip
    (tmp_path / "tidemill-node").symlink_to("/bin/true")
    for name in ("apps", "log", "fleets", "stage"):
        (tmp_path / name).mkdir(mode=0o700)
    batch = TwoNodes([])
    site = serve(config, tmp_path, claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=20))
    agent = Agent(site, SiteMachine(config, tmp_path, batch, Costs(1.0)), batch)
    site.log.apply(site_state.FleetOpened(fleet="f1", at_us=1))
    site.log.apply(
        site_state.Intended(allocation=MINE, fleet="f1", nodes=1, cores=4, at_us=1, walltime_s=600)
    )
    yield Watched(agent, batch, now)
    agent.close()


def test_work_after_the_pilots_have_left_is_polled_for_at_once_until_their_allocation_has_ended(
    it: Watched,
) -> None:
    it.pilot(ends=False)
    it.until_poll(WORK, POLL_S)
    it.pilot(ends=True)
    it.until_poll(NOTHING, 2 * POLL_S)
    assert it.until_poll(NOTHING, 10) == 10, "without work nobody is in a hurry"
    assert it.until_poll(WORK, 2 * POLL_S) <= STEP_S
    it.batch.has_ended = True
    assert it.until_poll(WORK, 2 * POLL_S) <= LEFT_S, "the batch system did not show its end yet"
    assert it.until_poll(WORK, 2 * POLL_S) > POLL_S / 2, "what is not idle now is not Tidemill's"


def test_while_a_pilot_is_at_work_more_work_waits_for_the_next_poll(it: Watched) -> None:
    it.pilot(ends=False)
    it.until_poll(NOTHING, 2 * POLL_S)
    assert it.until_poll(WORK, POLL_S / 2) == POLL_S / 2
    assert it.harvesting.awaited() is None


def test_work_that_is_for_more_idle_nodes_than_before_is_polled_for_once_while_a_pilot_is_at_work(
    it: Watched,
) -> None:
    it.pilot(ends=False)
    it.batch.node_state = NodeState.IDLE
    it.until_poll(GUESSED, 2 * POLL_S)
    assert it.until_poll(GUESSED, POLL_S / 2) == POLL_S / 2
    assert it.until_poll(LEARNT, POLL_S) <= STEP_S, "the first events have ended"
    assert it.until_poll(LEARNT, POLL_S / 2) == POLL_S / 2, "what is idle has been asked for"


def test_an_allocation_that_does_not_end_costs_no_more_commands_a_minute_than_the_site_allows(
    it: Watched,
) -> None:
    it.pilot(ends=False)
    it.until_poll(WORK, POLL_S)
    it.pilot(ends=True)
    for _ in range(int(600 / STEP_S)):
        it.tick(WORK)
    times = it.batch.times
    assert len(it.batch.polls) > 600 / POLL_S, "it is polled for"
    for first in times:
        assert sum(first <= each < first + 60 for each in times) <= CALLS_PER_MIN_MAX


def test_it_says_since_when_it_has_asked_else_when_it_polls_and_why_it_asks_for_none(it: Watched) -> None:
    it.tick(WORK)
    found = it.harvesting.awaited()
    assert found is not None
    assert found.asked_us == 1, "no pilot of it has started"
    it.pilot(ends=False)
    it.tick(WORK)
    assert it.harvesting.awaited() is None
    it.pilot(ends=True)
    it.batch.has_ended = True
    it.until_poll(WORK, POLL_S)
    found = it.harvesting.awaited()
    assert found is not None
    assert (found.asked_us, found.why) == (0, "idle")
    assert it.now_s < found.next_us / 1e6 <= it.now_s + POLL_S + 1
    it.tick(NOTHING)
    assert it.harvesting.awaited() is None


def test_a_stopped_site_says_why_and_by_which_command_it_works_again(it: Watched) -> None:
    it.agent.site.log.apply(
        site_state.Stopped(cause="stop_file", reason="`/site/STOP` exists: lunch", at_us=1)
    )
    it.tick(NOTHING)
    found = it.harvesting.awaited()
    assert found is not None
    assert found.is_stopped
    assert found.why == "`/site/STOP` exists: lunch; `tidemill site resume --reason TEXT` lets it work again"


def test_a_stopped_site_that_holds_nothing_keeps_no_job_waiting(it: Watched) -> None:
    """Before, a job that waited for Tidemill at the last plan counted until it started, hours after the stop."""
    it.batch.has_ended = True
    it.until_poll(WORK, 2 * POLL_S)
    harm, told = it.harvesting.harm, {"id": "7", "name": "x", "user": "bob", "width": 1}
    waits = Queued(**told, walltime_s=600, submitted_s=it.now_s)  # type: ignore[arg-type]
    it.batch.jobs = (waits,)
    now = it.batch.snapshot()
    held_up = Decision(yields_to=["7"])
    bare = local_situation(it.agent.site.config, WORK, nodes=2, holdings=[], starts=Starts())
    harm.on_poll(now, [Yielded("e1-1", msgspec.structs.replace(bare, idle=0), held_up)])
    it.agent.site.log.apply(site_state.Stopped(cause="stop_file", reason="lunch", at_us=1))
    for _ in range(int(10 * POLL_S / STEP_S)):
        it.tick(NOTHING)
    runs = Running(**told, nodes=("n1",), started_s=it.now_s, ends_s=it.now_s + 600)  # type: ignore[arg-type]
    it.batch.jobs = (runs,)
    for _ in range(int(2 * POLL_S / STEP_S)):
        it.tick(NOTHING)
    assert harm.day(it.now_s).jobs == 1
    assert harm.day(it.now_s).share_s <= 2 * POLL_S


def test_where_the_starts_of_an_hour_are_used_up_it_says_so_with_the_time_of_the_next(it: Watched) -> None:
    it.pilot(ends=False)
    it.pilot(ends=True)
    it.batch.has_ended, it.batch.node_state = True, NodeState.IDLE
    it.harvesting._asked.append((int(it.now_s * 1e6), STARTS_PER_HOUR_MIN))
    it.until_poll(WORK, 2 * POLL_S)
    found = it.harvesting.awaited()
    assert found is not None
    assert found.why == "all 60 starts of an hour are used up; the next at 1970-01-01T01:16:40Z"
    assert it.harvesting.causes == ["starts"]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_pilot_that_left_because_people_stopped_the_site_is_no_failed_start(
    it: Watched, is_stopped: bool
) -> None:
    it.pilot(ends=False)
    it.until_poll(WORK, POLL_S)
    failed = Failed(
        p=f"{MINE}.r0.i1", s=2, grant=1, job=1, first=0, count=1, event=None, failure="payload_setup",
        message="no such file", exit_status=None, signal=None, stderr_tail="", slot=0, at_us=1, wall_us=0,
        user_us=0, system_us=0,
    )  # fmt: skip
    it.harvesting.on_records([failed])
    if is_stopped:
        it.agent.site.log.apply(site_state.Stopped(cause="stop_file", reason="lunch", at_us=1))
    it.batch.has_ended = True
    it.harvesting.state = it.harvesting.state.hurried()
    it.until_poll(WORK, POLL_S)
    verdict = it.harvesting.machine.quarantine.judge(it.now_s)
    assert verdict.why == (
        "" if is_stopped
        else "starts fail on 1 node and work on 0: no fault of single nodes; 1 failure since anything worked, "
        "the last after 0.0 s: no such file"
    )  # fmt: skip
