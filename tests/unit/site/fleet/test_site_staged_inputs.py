"""Inputs ahead of events: jobs wait for room in the stage and run when others end; none is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.effort import lines_run
from tests.unit.site.applications.test_site_applications import preparer
from tests.unit.site.state.test_site_log import open_log

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.site import constants
from tidemill.site.applications.launching import Launching
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.staging import Stage
from tidemill.site.fleet.fleets import Fleets, OpenFleet
from tidemill.site.fleet.granting import Granting
from tidemill.site.fleet.workload import Workload
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog
from tidemill.transfer.file import Roots
from tidemill.wire.api import CancelOrder, LeaseOrder, ReleaseReport
from tidemill.wire.node import Failed

pytestmark = pytest.mark.timing(site={"STAGE_FREE_BYTES_MIN": 0, "STAGE_CACHE_BYTES_MAX": 0})

MB = 1_000_000
JOBS = 60
CONFIG = SiteConfig(name="here", server="unix:/x", stage_bytes_max=10 * MB)


class GrantingSite:
    """The part of an agent from leases to grants, with a stage of 10 MB."""

    def __init__(self, folder: Path) -> None:
        (folder / "apps").mkdir()
        (folder / "prog").write_text("#!/bin/sh\n")
        (folder / "prog").chmod(0o755)
        (folder / "apps" / "sim.toml").write_text(
            f'name = "sim"\nexecutable = "{folder}/prog"\ninputs = ["geo", "in"]\n'
        )
        self.log: SiteLog = open_log(folder / "log", 1)
        fleets = Fleets(folder / "fleets", CONFIG, binary=folder / "tidemill-node")
        self.log.apply(site_state.FleetOpened(fleet="f1", at_us=1))
        self.fleet: OpenFleet = fleets.create(self.log.pool.state.fleets["f1"])
        self.executor = ThreadPoolExecutor(2)
        (folder / "stage").mkdir()
        self.stage = Stage(folder / "stage", CONFIG, OwnedPlaces(Roots([folder])))
        self.granting = Granting(self.log, preparer(folder / "apps"), self.stage, fleets, self.executor)
        self.orders = self.records = 0

    def lease(self, job: int, one: Input, events: int = 1) -> None:
        self.orders += 1
        spec = JobSpec(app="sim", events=events, inputs=[one])
        order = LeaseOrder(
            n=self.orders, lease=job, job=job, first=0, count=events, campaign="c", seed_base=0, spec=spec
        )
        self.log.apply(site_state.Replied(acked=0, orders=[order], at_us=0))

    def cancel(self, job: int) -> None:
        self.orders += 1
        self.log.apply(
            site_state.Replied(acked=0, orders=[CancelOrder(n=self.orders, job=job, reason="over")], at_us=0)
        )

    def fail(self, job: int) -> None:
        """The event that is granted of it fails, as often as it may."""
        spec = self.log.pool.state.jobs[job].spec
        for _ in range(spec.retries + 1):
            self.until(lambda: job in self.granted)
            (number,) = self.log.pool.state.jobs[job].grants
            self.records += 1
            record = Failed(
                p="a1.0.i1", s=self.records, grant=number, job=job, first=0, count=1, event=0, failure="payload",
                message="exit status 3", exit_status=3, signal=None, stderr_tail="", slot=0, at_us=0, wall_us=1,
                user_us=0, system_us=0,
            )  # fmt: skip
            self.log.apply(site_state.Read(fleet="f1", offsets={}, records=[record]))

    def tick(self) -> None:
        """As the agent does it, some seconds after the one before."""
        self.stage._next_admit_s = self.granting.inputs._next_room_s = 0.0
        self.granting.plan(self.fleet, Launching())
        over = self.log.pool.state.forgotten
        for job in over:
            self.stage.clean(job)
            self.granting.forget(job)
        if over:
            self.log.apply(site_state.Cleaned(jobs=list(over)))
        self.granting.inputs.tend()

    def until(self, what: Callable[[], bool]) -> None:
        end_s = clock.monotonic_s() + 60
        while clock.monotonic_s() < end_s:
            self.tick()
            if what():
                return
            self.executor.submit(lambda: None).result()
        pytest.fail(f"granted {self.granted}, waiting {self.stage.budget.waiting}")

    @property
    def granted(self) -> list[int]:
        return [job.id for job in self.log.pool.state.jobs.values() if job.grants]

    @property
    def refused(self) -> list[ReleaseReport]:
        return [each for each in self.log.pool.state.reports if isinstance(each, ReleaseReport)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[GrantingSite]:
    made = GrantingSite(tmp_path)
    yield made
    made.executor.shutdown()
    made.log.close()


def shared(tmp_path: Path, name: str, size_bytes: int) -> Input:
    with (tmp_path / name).open("wb") as file:
        file.truncate(size_bytes)
    return Input(name="geo", url=str(tmp_path / name))


def test_a_job_waits_while_the_stage_is_pinned_and_runs_when_the_other_ends(
    tmp_path: Path, site: GrantingSite
) -> None:
    site.lease(1, shared(tmp_path, "one", 6 * MB))
    site.until(lambda: site.granted == [1])
    site.lease(2, shared(tmp_path, "two", 6 * MB))
    inputs = site.granting.inputs
    for _ in range(50):
        site.until(lambda: bool(inputs.waits_for(2)))
    assert site.granted == [1]
    assert [job for job, _ in inputs.staging_now()] == [2]
    assert "room for 6 MB" in inputs.waits_for(2)
    assert not inputs.is_staging, "nothing is under way that a tick would bring on"
    site.cancel(1)
    site.until(lambda: site.granted == [2])
    assert not site.refused
    assert not inputs.staging_now()


def test_many_jobs_share_the_stage_in_turn_and_none_is_refused(tmp_path: Path, site: GrantingSite) -> None:
    """The stage holds ten of them at a time."""
    done: list[int] = []
    for job in range(1, JOBS + 1):
        site.lease(job, shared(tmp_path, f"in{job}", MB))
    for _ in range(JOBS):
        site.until(lambda: bool(site.granted) or not site.log.pool.state.jobs)
        with site.stage._lock:  # between a copy's arrival and the end of its reservation it counts twice
            assert site.stage.cache.bytes + site.stage.budget.taken.bytes <= 10 * MB
        for job in site.granted:
            done.append(job)
            site.cancel(job)
        if len(done) == JOBS:
            break
    assert sorted(done) == list(range(1, JOBS + 1))
    assert not site.refused


def test_a_canceled_job_waits_and_holds_no_more(tmp_path: Path, site: GrantingSite) -> None:
    site.lease(1, shared(tmp_path, "one", 6 * MB))
    site.until(lambda: site.granted == [1])
    for job in (2, 3):
        site.lease(job, shared(tmp_path, f"in{job}", 6 * MB))
    site.until(lambda: len(site.stage.budget.waiting) == 2)
    site.cancel(2)
    site.until(lambda: list(site.stage.budget.waiting) == [3])
    site.cancel(1)
    site.until(lambda: site.granted == [3])


def test_a_job_that_is_over_and_leased_again_in_one_reply_is_staged_anew_before_it_is_granted(
    tmp_path: Path, site: GrantingSite
) -> None:
    card = tmp_path / "card"
    card.write_text("one")
    one = Input(name="geo", url=str(card))
    site.lease(1, one)
    site.until(lambda: site.granted == [1])
    card.write_text("two")
    site.cancel(1)
    site.lease(1, one)
    for _ in range(20):  # many jobs are cleaned before it
        site.granting.plan(site.fleet, Launching())
        site.granting.inputs.tend()
        site.executor.submit(lambda: None).result()
        assert not site.granted
        assert not site.granting.inputs.is_staging
    site.until(lambda: site.granted == [1])
    assert (tmp_path / "stage" / "1" / "geo").read_text() == "two"


def test_inputs_of_a_failed_job_that_its_site_still_knows_are_staged_anew_when_it_is_retried(
    tmp_path: Path, site: GrantingSite
) -> None:
    card = tmp_path / "card"
    card.write_text("one")
    one = Input(name="geo", url=str(card))
    site.lease(1, one)
    site.until(lambda: site.granted == [1])
    site.fail(1)
    assert not site.granted
    card.write_text("two")
    site.lease(1, one)
    site.until(lambda: site.granted == [1])
    assert (tmp_path / "stage" / "1" / "geo").read_text() == "two"


def test_an_input_that_can_never_fit_is_refused_with_the_numbers(tmp_path: Path, site: GrantingSite) -> None:
    site.lease(1, shared(tmp_path, "huge", 11 * MB))
    site.until(lambda: bool(site.refused))
    (report,) = site.refused
    assert report.evidence is not None
    assert "needs 11000000 bytes of inputs in 1 files" in report.evidence.message
    assert "at most 10000000 bytes" in report.evidence.message


def test_a_job_whose_events_have_more_files_than_the_stage_holds_runs_in_steps(
    tmp_path: Path, site: GrantingSite
) -> None:
    events = 30
    for number in range(events):
        shared(tmp_path, f"e{number}", MB)
    (tmp_path / "list").write_text("".join(f"{tmp_path}/e{number}\n" for number in range(events)))
    one = Input(name="in", url=str(tmp_path / "list"), kind=InputKind.EACH)
    site.lease(1, one, events)
    job = site.log.pool.state.jobs[1]
    for _ in range(events):
        site.until(lambda: bool(job.grants) or not job.open)
        with site.stage._lock:  # between a copy's arrival and the end of its reservation it counts twice
            assert site.stage.cache.bytes + site.stage.budget.taken.bytes <= 10 * MB
        for grant in list(job.grants.values()):  # as if these had ended
            for first, end in list(grant.open):
                site.log.pool.settlement.close(job, first, end)
        site.log.pool.settlement.forget_grants(job, cancel=False)
        if not job.open:
            break
    assert not job.open
    assert not site.refused


def test_a_job_that_has_waited_for_room_for_too_long_goes_back_for_the_site_s_sake(
    tmp_path: Path, site: GrantingSite
) -> None:
    site.lease(1, shared(tmp_path, "one", 6 * MB))
    site.until(lambda: site.granted == [1])
    site.lease(2, shared(tmp_path, "two", 6 * MB))
    site.until(lambda: bool(site.granting.inputs.waits_for(2)))
    site.granting.tend()
    assert not site.refused
    budget = site.stage.budget
    budget.waiting[2] = budget.waiting[2]._replace(since_s=clock.monotonic_s() - constants.WAIT_MAX_S)
    site.granting.inputs._next_late_s = 0.0
    site.granting.tend()
    (report,) = site.refused
    assert report.job == 2
    assert report.evidence is not None
    assert (report.evidence.failure, report.evidence.fault) == ("stage_in", "site")
    assert "has waited 3 d 00 h for room for 6 MB" in report.evidence.message
    assert not budget.waiting
    assert site.granted == [1]


def test_jobs_that_wait_for_room_ask_for_no_nodes_until_they_have_it(
    tmp_path: Path, site: GrantingSite
) -> None:
    workload = Workload(site.log, site.granting._preparer._applications, *site.granting.waiting)
    site.lease(1, shared(tmp_path, "one", 6 * MB), 3)
    site.until(lambda: site.granted == [1])
    for job in range(2, 7):
        site.lease(job, shared(tmp_path, f"in{job}", 6 * MB), 4)
    demand = workload.demand(cores=1, more=False)
    assert (demand.events, demand.is_guessed) == (3 + 5 * 4, True)
    (app,) = {key.app for key in site.log.pool.settlement.load}
    site.log.pool.state.rates[app] = site_state.Rate(wall_s=8, events=4)
    demand = workload.demand(cores=1, more=False)
    assert (demand.core_s, demand.is_guessed) == (2.0 * demand.events, False)
    later = Workload(site.log, site.granting._preparer._applications, *site.granting.waiting)
    demand = later.demand(cores=1, more=False)
    assert (demand.core_s, demand.is_guessed) == (2.0 * demand.events, True), "none of this work has ended"
    site.log.pool.state.rates[app] = site_state.Rate(wall_s=10, events=5)
    assert not later.demand(cores=1, more=False).is_guessed
    site.until(lambda: len(site.stage.budget.waiting) == 5)
    site.until(lambda: workload.demand(cores=1, more=False).events == 3)
    site.cancel(6)
    site.cancel(1)
    site.until(lambda: len(site.granted) == 1)
    assert workload.demand(cores=1, more=False).events == 4
    for _ in range(4):
        site.cancel(site.granted[0])
        site.until(lambda: bool(site.granted) or not site.log.pool.state.jobs)
    assert not site.granting.inputs.waiting_load.total
    assert not site.granting.inputs.waiting_load._jobs


def test_jobs_that_are_not_inspected_as_too_many_wait_ask_for_no_nodes(
    tmp_path: Path, site: GrantingSite
) -> None:
    site.granting.inputs._waiting_max = 2
    workload = Workload(site.log, site.granting._preparer._applications, *site.granting.waiting)
    for job in range(1, 7):
        site.lease(job, shared(tmp_path, f"in{job}", 6 * MB))
        site.until(lambda: bool(site.granted) and workload.demand(cores=1, more=False).events == 1)
    assert len(site.stage.budget.waiting) == 2


def test_jobs_are_inspected_some_at_a_time_for_inputs_that_are_over(
    tmp_path: Path, site: GrantingSite
) -> None:
    """All of a million jobs were, every two seconds, in the agent's loop."""
    site.granting.inputs._trimmed_max = 2
    for job in range(1, 10):
        site.lease(job, shared(tmp_path, f"in{job}", MB))
        site.until(lambda job=job: job in site.granted)  # type: ignore[misc]
    site.lease(10, shared(tmp_path, "large", 5 * MB))
    site.until(lambda: bool(site.granting.inputs.waits_for(10)))
    for number in range(1, 10):  # as if their events had ended, and nobody had said that the jobs have
        found = site.log.pool.state.jobs[number]
        for grant in list(found.grants.values()):
            for first, end in list(grant.open):
                site.log.pool.settlement.close(found, first, end)
    inputs = site.granting.inputs
    site.until(lambda: 10 in site.granted)
    assert len(inputs._trimmed) > 2


def test_what_an_earlier_agent_staged_is_inspected_however_many_wait(
    tmp_path: Path, site: GrantingSite
) -> None:
    site.granting.inputs._waiting_max = 0
    site.stage.jobs_before = frozenset([2])
    for job in (1, 2):
        site.lease(job, shared(tmp_path, f"in{job}", MB))
    site.until(lambda: site.granted == [2])


def test_jobs_whose_inputs_come_cost_a_glance_in_each_tick(tmp_path: Path, site: GrantingSite) -> None:
    """Thousands of jobs wait for hours; each tick defined all of them again."""
    held = threading.Event()
    try:
        for _ in range(2):  # both threads
            site.executor.submit(held.wait)
        one = shared(tmp_path, "in", 1_000)
        for job in range(1, 201):
            site.lease(job, one)
        site.tick()
        assert site.granting.inputs.is_under_way(200)
        lines = lines_run(lambda: site.granting.plan(site.fleet, Launching()))
    finally:
        held.set()
    assert lines / 200 < 50
    site.until(lambda: len(site.granted) == 200)
