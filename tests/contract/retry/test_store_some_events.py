"""Some events of a job are canceled or retried, on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.server_world import SIM, Site, World, done, failed, leases

from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Input, InputKind, JobSpec, Output, ReadAs
from tidemill.server.core.parts.events import CANCELED_GAPS_MAX
from tidemill.server.errors import ConflictError, MissingError, RequestError
from tidemill.server.read import api_pages
from tidemill.wire.api import (
    ActionReply,
    ActionRequest,
    CancelEventsOrder,
    CancelOrder,
    DeliveredReport,
    DeliverOrder,
    DiscardOrder,
    ForgetOrder,
    LeaseOrder,
    Order,
    OutputRow,
)

TEN = JobSpec(app="sim", events=10, failed_max=9)
FILES = JobSpec(app="sim", events=4, failed_max=3, outputs=[Output(name="o", path="o")])


def cancel(world: World, job: int, events: str, **more: Any) -> ActionReply:
    return world.dispatcher.handle_cancel(ActionRequest(jobs=[job], events=events, **more))


def retry(world: World, job: int, events: str, **more: Any) -> ActionReply:
    return world.dispatcher.handle_retry(ActionRequest(jobs=[job], events=events, **more))


def orders(found: list[Order], kind: type) -> list[Any]:
    return [order for order in found if isinstance(order, kind)]


def events_of(found: list[LeaseOrder]) -> str:
    return str(IntervalSet((each.first, each.first + each.count) for each in found))


# ---- what waits --------------------------------------------------------------------------------------------------


def test_canceled_events_are_leased_to_no_site_and_the_job_completes_without_them(world: World) -> None:
    (job,) = world.submit(TEN)
    reply = cancel(world, job, "5-9")
    assert (reply.changed, reply.unchanged) == (5, 0)
    site = Site(world)
    found = leases(site.sync())
    assert events_of(found) == "0-4"
    site.sync(*(done(each) for each in found))
    detail = world.job(job)
    assert (detail.row.state, detail.done, detail.canceled) == ("COMPLETED", "0-4", "5-9")
    assert (detail.row.events_done, detail.row.events_failed, detail.row.events_canceled) == (5, 0, 5)
    assert detail.row.reason == "5 events canceled by the owner"


def test_a_job_all_of_whose_events_are_canceled_is_canceled_and_a_retry_runs_all(world: World) -> None:
    (job,) = world.submit(TEN)
    (after,) = world.submit(JobSpec(app="sim", after=[job]))
    cancel(world, job, "0-3")
    assert world.state(job) == "WAITING"
    cancel(world, job, "4-9", reason="wrong energy")
    assert (world.state(job), world.job(job).row.reason) == ("CANCELED", "wrong energy")
    assert world.state(after) == "FAILED"
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[job])).changed == 1
    assert events_of(leases(Site(world).sync())) == "0-9"


def test_dependents_run_after_a_job_of_which_some_events_were_canceled(world: World) -> None:
    (job,) = world.submit(TEN)
    (after,) = world.submit(JobSpec(app="sim", after=[job]))
    cancel(world, job, "1-9")
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease))
    assert world.state(job) == "COMPLETED"
    assert [each.job for each in leases(site.sync())] == [after]


# ---- what a site has ---------------------------------------------------------------------------------------------


def test_a_site_that_has_canceled_events_is_ordered_to_stop_them(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    (lease,) = leases(site.sync())
    cancel(world, job, "2,7-9")
    (order,) = orders(site.sync(want=0.0), CancelEventsOrder)
    assert (order.job, order.events) == (job, "2,7-9")
    assert (world.job(job).leased, world.job(job).canceled) == ("0-1,3-6", "2,7-9")
    site.sync(done(lease, 0, 2), done(lease, 3, 4))
    assert (world.state(job), world.job(job).row.events_done) == ("COMPLETED", 6)


def test_a_result_on_its_way_counts_for_an_event_that_was_canceled_meanwhile(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    (lease,) = leases(site.sync())
    cancel(world, job, "2-9")
    site.sync(done(lease, 0, 4))
    detail = world.job(job)
    assert detail.row.state == "COMPLETED"
    assert (detail.done, detail.canceled) == ("0-3", "4-9")
    site.sync(done(lease, 4, 1))
    assert (world.job(job).done, world.job(job).canceled) == ("0-3", "4-9"), "the job had ended"


def test_a_canceled_event_does_not_fail_however_late_its_failure_comes(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    (lease,) = leases(site.sync())
    cancel(world, job, "5")
    site.sync(failed(lease, 5), done(lease, 0, 5), done(lease, 6, 4))
    detail = world.job(job)
    assert (detail.row.state, detail.row.events_failed, detail.canceled) == ("COMPLETED", 0, "5")


def test_what_is_done_is_delivered_when_the_rest_is_canceled(world: World) -> None:
    (job,) = world.submit(FILES)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 2, outputs=True))
    cancel(world, job, "2-3")
    found = site.sync(want=0.0)
    (order,) = orders(found, DeliverOrder)
    assert (order.done, order.merge, len(orders(found, CancelEventsOrder))) == ("0-1", True, 1)
    late = orders(site.sync(done(lease, 2, 1, outputs=True), want=0.0), DiscardOrder)
    assert [(each.first, each.count) for each in late] == [(2, 1)], "its outputs are delivered already"
    output = OutputRow(name="o", url="file:///o", size_bytes=1, sha256="")
    gone = site.sync(DeliveredReport(n=0, job=job, outputs=[output], evidence=None), want=0.0)
    assert [each.job for each in orders(gone, ForgetOrder)] == [job]
    assert (world.state(job), world.job(job).done, world.job(job).canceled) == ("COMPLETED", "0-1", "2-3")


def test_a_job_canceled_whole_stops_what_was_left_of_it(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    leases(site.sync())
    cancel(world, job, "5-9")
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
    assert orders(site.sync(want=0.0), CancelOrder | ForgetOrder)  # type: ignore[arg-type]
    assert world.state(job) == "CANCELED"
    world.dispatcher.handle_retry(ActionRequest(jobs=[job]))
    assert events_of(leases(site.sync())) == "0-4", "what its owner canceled by number stays canceled"


# ---- retry -------------------------------------------------------------------------------------------------------


def test_canceled_events_run_after_all(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    (lease,) = leases(site.sync())
    cancel(world, job, "3-9")
    assert retry(world, job, "8-9").changed == 2
    again = leases(site.sync())
    assert events_of(again) == "8-9"
    site.sync(done(lease, 0, 3), *(done(each) for each in again))
    detail = world.job(job)
    assert (detail.row.state, detail.done, detail.canceled) == ("COMPLETED", "0-2,8-9", "3-7")


def test_canceled_events_of_a_completed_job_run_after_all(world: World) -> None:
    (job,) = world.submit(TEN)
    cancel(world, job, "1-9")
    site = Site(world)
    site.sync(*(done(each) for each in leases(site.sync())))
    assert world.state(job) == "COMPLETED"
    retry(world, job, "4")
    assert world.state(job) == "RUNNING"
    again = leases(site.sync())
    assert events_of(again) == "4"
    site.sync(*(done(each) for each in again))
    assert (world.state(job), world.job(job).done) == ("COMPLETED", "0,4")


def test_only_the_failed_events_that_are_named_run_again(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 8), failed(lease, 8), failed(lease, 9))
    assert (world.state(job), world.job(job).failed) == ("PARTIAL", "8-9")
    retry(world, job, "9")
    again = leases(site.sync())
    assert events_of(again) == "9"
    assert [each.final for each in world.job(job).failures if each.event == 9] == [False]
    assert [each.final for each in world.job(job).failures if each.event == 8] == [True]
    site.sync(*(done(each) for each in again))
    assert (world.state(job), world.job(job).failed) == ("PARTIAL", "8")


def test_what_had_not_run_when_its_job_was_canceled_stays_so_but_for_what_is_retried(world: World) -> None:
    (job,) = world.submit(TEN)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
    retry(world, job, "2-3")
    site = Site(world)
    found = leases(site.sync())
    assert events_of(found) == "2-3"
    site.sync(*(done(each) for each in found))
    detail = world.job(job)
    assert (detail.row.state, detail.done, detail.canceled) == ("COMPLETED", "2-3", "0-1,4-9")


def test_events_retried_while_their_site_is_lost_run_although_it_returns_and_stops_them(world: World) -> None:
    """The order to stop them still waits for the site, which reports nothing of such events."""
    (job,) = world.submit(TEN)
    site = Site(world)
    leases(site.sync())
    world.now_s = 601
    assert world.dispatcher.check_sites() == ["s"]
    cancel(world, job, "3-9")
    retry(world, job, "5")
    found = site.sync(want=0.0)
    assert [each.events for each in orders(found, CancelEventsOrder)] == ["3-9"]
    again = leases(site.sync())
    assert events_of(again) == "0-2,5"
    site.sync(*(done(each) for each in again))
    assert (world.state(job), world.job(job).done) == ("COMPLETED", "0-2,5")


def test_a_lost_site_gets_one_order_however_often_its_events_are_canceled(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    leases(site.sync())
    world.now_s = 601
    world.dispatcher.check_sites()
    for _ in range(5):
        cancel(world, job, "3-9")
        retry(world, job, "3-9")
    assert len(orders(site.sync(want=0.0), CancelEventsOrder)) == 1


def test_failures_of_ranges_are_reopened_with_their_events_only(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    (lease,) = leases(site.sync())
    whole = failed(lease, 2)
    whole.count, whole.event = 4, None
    site.sync(done(lease, 0, 2), done(lease, 7, 3), whole, failed(lease, 6))
    retry(world, job, "6")
    assert {each.event: each.final for each in world.job(job).failures} == {None: True, 6: False}
    retry(world, job, "2-5")
    assert not any(each.final for each in world.job(job).failures)


def test_a_retry_delivers_what_is_kept_and_runs_no_canceled_events(world: World) -> None:
    (job,) = world.submit(FILES)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 2, outputs=True))
    cancel(world, job, "2-3")
    for _ in range(2):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
    assert world.state(job) == "CANCELED"
    site.sync(want=0.0)
    world.dispatcher.handle_retry(ActionRequest(jobs=[job]))
    found = site.sync()
    assert (leases(found), [each.done for each in orders(found, DeliverOrder)]) == ([], ["0-1"])
    assert world.job(job).canceled == "2-3"


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_done_events_are_neither_canceled_nor_retried(world: World) -> None:
    (job,) = world.submit(TEN)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 5))
    reply = cancel(world, job, "3-6")
    assert (reply.changed, reply.unchanged) == (2, 2)
    with pytest.raises(ConflictError, match=rf"events of job {job} are done and cannot be retried: 3-4"):
        retry(world, job, "3-5")
    with pytest.raises(ConflictError, match="have not ended and cannot be retried: 7-8"):
        retry(world, job, "7-8")
    assert world.job(job).canceled == "5-6", "a request that is refused changes nothing"


def test_a_retry_that_would_fail_again_at_once_is_refused(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=4, failed_max=1))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(failed(lease, 0), failed(lease, 1), failed(lease, 2))
    assert world.state(job) == "FAILED"
    with pytest.raises(ConflictError, match=r"2 other events of it failed, and its failed_max is 1"):
        retry(world, job, "0")
    retry(world, job, "0-1")
    assert world.state(job) in ("WAITING", "RUNNING")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ("8-12", "has no event 10-12"),
        ("5-", "not an interval"),
        ("9-5", "ends before it starts"),
        (",", "no event"),
    ],
)
def test_a_list_that_means_no_events_of_the_job_is_refused(world: World, events: str, said: str) -> None:
    (job,) = world.submit(TEN)
    for act in (cancel, retry):
        with pytest.raises(RequestError, match=said):
            act(world, job, events)


def test_canceled_events_in_too_many_pieces_are_refused(world: World) -> None:
    """Each result of a job writes all of them again."""
    (job,) = world.submit(JobSpec(app="sim", events=300_000))
    for first in range(0, CANCELED_GAPS_MAX, 12_500):
        cancel(world, job, ",".join(str(2 * (first + k)) for k in range(12_500)))
    before = world.job(job).row
    with pytest.raises(ConflictError, match="more than 100000 separate pieces"):
        cancel(world, job, "299998")
    assert (before.events_canceled, world.job(job).row) == (CANCELED_GAPS_MAX, before)
    assert cancel(world, job, "1-3").changed == 2
    with pytest.raises(ConflictError, match="more than 100000 separate pieces"):
        cancel(world, job, "250001,250003,250005,250007")
    with pytest.raises(RequestError, match="list of events has 100001 characters"):
        cancel(world, job, "1" * 100_001)


def test_events_are_those_of_one_job_that_exists_and_goes_on(world: World) -> None:
    jobs = world.submit(TEN, SIM)
    handle = world.dispatcher.handle_cancel
    with pytest.raises(RequestError, match="this names 2 jobs"):
        handle(ActionRequest(jobs=jobs, events="1"))
    with pytest.raises(RequestError, match="this names campaign `c`"):
        handle(ActionRequest(campaign="c", events="1"))
    with pytest.raises(MissingError):
        cancel(world, 99, "1")
    with pytest.raises(RequestError, match="`events` are canceled or retried"):
        world.dispatcher.handle_accept(ActionRequest(jobs=jobs[:1], events="1"))
    handle(ActionRequest(jobs=jobs[:1]))
    with pytest.raises(ConflictError, match="cannot be canceled: the job is CANCELED"):
        cancel(world, jobs[0], "1")


def test_a_request_that_comes_twice_counts_once(world: World) -> None:
    (job,) = world.submit(TEN)
    assert cancel(world, job, "1-2", key="k").changed == 2
    retry(world, job, "1")
    again = cancel(world, job, "1-2", key="k")
    assert (again.changed, again.repeated, world.job(job).canceled) == (2, True, "2")
    with pytest.raises(ConflictError, match="was used for another cancel or retry"):
        cancel(world, job, "3", key="k")


def test_sums_of_the_campaign_and_of_all_count_canceled_events(world: World) -> None:
    (job,) = world.submit(TEN)
    cancel(world, job, "1-4")
    retry(world, job, "4")
    (row,) = api_pages.campaigns(world.reader)
    assert (row.events_canceled, api_pages.counts(world.reader).events_canceled) == (3, 3)


# ---- the outputs of an array as a directory ----------------------------------------------------------------------


@pytest.mark.parametrize("more", [{"kind": InputKind.EACH}, {"read": ReadAs.URL}])
def test_what_is_not_one_archive_cannot_be_unpacked(world: World, more: dict[str, Any]) -> None:
    wrong = Input(name="parts", url="root://o//parts", unpack=True, **more)
    with pytest.raises(RequestError, match="`unpack` of input parts is for an archive that all events read"):
        world.submit(JobSpec(app="sim", inputs=[wrong]))
