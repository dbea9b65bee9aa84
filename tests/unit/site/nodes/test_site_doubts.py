"""An agent on a Slurm that hides its jobs, or whose cancels have no effect, with a controlled clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.slurm.fake import install

from tidemill.batch.contract import BatchSubmission
from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.config.site import Cluster, SiteConfig
from tidemill.model.state import AllocationState
from tidemill.site.agent import Agent
from tidemill.site.fleet.workload import Demand
from tidemill.site.nodes.belief import Doubt
from tidemill.site.nodes.costs import Costs
from tidemill.site.nodes.planning import DYING_S_MIN
from tidemill.site.nodes.site_machine import SiteMachine
from tidemill.site.state import site_state
from tidemill.site.state.epoch import claim
from tidemill.site.state.served_site import serve
from tidemill.wire.node import Noted, Started

MINE, KEY = "tm-s-e1-1", "0123456789abcdef"
WORK = Demand(events=1000, core_s=1e6, slot_cores=1)
STEP_S = 15.0


class Hidden:
    """An agent with one running allocation, on the fake Slurm."""

    def __init__(self, agent: Agent, state: Path, now: list[float]) -> None:
        self.agent, self._path, self._now = agent, state, now
        self.harvesting = agent.harvesting

    @property
    def allocation(self) -> site_state.Allocation:
        return self.agent.site.state.allocations[MINE]

    @property
    def doubt(self) -> Doubt:
        return self.harvesting.doubts.belief.doubt

    def slurm(self, **changes: Any) -> None:
        """Change Slurm's answers; `job`: the state of Tidemill's job."""
        state = json.loads(self._path.read_text())
        if word := changes.pop("job", ""):
            state["jobs"][0]["state"] = word
        self._path.write_text(json.dumps(state | changes))

    def calls(self) -> list[str]:
        return (self._path.parent / "calls").read_text().splitlines()

    def pilot(self, number: int = 2) -> None:
        """Our pilot writes its first record, or another."""
        where: dict[str, Any] = {"p": f"{MINE}.r0.i1", "s": number, "at_us": 1}
        record: Started | Noted
        if number == 1:
            record = Started(
                **where, allocation=MINE, node="n1", rank=0, cores=4, memory_mb=4000, isolation="namespaces",
                note="", version="1",
            )  # fmt: skip
        else:
            record = Noted(**where, topic="io", program=None, job=None, mode="", message="", numbers={})
        self.agent.site.log.apply(site_state.Read(fleet="f1", offsets={}, records=[record]))
        self.harvesting.on_records([record])

    def tick(self) -> None:
        # the clock stands still while commands run: one that seems to take STEP_S is slow, and polls become rarer
        self.harvesting.calls.wait(1.0)
        self._now[0] += STEP_S
        for _ in range(2):
            self.harvesting.poll(WORK)
            self.harvesting.calls.wait(1.0)
        self.harvesting.poll(WORK)
        self.agent.stop.step(self.harvesting.book.held, doubt=self.harvesting.doubts.last())
        self.harvesting.step(WORK, contested="")
        self.harvesting.calls.wait(1.0)

    def until(self, done: Callable[[], bool], most_s: float) -> None:
        """Tick until the condition holds."""
        for _ in range(int(most_s / STEP_S)):
            if done():
                return
            self.tick()
        assert done()


@pytest.fixture
def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hidden]:
    state = install(tmp_path / "bin", {"calls": str(tmp_path / "bin" / "calls")})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int(now[0] * 1e9))
    cluster = Cluster(calls_per_min_max=100_000, launcher="fork")
    config = SiteConfig(name="s", server="unix:/absent", batch="slurm", cluster=cluster)
    (tmp_path / "tidemill-node").symlink_to("/bin/true")
    for name in ("apps", "log", "fleets", "stage"):
        (tmp_path / name).mkdir(mode=0o700)
    batch = SlurmBatchSystem(tmp_path / "batch", cluster, key=KEY)
    site = serve(config, tmp_path, claim(tmp_path, take_over=False, heartbeat_s=5, dead_s=20))
    agent = Agent(site, SiteMachine(config, tmp_path, batch, Costs(1.0)), batch)
    site.log.apply(site_state.FleetOpened(fleet="f1", at_us=1))
    site.log.apply(
        site_state.Intended(allocation=MINE, fleet="f1", nodes=1, cores=4, at_us=1, walltime_s=36_000)
    )
    batch.submit(
        BatchSubmission(name=MINE, command=["true"], nodes=1, cores=4, memory_mb=0, walltime_s=36_000)
    )
    found = Hidden(agent, state, now)
    jobs = json.loads(state.read_text())["jobs"]
    jobs[0] |= {"state": "RUNNING", "where": "n00001", "start": 1000, "minutes": 600}
    found.slurm(jobs=jobs)
    found.until(lambda: found.allocation.state is AllocationState.ACTIVE, 120)
    found.pilot(1)
    yield found
    agent.close()


def test_a_job_that_squeue_hides_is_asked_for_plainly_and_nothing_more_is_asked_for(it: Hidden) -> None:
    assert it.doubt is Doubt.NONE
    it.slurm(hides="tm-")
    it.until(lambda: it.doubt is Doubt.QUERY, 60)
    assert "scontrol -o show job 1000001" in it.calls()
    assert it.harvesting.causes == ["doubt"]
    assert it.harvesting.waits_for is not None
    told = f"`squeue --me -t all` does not show 1 job of Tidemill that `scontrol show job 1000001` shows: `{MINE}`"
    assert told in it.harvesting.waits_for
    (trouble,) = it.agent.capacity.measure(sync_s=1, room=1, more=False).troubles
    assert (trouble.failure, trouble.scope, trouble.is_open) == ("batch", "all", True)
    assert told in trouble.message
    away = it.harvesting.outage
    assert away is not None
    assert away.doubted
    assert told in away.reason
    it.slurm(hides="")
    it.until(lambda: it.doubt is Doubt.NONE, 60)
    assert it.harvesting.outage is None
    assert it.harvesting.causes != ["doubt"]
    assert it.allocation.state is AllocationState.ACTIVE


def test_a_hidden_job_is_never_lost_and_the_site_stops_when_doubt_lasts(it: Hidden) -> None:
    it.slurm(hides="tm-")
    it.until(lambda: it.agent.site.state.stop is not None, 420)
    stop = it.agent.site.state.stop
    assert stop is not None
    assert stop.cause == "doubt"
    assert stop.reason.startswith(
        "replies of the batch system are not believed: `squeue --me -t all` does not show"
    )
    assert it.allocation.state is AllocationState.ACTIVE
    it.until(lambda: "scancel 1000001" in it.calls(), 300)
    assert it.allocation.state is AllocationState.ACTIVE, "its end is not seen yet"


def test_pilots_that_are_heard_speak_for_a_job_that_no_query_shows(it: Hidden) -> None:
    it.slurm(hides="tm-", job="CANCELLED")
    it.until(lambda: it.doubt is Doubt.UNCHECKED, 60)
    assert it.harvesting.doubts.text.startswith(
        "a reply is being checked: the batch system shows none of 1 running job"
    )
    assert it.harvesting.causes == ["doubt"]
    assert it.harvesting.outage is None, "a check is no news for people"

    def heard() -> bool:
        it.pilot()
        return it.doubt is Doubt.PILOTS

    it.until(heard, 180)
    for _ in range(12):
        it.tick()
        it.pilot()
    assert it.allocation.state is AllocationState.ACTIVE


def test_a_silent_job_that_no_query_shows_is_lost_as_ever(it: Hidden) -> None:
    it.slurm(hides="tm-", job="CANCELLED")
    it.until(lambda: it.allocation.state is AllocationState.LOST, 240)
    assert it.agent.site.state.stop is None


def test_pilots_whose_cancels_do_nothing_are_sent_home_by_their_lead(it: Hidden) -> None:
    it.slurm(deaf=True)
    it.until(lambda: it.harvesting.cancel([MINE], why="a test"), 60)

    def heard() -> bool:
        it.pilot()
        return it.doubt is Doubt.CANCEL

    it.until(heard, 3 * DYING_S_MIN)
    assert it.calls().count("scancel 1000001") >= 2
    assert it.allocation.leaves
    assert "2 cancels that the batch system confirmed did not end 1 job" in it.harvesting.doubts.text


def test_what_an_ending_agent_could_not_end_is_named_with_its_number(it: Hidden) -> None:
    it.slurm(hides="tm-", deaf=True)
    (job,) = it.harvesting.unended()
    assert (job.name, job.number) == (MINE, "1000001")
    assert job.why == "`scontrol show job 1000001` shows it; its pilot has not signed off"
