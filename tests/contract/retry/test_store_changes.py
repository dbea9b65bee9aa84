"""Retries that change their jobs, and campaigns that must be new, on both databases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.contract.server_world import Site, World, done, failed, leases, release_of

from tidemill.config.quotas import Quotas
from tidemill.model.identity import Identity, Role, Via
from tidemill.model.job import JobSpec, Output, Resources
from tidemill.model.retry.changes import JobChanges
from tidemill.server.core.dispatcher import DispatchRules
from tidemill.server.errors import ConflictError, QuotaError, RequestError
from tidemill.wire.api import (
    ActionRequest,
    Capacity,
    DeliveredReport,
    DeliverOrder,
    LeaseOrder,
    OutputRow,
)

MEMORY = JobChanges(memory_mb=3000)
SMALL = JobSpec(app="sim", events=4, retries=0, failed_max=3, resources=Resources(memory_mb=100, cores=1))


def retried(world: World, *jobs: int, changes: JobChanges | None = MEMORY, **more: Any) -> int:
    return world.dispatcher.handle_retry(ActionRequest(jobs=list(jobs), changes=changes, **more)).changed


def told(lease: LeaseOrder) -> JobSpec:
    assert lease.spec is not None
    return lease.spec


def test_a_failed_job_runs_again_with_what_the_retry_changes(world: World) -> None:
    (job,) = world.submit(SMALL)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 2), failed(lease, 2), failed(lease, 3))
    assert world.state(job) == "PARTIAL"
    changes = JobChanges(
        memory_mb=3000, scratch_mb=4000, timeout_s=60, cores=2, env={"A": "b"}, retries=5, failed_max=1,
        at_once=1,
    )  # fmt: skip
    assert retried(world, job, changes=changes) == 1
    (again,) = leases(site.sync())
    spec = told(again)
    assert (again.first, spec.resources.memory_mb, spec.resources.timeout_s, spec.resources.cores) == (
        2,
        3000,
        60,
        2,
    )
    assert spec.resources.scratch_mb == 4000
    assert (spec.env, spec.retries, spec.failed_max, spec.at_once) == ({"A": "b"}, 5, 1, 1)
    assert world.job(job).row.events_done == 2
    site.sync(done(again), *(done(each) for each in leases(site.sync(done(again)))))
    assert world.job(job).spec.resources.memory_mb == 3000


def test_counters_follow_a_job_to_its_new_kind(world: World) -> None:
    numbers = [number for _ in range(3) for number in world.submit(SMALL)]
    site = Site(world)
    first, *_ = leases(site.sync(ranges=1))
    site.sync(*(failed(first, event) for event in range(4)), want=0)
    assert world.dispatcher.handle_retry(ActionRequest(campaign="c", changes=MEMORY)).changed == 3
    (kind,) = world.reader.rows("open_kinds")
    counted = world.reader.rows("open_counts")
    assert ({each[0] for each in counted}, sum(each[3] for each in counted), kind[4]) == ({kind[0]}, 3, 3000)
    assert {told(each).resources.memory_mb for each in leases(site.sync())} == {3000}
    assert world.dispatcher.handle_cancel(ActionRequest(jobs=numbers)).changed == 3


def test_jobs_that_wait_or_run_get_the_change_for_what_is_leased_from_then_on(world: World) -> None:
    (job,) = world.submit(msgspec.structs.replace(SMALL, events=100))
    site = Site(world)
    (lease,) = leases(site.sync(want=10.0, ranges=1))
    assert lease.count < 100
    assert retried(world, job) == 1
    (more,) = leases(site.sync(want=10.0, ranges=1))
    assert told(more).resources.memory_mb == 3000
    (third,) = leases(site.sync(want=10.0, ranges=1))
    assert third.spec is None
    assert retried(world, job, changes=None) == 0


def test_a_larger_job_goes_only_where_it_fits_and_a_complete_one_stays_as_it_is(world: World) -> None:
    (job,) = world.submit(SMALL)
    (ended,) = world.submit(JobSpec(app="sim"))
    site = Site(world)
    found = {each.job: each for each in leases(site.sync())}
    site.sync(done(found[ended]), *(failed(found[job], event) for event in range(4)))
    large = Capacity(
        want_core_s=1e6, want_ranges_max=10, slot_cores_max=4, slot_memory_mb_max=8000, devices={}, event_s={}, nodes=1,
        busy_cores=0, adhoc=False,
    )  # fmt: skip
    other = Site(world, "large")
    other.sync(capacity=large)
    assert retried(world, job, ended, changes=JobChanges(memory_mb=5000)) == 1
    assert leases(site.sync()) == []
    assert [lease.job for lease in leases(other.sync(capacity=large))] == [job]
    assert world.job(ended).spec.resources.memory_mb is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (JobChanges(memory_mb=0), "`resources.memory_mb` is 0"),
        (JobChanges(memory_mb=100, memory_mb_max=50), "`resources.memory_mb_max` is 50"),
        (JobChanges(scratch_mb=0), "`resources.scratch_mb` is 0"),
        (JobChanges(retries=5000), "`retries` must be 0 to 1000"),
        (JobChanges(env={"1x": ""}), "is not a valid name of a variable"),
        (JobChanges(output_dir="/a\nb"), "holds control characters"),
    ],
)
def test_a_change_that_is_not_legal_changes_nothing(world: World, changes: JobChanges, words: str) -> None:
    (job,) = world.submit(SMALL)
    with pytest.raises(RequestError, match=words):
        retried(world, job, changes=changes)
    assert world.job(job).spec == msgspec.structs.replace(SMALL, name=None)


def test_a_cancel_takes_no_changes(world: World) -> None:
    (job,) = world.submit(SMALL)
    with pytest.raises(RequestError, match="what a retry changes"):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[job], changes=MEMORY))


@pytest.mark.timing(server={"CAMPAIGN_KINDS_MAX": 1})
def test_a_change_counts_under_the_quotas_of_its_submitter(world: World) -> None:
    ada = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE)
    world.dispatcher.rules = DispatchRules(quotas=Quotas())
    (job,) = world.submit(SMALL, owner="ada")
    with pytest.raises(QuotaError, match="kinds of jobs in one campaign"):
        world.dispatcher.handle_retry(ActionRequest(jobs=[job], changes=MEMORY), ada)
    assert world.job(job).spec.resources.memory_mb == 100


def test_the_former_specification_leaves_the_database_and_its_owners_account(world: World) -> None:
    (job,) = world.submit(SMALL, owner="ada")
    before = int(world.reader.rows("stored_of", owner="ada")[0][0])
    for memory_mb in (200, 300, 400):
        assert retried(world, job, changes=JobChanges(memory_mb=memory_mb)) == 1
    after = int(world.reader.rows("stored_of", owner="ada")[0][0])
    assert (after, len(world.reader.rows("specs_by_id", ids=list(range(10))))) == (before, 1)


def test_specifications_of_several_owners_count_on_the_account_of_each(world: World) -> None:
    owners = ("ada", "bob")
    jobs = [world.submit(SMALL, campaign=name, owner=name)[0] for name in owners]

    def stored() -> list[int]:
        return [int(world.reader.rows("stored_of", owner=name)[0][0]) for name in owners]

    before = stored()
    assert retried(world, *jobs, changes=JobChanges(memory_mb=3000)) == 2
    assert stored() == [each + len("3000") - len("100") for each in before]


def test_a_retry_with_changes_counts_once_for_a_key_and_is_in_the_audit_log(world: World) -> None:
    (job,) = world.submit(SMALL)
    assert retried(world, job, key="k") == 1
    request = ActionRequest(jobs=[job], changes=MEMORY, key="k")
    assert world.dispatcher.handle_retry(request).repeated
    with pytest.raises(ConflictError, match="was used for another"):
        retried(world, job, changes=JobChanges(memory_mb=99), key="k")
    retried(world, job, changes=JobChanges(env={"SECRET": "value"}))
    notes = [bytes(row[-1]).decode() for row in world.reader.rows("audit_pending", limit=100)]
    assert sum('"changes":["memory_mb"]' in each for each in notes) == 1
    assert not any("value" in each for each in notes)


def test_what_was_not_delivered_goes_to_the_new_directory(world: World) -> None:
    outputs = [
        Output(name="hits", path="h", url="file:///full/c/"),
        Output(name="log", path="l", url="file:///x/"),
    ]
    (job,) = world.submit(JobSpec(app="reco", outputs=outputs, output_dir="file:///full"))
    site = Site(world)
    (lease,) = leases(site.sync())
    (order,) = (each for each in site.sync(done(lease, outputs=True)) if isinstance(each, DeliverOrder))
    assert order.output_dir is None
    evidence = failed(lease, 0).evidence
    site.sync(DeliveredReport(n=0, job=job, outputs=[], evidence=evidence, done=order.done))
    assert world.state(job) == "FAILED"
    assert retried(world, job, changes=JobChanges(output_dir="file:///other")) == 1
    (order,) = (each for each in site.sync() if isinstance(each, DeliverOrder))
    assert order.output_dir == "file:///other"
    assert [each.url for each in world.job(job).spec.outputs or ()] == ["file:///other/c/", "file:///x/"]
    row = OutputRow(name="hits", url="file:///other/c/h", size_bytes=1, sha256="")
    site.sync(DeliveredReport(n=0, job=job, outputs=[row], evidence=None, done=order.done))
    assert world.state(job) == "COMPLETED"


@pytest.mark.parametrize("canceled", [False, True])
def test_a_delivery_that_is_under_way_goes_to_the_new_directory_too(world: World, canceled: bool) -> None:
    """The site learned of the change only with the next delivery, which needed another retry."""
    outputs = [Output(name="hits", path="h")]
    spec = JobSpec(app="reco", events=2, outputs=outputs, output_dir="file:///full")
    (job,) = world.submit(spec)
    site = Site(world)
    (lease,) = leases(site.sync())
    if canceled:
        world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
        orders = site.sync(done(lease, 0, 1, outputs=True), release_of(lease, 1, 1))
    else:
        orders = site.sync(done(lease, outputs=True))
    (first,) = (each for each in orders if isinstance(each, DeliverOrder))
    assert first.merge is not canceled
    assert first.output_dir is None

    assert retried(world, job, changes=JobChanges(output_dir="file:///other")) == 1

    (again,) = (each for each in site.sync() if isinstance(each, DeliverOrder))
    assert again == msgspec.structs.replace(first, n=again.n, output_dir="file:///other")
    assert retried(world, job, changes=JobChanges(memory_mb=7)) == 1
    assert not [each for each in site.sync() if isinstance(each, DeliverOrder)]


def test_what_may_grow_goes_only_where_the_most_fits(world: World) -> None:
    grows = Resources(memory_mb=100, memory_mb_max=5000)
    (job,) = world.submit(msgspec.structs.replace(SMALL, resources=grows))
    site = Site(world)
    assert leases(site.sync()) == []
    assert world.job(job).waits_for == "resources_too_large"
    retried(world, job, changes=JobChanges(memory_mb=100, memory_mb_max=4000))
    (lease,) = leases(site.sync())
    assert told(lease).resources == Resources(memory_mb=100, memory_mb_max=4000, cores=None)


def test_a_campaign_that_must_be_new_is_refused_where_it_exists(world: World) -> None:
    world.submit(SMALL, campaign="new", new=True)
    with pytest.raises(ConflictError, match="campaign `new` exists"):
        world.submit(SMALL, campaign="new", new=True)
    assert len(world.submit(SMALL, campaign="new")) == 1


def test_a_new_campaign_is_answered_alike_when_its_key_comes_again(world: World) -> None:
    from tidemill.wire.api import SubmitRequest

    request = SubmitRequest(key="k", campaign="new", jobs=[SMALL], new=True)
    first = world.dispatcher.handle_submit(request)
    again = world.dispatcher.handle_submit(request)
    assert (again.first_job, again.repeated) == (first.first_job, True)


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        (JobChanges(cores=99), "--cores 4"),
        (JobChanges(memory_mb=9000), "--memory 4000MB"),
        (JobChanges(memory_mb=100, memory_mb_max=9000), "--memory 4000MB"),
    ],
)
def test_a_retry_does_not_make_a_job_too_large_for_every_site(
    world: World, changes: JobChanges, most: str
) -> None:
    (job,) = world.submit(SMALL)
    (lease,) = leases(Site(world).sync())
    with pytest.raises(RequestError, match=f"job {job} with these changes: no slot of any site has") as found:
        retried(world, job, changes=changes)
    assert most in (found.value.hint or "")
    assert world.job(job).spec == told(lease)


def test_a_job_that_waits_for_a_larger_site_may_be_changed_in_all_that_makes_it_no_larger(
    world: World,
) -> None:
    Site(world).sync()
    (large,) = world.submit(JobSpec(app="sim", resources=Resources(cores=99)))
    assert retried(world, large, changes=JobChanges(env={"A": "b"}, retries=3)) == 1
    with pytest.raises(RequestError, match="no slot of any site has 50 cores"):
        retried(world, large, changes=JobChanges(cores=50))
    assert retried(world, large, changes=JobChanges(cores=4)) == 1


def test_a_retry_asks_no_site_where_none_has_joined(world: World) -> None:
    (job,) = world.submit(SMALL)
    assert retried(world, job, changes=JobChanges(cores=99)) == 1
