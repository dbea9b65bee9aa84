"""One suite over both databases: jobs with a home, the wards that treat them elsewhere, and data that decide."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.contract.hospital.hospital_world import (
    AWAY,
    HOME,
    MEMORY,
    SLOW,
    Announced,
    Hospital,
    bounce,
    downtime,
    lose,
    make,
)
from tests.contract.server_world import SIM, Site, done, failed, leases, release_of
from tests.timing import timing

from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import Input, JobSpec, Resources
from tidemill.server import constants
from tidemill.server.database.store import Store
from tidemill.server.hospital import downtimes
from tidemill.server.read import hospital
from tidemill.wire.api import Capacity, FailureReport, LeaseOrder
from tidemill.wire.far import HeldData, NearData


def test_a_job_with_a_home_goes_there_only_and_its_site_never_learns_of_the_key(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(HOME)
    home, other = Site(world, "home"), Site(world, "a")
    assert leases(other.sync()) == []
    (lease,) = leases(home.sync())
    assert lease.job == job
    assert lease.spec is not None
    assert lease.spec.home is msgspec.UNSET
    assert lease.cure is None
    assert world.job(job).spec.home == "home"


def test_the_queue_of_a_lost_home_is_treated_elsewhere_and_new_jobs_go_home_afterwards(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    jobs = world.submit(*[HOME] * 10)
    home, other, stranger = Site(world, "home"), Site(world, "a"), Site(world, "x")
    for each in (home, other, stranger):
        each.sync(want=0)
    lose(world, other, stranger)
    assert leases(stranger.sync()) == [], "it is not of the ward"
    got = leases(other.sync())
    assert sorted(each.job for each in got) == jobs
    assert got[0].cure is not None
    assert got[0].cure.ward == "away"
    other.sync(*[done(each) for each in got[:9]], want=0)
    home.sync(want=0)
    world.round()
    (new,) = world.submit(HOME)
    assert [each.job for each in leases(home.sync())] == [new]
    assert leases(other.sync(done(got[9]))) == []
    row = world.rows()["away"]
    assert (row.cured, row.failed, row.there, row.share) == (10, 0, 0, 1.0)
    (stay,) = world.job(jobs[0]).stays
    assert (stay.ward, stay.outcome, stay.site) == ("away", "cured", "a")
    assert stay.why.startswith("home_down: site home is silent")


def test_jobs_that_nobody_leased_go_home_when_it_is_back(open_worlds: list[Hospital], store: Store) -> None:
    world = make(open_worlds, store, AWAY)
    jobs = world.submit(*[HOME] * 5)
    home, other = Site(world, "home"), Site(world, "a")
    home.sync(want=0)
    other.sync(want=0)
    lose(world, other)
    assert world.job(jobs[0]).waits_for == "in_ward"
    got = leases(other.sync(ranges=2))
    home.sync(want=0)
    world.round()
    assert leases(other.sync()) == []
    assert sorted(each.job for each in leases(home.sync())) == sorted(set(jobs) - {each.job for each in got})
    row = world.rows()["away"]
    assert (row.home, row.there) == (3, 2)


def test_a_job_is_moved_no_more_often_than_the_ward_allows(open_worlds: list[Hospital], store: Store) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(HOME)
    home, other = Site(world, "home"), Site(world, "a")
    bounce(world, home, other, times=4)
    assert len(world.job(job).stays) == constants.MOVES_MAX
    assert leases(other.sync()) == [], "it has used up its moves, and waits at home"
    assert [each.job for each in leases(home.sync())] == [job]


def test_a_job_that_waited_too_long_goes_to_the_ward_and_its_home_may_still_have_it(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, SLOW)
    first, second = world.submit(HOME, HOME)
    home, other = Site(world, "home"), Site(world, "a")
    home.sync(want=0)
    other.sync(want=0)
    world.round()
    (here,) = leases(home.sync(ranges=1))
    (there,) = leases(other.sync())
    assert (here.job, here.cure, there.job) == (first, None, second)
    home.sync(done(here), want=0)
    other.sync(done(there), want=0)
    row = world.rows()["slow"]
    assert (row.cured, row.home, row.there) == (1, 1, 0)


def out_of_memory(lease: LeaseOrder, event: int = 0) -> FailureReport:
    evidence = Evidence(failure=FailureClass.MEMORY, message="the slot's memory was used up")
    return FailureReport(
        n=0, lease=lease.lease, job=lease.job, first=event, count=1, event=event, final=True, evidence=evidence
    )  # fmt: skip


def test_a_stated_failure_runs_again_with_gentler_settings_and_fails_there_for_good(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, MEMORY)
    spec = msgspec.structs.replace(HOME, events=3, resources=Resources(memory_mb=500))
    (job,) = world.submit(spec)
    home, other = Site(world, "home"), Site(world, "a")
    other.sync(want=0)
    (lease,) = leases(home.sync())
    assert leases(home.sync(done(lease, 0, 1), out_of_memory(lease, 1))) == [], "home has failed it"
    (treated,) = leases(other.sync())
    assert (treated.first, treated.count) == (1, 1)
    assert treated.spec is not None
    assert (treated.spec.resources.memory_mb, treated.spec.resources.cores) == (1000, 4)
    assert treated.cure is not None
    assert (treated.cure.read, treated.cure.whole_node) == ("cache", True)
    home.sync(done(lease, 2, 1), want=0)
    other.sync(done(treated), want=0)
    assert world.state(job) == "COMPLETED"
    assert world.rows()["memory"].cured == 1
    (second,) = world.submit(spec)
    (lease,) = leases(home.sync())
    home.sync(out_of_memory(lease, 0), want=0)
    (treated,) = leases(other.sync())
    other.sync(out_of_memory(treated, 0), want=0)
    assert world.state(second) == "FAILED", "the only ward has treated it"
    assert (world.rows()["memory"].failed, len(world.job(second).stays)) == (1, 1)


@pytest.mark.parametrize("most", [1, 2])
def test_a_job_that_fails_in_as_many_wards_as_it_may_enter_fails_though_another_would_treat_it(
    open_worlds: list[Hospital], store: Store, most: int
) -> None:
    wards = [msgspec.structs.replace(MEMORY, name=f"memory-{number}") for number in range(3)]
    with timing(server={"MOVES_MAX": most}):
        world = make(open_worlds, store, *wards)
        (job,) = world.submit(HOME)
        home, other = Site(world, "home"), Site(world, "a")
        other.sync(want=0)
        (lease,) = leases(home.sync())
        home.sync(out_of_memory(lease), want=0)
        for _ in range(most):
            assert world.state(job) != "FAILED"
            (lease,) = leases(other.sync())
            other.sync(out_of_memory(lease), want=0)
        assert (world.state(job), len(world.job(job).stays)) == ("FAILED", most)


def test_other_failures_and_jobs_without_a_home_fail_as_ever(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, MEMORY)
    with_home, without = world.submit(HOME, SIM)
    home, other = Site(world, "home"), Site(world, "a")
    other.sync(want=0)
    got = {each.job: each for each in leases(home.sync())}
    home.sync(failed(got[with_home], 0), out_of_memory(got[without], 0), want=0)
    assert (world.state(with_home), world.state(without)) == ("FAILED", "FAILED")


def test_a_job_whose_outputs_lie_at_home_stays_there(open_worlds: list[Hospital], store: Store) -> None:
    world = make(open_worlds, store, MEMORY)
    (job,) = world.submit(JobSpec(app="reco", home="home", events=2))
    home, other = Site(world, "home"), Site(world, "a")
    other.sync(want=0)
    (lease,) = leases(home.sync())
    home.sync(done(lease, 0, 1, outputs=True), out_of_memory(lease, 1), want=0)
    assert world.job(job).stays == []
    assert leases(other.sync()) == []


def test_a_site_that_gives_work_of_a_ward_back_leaves_it_there(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(JobSpec(app="reco", home="home"))
    home, first, second = Site(world, "home"), Site(world, "a"), Site(world, "b")
    for each in (home, first, second):
        each.sync(want=0)
    lose(world, first, second)
    (lease,) = leases(first.sync())
    first.sync(release_of(lease, 0, 1), want=0)
    assert [each.job for each in leases(second.sync())] == [job]
    assert len(world.job(job).stays) == 1


def test_wards_outlive_a_restart_and_a_ward_that_is_gone_sends_its_jobs_home(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    jobs = world.submit(HOME, HOME)
    home, other = Site(world, "home"), Site(world, "a")
    home.sync(want=0)
    other.sync(want=0)
    lose(world, other)
    world.again()
    assert len(leases(other.sync(ranges=1))) == 1
    world.rules = world.rules._replace(wards=())
    world.again()
    other.sync(want=0)
    world.round()
    assert [each.job for each in leases(home.sync())] == [jobs[1]]
    (row,) = hospital.ward_rows(world.reader, ())
    assert (row.ward, row.is_open, row.there, row.home) == ("away", False, 1, 1)


@pytest.mark.timing(server={"DOWNTIMES_LEAD_S": 1800})
def test_a_downtime_moves_the_queue_shortly_before_and_back_after(
    open_worlds: list[Hospital], store: Store
) -> None:
    source = Announced()
    world = make(open_worlds, store, AWAY, downtimes=source.reader)
    jobs = world.submit(*[HOME] * 4)
    home, other = Site(world, "home"), Site(world, "a")
    home.sync(want=0)
    other.sync(want=0)
    source.say(downtime(datetime.now(UTC) + timedelta(minutes=20)))
    world.dispatcher.read_downtimes()
    world.round()
    assert leases(home.sync()) == [], "work that begins now would be cut short"
    (got,) = leases(other.sync(ranges=1))
    assert world.job(jobs[0]).stays[0].why == "home_down: downtime: new racks"
    listed = downtimes.listed(world.reader, source.reader, now_us=world.dispatcher.server_clock.now_us())
    assert [(row.site, row.is_now, row.reason) for row in listed.downtimes] == [("home", True, "new racks")]
    source.fail()
    world.dispatcher.read_downtimes()
    world.round()
    assert leases(home.sync()) == [], "what a source said last holds"
    source.say()
    world.dispatcher.read_downtimes()
    world.round()
    assert sorted(each.job for each in leases(home.sync())) == sorted(set(jobs) - {got.job})


# ---- data ---------------------------------------------------------------------------------------------------------


def reads(place: str, **more: Any) -> JobSpec:
    return JobSpec(app="sim", inputs=[Input(name="in", url=f"root://{place}/f.root")], **more)


def near(*prefixes: tuple[str, float], holds: tuple[tuple[str, float], ...] = ()) -> Capacity:
    return Capacity(
        want_core_s=1e6, want_ranges_max=5000, slot_cores_max=4, slot_memory_mb_max=4000, devices={}, event_s={},
        nodes=1, busy_cores=0, adhoc=False, near=[NearData(*each) for each in prefixes],
        holds=[HeldData(*each) for each in holds],
    )  # fmt: skip


def jobs_of(site: Site, capacity: Capacity, ranges: int = 100) -> list[int]:
    return [
        each.job
        for each in leases(site.sync(capacity=msgspec.structs.replace(capacity, want_ranges_max=ranges)))
    ]


def test_jobs_whose_data_are_here_go_first_and_priority_before_that(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store)
    far, here, first = world.submit(
        reads("far:1094//d"), reads("here:1094//d/e"), reads("far:1094//d", priority=5)
    )
    site = Site(world)
    capacity = near(("root://here:1094/d", 1.0))
    assert [jobs_of(site, capacity, 1) for _ in range(3)] == [[first], [here], [far]]


def test_a_job_waits_for_the_site_that_is_near_to_its_data_and_not_for_ever(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, data_wait_s=3600)
    job, other = world.submit(reads("o:1//d"), SIM)
    held = Site(world, "near")
    held.sync(capacity=msgspec.structs.replace(near(holds=(("root://o:1/d", 0.9),)), want_core_s=0))
    far = Site(world, "far")
    assert jobs_of(far, near(("root://o:1/", 100.0))) == [other]
    world.rules = world.rules._replace(data_wait_s=0)
    world.again()
    held.sync(capacity=msgspec.structs.replace(near(holds=(("root://o:1/d", 0.9),)), want_core_s=0))
    assert jobs_of(far, near(("root://o:1/", 100.0))) == [job]


def test_an_old_job_of_low_priority_is_found_behind_many_young_ones_that_wait_for_a_nearer_site(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, data_wait_s=600)
    (old,) = world.submit(reads("o:1//d"))
    world.pass_time(601)
    for priority in range(1, 6):
        world.submit(*[reads("o:1//d", priority=priority)] * 60)
    held = Site(world, "near")
    held.sync(capacity=msgspec.structs.replace(near(("root://o:1/", 1.0)), want_core_s=0))
    assert jobs_of(Site(world, "far"), near(), 5) == [old]


def test_nobody_waits_for_a_site_that_could_not_run_the_job(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, data_wait_s=3600)
    (job,) = world.submit(reads("o:1//d"))
    held = Site(world, "near")
    small = msgspec.structs.replace(near(("root://o:1/", 0.0)), slot_memory_mb_max=1)
    held.sync(capacity=small)
    assert jobs_of(Site(world, "far"), near()) == [job]


def test_a_campaign_of_many_datasets_has_few_kinds_and_quotas_count_them_as_one(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store)
    jobs = world.submit(*[reads(f"o{k % 50}:1//d{k}") for k in range(400)])
    kinds = world.dispatcher.writer.memory.kinds
    assert 128 <= len(kinds) <= 161
    assert world.dispatcher.writer.memory.work_of("").kinds == 1
    site = Site(world)
    assert sorted(jobs_of(site, near(("root://o7:1/", 1.0)), 500)) == jobs
