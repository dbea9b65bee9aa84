"""Stays in wards that are counted once, whatever becomes of the job; jobs that their home gives back again."""

from __future__ import annotations

import msgspec
import pytest
from tests.contract.hospital.hospital_world import AWAY, HOME, SLOW, Hospital, lose, make
from tests.contract.server_world import SIM, Site, done, leases
from tests.contract.test_store_delivery import delivered, one

from tidemill.config.hospital import Ward
from tidemill.model.failure import Evidence, FailureClass, FaultKind
from tidemill.model.job import Input, JobSpec
from tidemill.server.core.settling import REFUSALS_MAX
from tidemill.server.database.store import Store
from tidemill.wire.api import (
    ActionRequest,
    DeliveredReport,
    DeliverOrder,
    LeaseOrder,
    ReleaseReport,
)

LATE = msgspec.structs.replace(SLOW, waited_s=7200.0)


def given_back(lease: LeaseOrder, *, fault: str) -> ReleaseReport:
    evidence = Evidence(failure=FailureClass.STAGE_IN, message="the origin does not answer", fault=fault)
    return ReleaseReport(
        n=0, lease=lease.lease, job=lease.job, first=lease.first, count=lease.count, reason="refused",
        evidence=evidence,
    )  # fmt: skip


def test_a_retried_delivery_of_a_job_in_a_ward_counts_the_stay_once(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(JobSpec(app="reco", home="home", events=2))
    home, other = Site(world, "home"), Site(world, "a")
    home.sync(want=0)
    other.sync(want=0)
    lose(world, other)
    (lease,) = leases(other.sync())
    order = one(other.sync(done(lease, outputs=True), want=0), DeliverOrder)
    away = Evidence(failure=FailureClass.STAGE_OUT, message="no space left")
    other.sync(DeliveredReport(n=0, job=order.job, outputs=[], evidence=away), want=0)
    assert world.state(job) == "FAILED"
    assert (world.rows()["away"].failed, world.rows()["away"].there) == (1, 0)

    world.dispatcher.handle_retry(ActionRequest(jobs=[job]))
    row = world.rows()["away"]
    assert (row.failed, row.there) == (0, 1), "it goes on there"
    assert world.job(job).stays[0].outcome == "there"

    other.sync(delivered(one(other.sync(want=0), DeliverOrder)), want=0)
    assert world.state(job) == "COMPLETED"
    row = world.rows()["away"]
    assert (row.cured, row.failed, row.there, row.share) == (1, 0, 0, 1.0)
    assert [each.outcome for each in world.job(job).stays] == ["cured"]


def test_an_accepted_job_in_a_ward_counts_the_stay_once(open_worlds: list[Hospital], store: Store) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(JobSpec(app="reco", home="home", events=2))
    home, other = Site(world, "home"), Site(world, "a")
    home.sync(want=0)
    other.sync(want=0)
    lose(world, other)
    (lease,) = leases(other.sync())
    order = one(other.sync(done(lease, outputs=True), want=0), DeliverOrder)
    away = Evidence(failure=FailureClass.STAGE_OUT, message="no space left")
    other.sync(DeliveredReport(n=0, job=order.job, outputs=[], evidence=away), want=0)
    assert (world.rows()["away"].failed, world.rows()["away"].there) == (1, 0)

    world.dispatcher.handle_accept(ActionRequest(jobs=[job]))
    assert (world.rows()["away"].failed, world.rows()["away"].there) == (0, 1), "its delivery goes on there"

    other.sync(delivered(one(other.sync(want=0), DeliverOrder)), want=0)
    assert world.state(job) == "COMPLETED", "all its events are done"
    row = world.rows()["away"]
    assert (row.cured, row.failed, row.there, row.share) == (1, 0, 0, 1.0)
    assert [each.outcome for each in world.job(job).stays] == ["cured"]


def test_a_job_that_its_home_gives_back_for_causes_of_its_own_has_waited_all_the_time(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, LATE)
    (job,) = world.submit(HOME)
    home, other = Site(world, "home"), Site(world, "a")
    other.sync(want=0)
    for _ in range(12):
        for lease in leases(home.sync()):
            home.sync(given_back(lease, fault=FaultKind.SITE.value), want=0)
        world.pass_time(1200)
        home.sync(want=0)
        other.sync(want=0)
        world.round()
    assert [each.job for each in leases(other.sync())] == [job]
    assert world.job(job).stays[0].why.startswith("waited")


def test_a_job_that_ran_at_home_for_long_and_came_back_waits_from_then_on(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, LATE)
    (job,) = world.submit(HOME)
    home, other = Site(world, "home"), Site(world, "a")
    (lease,) = leases(home.sync())
    world.pass_time(20_000)
    home.sync(msgspec.structs.replace(given_back(lease, fault=""), evidence=None), want=0)
    other.sync(want=0)
    world.round()
    assert leases(other.sync()) == []
    assert [each.job for each in leases(home.sync())] == [job]


@pytest.mark.timing(server={"MOVES_MAX": 1})
def test_a_job_that_its_home_refuses_too_often_in_a_stated_class_is_treated_instead_of_failed(
    open_worlds: list[Hospital], store: Store
) -> None:
    ward = Ward(name="stage", failures=["stage_in"], sites=["a"])
    world = make(open_worlds, store, ward)
    (job,) = world.submit(HOME)
    home, other = Site(world, "home"), Site(world, "a")
    other.sync(want=0)
    for _ in range(REFUSALS_MAX):
        for lease in leases(home.sync()):
            home.sync(given_back(lease, fault=""), want=0)
    assert world.state(job) == "WAITING"
    assert [each.job for each in leases(other.sync())] == [job]
    assert leases(home.sync()) == []


def test_a_site_that_said_what_it_holds_and_was_not_kept_stops_no_other_site(
    open_worlds: list[Hospital], store: Store
) -> None:
    """A site's first sync may be undone after its data were heard, as when the disk is full."""
    world = make(open_worlds, store, data_wait_s=3600)
    (job,) = world.submit(msgspec.structs.replace(SIM, inputs=[Input(name="in", url="root://o:1//d/f")]))
    rules = world.dispatcher._lease_rules
    from tests.contract.hospital.test_store_hospital import near

    from tidemill.server.database.rows import Site as StoredSite

    rules.data.update(StoredSite(id=77, name="gone", capacity=near(("root://o:1", 0.0))))
    assert [each.job for each in leases(Site(world, "here").sync())] == [job]


def test_what_one_site_of_a_ward_refuses_goes_to_another_of_it_first(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(HOME)
    home, first, second = Site(world, "home"), Site(world, "a"), Site(world, "b")
    for each in (home, first, second):
        each.sync(want=0)
    lose(world, first, second)
    (lease,) = leases(first.sync())
    first.sync(given_back(lease, fault=""), want=0)
    assert leases(first.sync()) == [], "the other site has not tried"
    assert [each.job for each in leases(second.sync())] == [job]


def test_jobs_of_a_ward_that_stay_there_are_not_read_again_in_every_round(
    open_worlds: list[Hospital], store: Store
) -> None:
    both = Ward(name="both", home_down=True, waited_s=3600.0, sites=["a"])
    world = make(open_worlds, store, both)
    jobs = world.submit(*[HOME] * 20)
    home, other = Site(world, "home"), Site(world, "a")
    home.sync(want=0)
    other.sync(want=0)
    world.pass_time(4000)
    home.sync(want=0)
    other.sync(want=0)
    world.round()
    assert world.rows()["both"].there == len(jobs)
    read: list[int] = []

    def reads() -> int:
        loaded = world.dispatcher.writer._session
        read.clear()
        rows = loaded.rows

        def counted(name: str, **values: object) -> list[tuple[object, ...]]:
            found: list[tuple[object, ...]] = rows(name, **values)
            read.append(len(found) if name == "ready_in" else 0)
            return found

        loaded.rows = counted  # type: ignore[method-assign,assignment]
        world.round()
        loaded.rows = rows  # type: ignore[method-assign]
        return sum(read)

    assert reads() >= len(jobs)
    assert reads() <= 2, "they were admitted because they waited: the home is up, and they stay"
    lose(world, other)
    home.sync(want=0)
    other.sync(want=0)
    world.pass_time(100)
    assert reads() >= len(jobs), "after a while, and when the home was down, they are asked again"
