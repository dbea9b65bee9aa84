"""One suite over both databases: what is done is delivered before a job ends, stays done, and is delivered once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, done, failed, key_of, leases, refused

from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import Deliver, Input, JobSpec
from tidemill.server.read import api_pages
from tidemill.wire.api import (
    ActionRequest,
    ArrivedReport,
    CancelOrder,
    DeliveredReport,
    DeliverOrder,
    DiscardOrder,
    ForgetOrder,
    LeaseOrder,
    Order,
    OutputRow,
    ReleaseReport,
)

TEN = JobSpec(app="reco", events=10)
DAMAGED = Evidence(failure=FailureClass.STAGE_OUT, message="damaged")


def release(lease: LeaseOrder, first: int, count: int) -> ReleaseReport:
    return ReleaseReport(
        n=0, lease=lease.lease, job=lease.job, first=first, count=count, reason="stopped", evidence=None
    )


def delivered(order: DeliverOrder, *, held: bool = False, **more: Any) -> DeliveredReport:
    """Two files: the events of the order in one, the same of another output."""
    row = OutputRow(
        name="hits",
        url=f"file:///x/{order.delivery}.tar",
        size_bytes=5,
        sha256="ab",
        events=order.fresh or order.done,
    )
    return DeliveredReport(
        n=0, job=order.job, outputs=[row], evidence=None, done=order.done, held=held, **more
    )


def one(orders: list[Order], kind: type[Any]) -> Any:
    (found,) = (order for order in orders if isinstance(order, kind))
    return found


def started(world: World, site: Site, spec: JobSpec = TEN, *, results: int = 4) -> LeaseOrder:
    """A job with a lease of all events, of which some are done."""
    world.submit(spec)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, results, outputs=True))
    return lease


def test_a_canceled_job_is_delivered_as_far_as_it_is_done_and_a_retry_runs_the_rest(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    assert world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job])).changed == 1
    row = world.job(lease.job).row
    assert (row.state, row.ends, world.job(lease.job).waits_for) == ("RUNNING", "CANCELED", "ending")
    assert one(site.sync(want=0), CancelOrder).keep
    orders = site.sync(
        done(lease, 4, 1, outputs=True), release(lease, 5, 5), want=0
    )  # it had finished one more
    order = one(orders, DeliverOrder)
    assert (order.done, order.fresh, order.merge, order.delivery) == ("0-4", None, False, 1)
    orders = site.sync(delivered(order), want=0)
    assert (world.state(lease.job), world.job(lease.job).kept) == ("CANCELED", None)
    assert one(orders, ForgetOrder).job == lease.job

    assert world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job])).changed == 1
    (rest,) = leases(site.sync())
    assert (rest.first, rest.count, rest.spec is not None) == (5, 5, True)
    order = one(site.sync(done(rest, outputs=True)), DeliverOrder)
    assert (order.done, order.merge, order.delivery) == ("5-9", True, 2)
    site.sync(delivered(order))
    detail = world.job(lease.job)
    assert (detail.row.state, [row.events for row in detail.outputs]) == ("COMPLETED", ["0-4", "5-9"])
    assert detail.usage.payloads == 3


def test_a_job_whose_two_events_failed_says_so(world: World) -> None:
    site = Site(world)
    world.submit(JobSpec(app="reco", events=2, failed_max=1))
    (lease,) = leases(site.sync())
    site.sync(failed(lease, 0), failed(lease, 1), want=0)
    assert world.job(lease.job).row.reason == "both events failed"


def test_a_job_that_fails_is_delivered_as_far_as_it_is_done(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    orders = site.sync(failed(lease, 4), want=0)
    assert one(orders, CancelOrder).keep
    order = one(site.sync(release(lease, 5, 5), want=0), DeliverOrder)
    site.sync(delivered(order), want=0)
    detail = world.job(lease.job)
    assert (detail.row.state, detail.failed) == ("FAILED", "4")
    assert detail.row.reason == "1 event failed, failed_max is 0"
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    (rest,) = leases(site.sync())
    assert (rest.first, rest.count) == (4, 6)


def test_a_partial_job_is_retried_for_what_failed_only(world: World) -> None:
    site = Site(world)
    lease = started(world, site, JobSpec(app="reco", events=10, failed_max=3), results=9)
    order = one(site.sync(failed(lease, 9)), DeliverOrder)
    assert order.merge
    site.sync(delivered(order))
    assert world.state(lease.job) == "PARTIAL"
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    assert len(world.job(lease.job).outputs) == 1
    (rest,) = leases(site.sync())
    assert (rest.first, rest.count) == (9, 1)


def test_a_failure_is_final_until_its_event_may_run_again(world: World) -> None:
    site = Site(world)
    lease = started(world, site, JobSpec(app="reco", events=10, failed_max=3), results=9)
    other = started(world, site, JobSpec(app="reco", events=10, failed_max=3), results=9)
    for each in (lease, other):
        site.sync(delivered(one(site.sync(failed(each, 9)), DeliverOrder)))
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))

    def finals(job: int) -> list[bool]:
        return [each.final for each in api_pages.failures(world.reader, job=job).failures]

    assert (finals(lease.job), finals(other.job)) == ([False], [True])


def test_with_deliver_complete_nothing_is_delivered_before_all_is_done(world: World) -> None:
    site = Site(world)
    lease = started(world, site, JobSpec(app="reco", events=10, deliver=Deliver.COMPLETE))
    assert b"deliver" not in msgspec.json.encode(lease), "it is the server's alone"
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    orders = [*site.sync(want=0), *site.sync(release(lease, 4, 6), want=0), *site.sync(want=0)]
    assert [type(order) for order in orders] == [CancelOrder], "the site forgets nothing"
    detail = world.job(lease.job)
    assert detail.row.state == "CANCELED"
    assert detail.kept is not None
    assert (detail.kept.events, detail.kept.site, detail.kept.under_way) == ("0-3", "s", False)
    assert api_pages.outputs(world.reader, campaign=key_of(world.reader, "c").number).kept == [detail.kept]

    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    assert leases(Site(world, "t").sync()) == [], "its home keeps its outputs"
    (rest,) = leases(site.sync())
    order = one(site.sync(done(rest, outputs=True)), DeliverOrder)
    assert (rest.first, order.done, order.delivery) == (4, "0-9", 1)


def test_merge_steps_wait_for_the_rest_and_take_what_was_sent_before(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    order = one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)
    orders = site.sync(delivered(order, held=True), want=0)
    assert not any(isinstance(each, ForgetOrder) for each in orders)
    kept = world.job(lease.job).kept
    assert kept is not None
    assert (world.state(lease.job), kept.events, kept.sent) == ("CANCELED", "0-3", "0-3")

    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    (rest,) = leases(site.sync())
    order = one(site.sync(done(rest, outputs=True)), DeliverOrder)
    assert (order.done, order.fresh, order.merge, order.delivery) == ("0-9", "4-9", True, 2)
    site.sync(delivered(order))
    assert (world.state(lease.job), world.job(lease.job).kept) == ("COMPLETED", None)


def test_the_owner_accepts_what_there_is(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    (after,) = world.submit(JobSpec(app="sim", after=[lease.job], after_any=True), campaign="d")
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    order = one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)
    site.sync(delivered(order, held=True), want=0)
    assert world.dispatcher.handle_accept(ActionRequest(jobs=[lease.job, after])).changed == 1
    order = one(site.sync(want=0), DeliverOrder)
    assert (order.done, order.fresh, order.merge) == ("0-3", "", True)
    site.sync(delivered(order), want=0)
    row = world.job(lease.job).row
    assert (row.state, row.reason) == ("PARTIAL", "4 of 10 events are done, and accepted by the owner")
    assert world.dispatcher.handle_accept(ActionRequest(jobs=[lease.job])).changed == 0


def test_accepting_what_is_delivered_already_needs_no_site(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    site.sync(delivered(one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)), want=0)
    assert world.dispatcher.handle_accept(ActionRequest(campaign="c")).changed == 1
    assert world.state(lease.job) == "PARTIAL"


def test_the_owner_discards_what_is_kept_and_only_that_runs_again(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    site.sync(delivered(one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)), want=0)
    assert world.dispatcher.handle_discard(ActionRequest(jobs=[lease.job])).changed == 0
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    (rest,) = leases(site.sync())
    site.sync(done(rest, 4, 2, outputs=True), want=0)
    for _ in range(2):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    site.sync(want=0)
    assert world.dispatcher.handle_discard(ActionRequest(campaign="c")).changed == 1
    detail = world.job(lease.job)
    assert (detail.done, detail.kept) == ("0-3", None)
    (order,) = site.sync(want=0)
    assert isinstance(order, CancelOrder)
    assert not order.keep
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    assert [(each.first, each.count) for each in leases(site.sync())] == [(4, 6)]


def test_a_retry_before_the_delivery_has_ended_goes_on_after_it(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    order = one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)
    assert world.dispatcher.handle_retry(ActionRequest(campaign="c")).changed == 1
    assert leases(site.sync()) == []
    site.sync(delivered(order), want=0)
    (rest,) = leases(site.sync())
    assert (world.state(lease.job), rest.first, rest.count) == ("RUNNING", 4, 6)


def test_a_retry_before_the_payloads_are_stopped_leases_what_comes_back(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job])).changed == 1
    site.sync(release(lease, 4, 6), want=0)
    (rest,) = leases(site.sync())
    assert (rest.first, rest.count, world.job(lease.job).row.ends) == (4, 6, "")


def test_a_delivery_that_fails_is_repeated_and_nothing_is_run_again(world: World) -> None:
    site = Site(world)
    lease = started(world, site, results=10)
    evidence = Evidence(failure=FailureClass.STAGE_OUT, message="quota")
    report = DeliveredReport(n=0, job=lease.job, outputs=[], evidence=evidence)
    assert site.sync(report) == []
    detail = world.job(lease.job)
    assert detail.kept is not None
    assert (detail.row.state, detail.kept.events) == ("FAILED", "0-9")
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    orders = site.sync()
    assert (leases(orders), one(orders, DeliverOrder).done) == ([], "0-9")


def test_a_delivery_of_a_canceled_job_that_fails_leaves_it_canceled_and_kept(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    site.sync(release(lease, 4, 6), want=0)
    evidence = Evidence(failure=FailureClass.STAGE_OUT, message="quota")
    assert site.sync(DeliveredReport(n=0, job=lease.job, outputs=[], evidence=evidence), want=0) == []
    detail = world.job(lease.job)
    assert detail.kept is not None
    assert (detail.row.state, detail.kept.events) == ("CANCELED", "0-3")
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    assert [(each.first, each.count) for each in leases(site.sync())] == [(4, 6)]


def test_a_second_cancel_ends_the_job_at_once_and_its_site_keeps_what_is_done(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    for _ in range(2):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    assert world.state(lease.job) == "CANCELED"
    orders = site.sync(want=0)
    assert [(type(order), getattr(order, "keep", None)) for order in orders] == 2 * [(CancelOrder, True)]
    (discard,) = site.sync(done(lease, 3, 2, outputs=True), want=0)
    assert isinstance(discard, DiscardOrder)
    assert (discard.first, discard.count) == (4, 1), "what is counted is not discarded"
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job])).changed == 1
    assert [(each.first, each.count) for each in leases(site.sync())] == [(4, 6)]


def test_a_delivery_that_nobody_waited_for_counts_when_it_is_there(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    order = one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    assert world.state(lease.job) == "CANCELED"
    site.sync(delivered(order), want=0)
    detail = world.job(lease.job)
    assert (detail.row.state, detail.kept, len(detail.outputs)) == ("CANCELED", None, 1)


def test_a_home_that_is_lost_ends_the_job_and_only_what_lay_there_runs_again(world: World) -> None:
    site, other = Site(world), Site(world, "t")
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    order = one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)
    site.sync(delivered(order), want=0)
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    (rest,) = leases(site.sync())
    site.sync(done(rest, 4, 2, outputs=True))
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    world.now_s += 700
    assert world.dispatcher.check_sites() == ["s"]
    detail = world.job(lease.job)
    assert (detail.row.state, detail.done, detail.kept) == ("CANCELED", "0-3", None)

    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    (again,) = leases(other.sync())
    assert (again.first, again.count) == (4, 6)
    other.sync(done(again, 4, 1, outputs=True))
    orders = site.sync(want=0)
    assert [(each.first, each.count) for each in orders if isinstance(each, DiscardOrder)] == [(4, 2)]


def test_a_retry_of_what_a_lost_site_keeps_runs_it_elsewhere(world: World) -> None:
    site, other = Site(world), Site(world, "t")
    lease = started(world, site, JobSpec(app="reco", events=10, deliver=Deliver.COMPLETE))
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    site.sync(release(lease, 4, 6), want=0)
    world.now_s += 700
    world.dispatcher.check_sites()
    kept = world.job(lease.job).kept
    assert kept is not None, "it may come back"
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    assert [(each.first, each.count) for each in leases(other.sync())] == [(0, 10)]


def test_a_site_that_denies_the_owner_afterwards_does_not_hold_the_rest(world: World) -> None:
    site, other = Site(world), Site(world, "t")
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    order = one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)
    site.sync(delivered(order), want=0)
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    (again,) = leases(site.sync())
    site.sync(refused(again))
    other.sync(want=0)
    assert [(each.first, each.count) for each in leases(other.sync())] == [(4, 6)]


def test_outputs_that_are_lost_before_their_delivery_run_again(world: World) -> None:
    site = Site(world)
    lease = started(world, site, results=10)
    report = DeliveredReport(n=0, job=lease.job, outputs=[], evidence=DAMAGED, lost="3-4")
    site.sync(report, want=0)
    assert [(each.first, each.count) for each in leases(site.sync())] == [(3, 2)]


def test_outputs_that_are_lost_of_a_canceled_job_are_missing_in_its_delivery(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    site.sync(release(lease, 4, 6), want=0)
    report = DeliveredReport(n=0, job=lease.job, outputs=[], evidence=DAMAGED, lost="2")
    assert one(site.sync(report, want=0), DeliverOrder).done == "0-1,3"


def test_a_result_that_does_not_count_is_not_booked(world: World) -> None:
    site = Site(world)
    (job,) = world.submit(JobSpec(app="sim", events=4))
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 2))
    site.sync(done(lease, 0, 2))
    assert world.job(job).usage.payloads == 1
    site.sync(done(lease, 2, 2))
    site.sync(done(lease, 2, 2))
    assert world.job(job).usage.payloads == 2
    assert api_pages.campaign(world.reader, key_of(world.reader, "c")).usage.payloads == 2


def test_a_job_without_outputs_ends_at_once_when_nothing_of_it_runs(world: World) -> None:
    (job,) = world.submit(SIM)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
    assert world.state(job) == "CANCELED"


# ---- files that arrive while a job runs ----------------------------------------------------------------------------


def arrived(job: int, events: str, *, name: str = "hits", url: str = "file:///x/7-hits/") -> ArrivedReport:
    row = OutputRow(name=name, url=url, size_bytes=len(events), sha256="", events=events)
    return ArrivedReport(n=0, job=job, outputs=[row])


def shown(world: World, job: int) -> list[tuple[str, str, str]]:
    return [(row.name, row.sha256, row.events) for row in world.job(job).outputs]


def test_what_has_arrived_is_shown_until_the_delivery_takes_its_place(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    site.sync(arrived(lease.job, "0-1"), want=0)
    site.sync(arrived(lease.job, "0-3"), want=0)
    assert shown(world, lease.job) == [("hits", "", "0-3")]
    detail = world.job(lease.job)
    assert detail.row.state == "RUNNING"
    assert detail.kept is not None, "the delivery is still to come"
    assert detail.kept.events == "0-3"
    order = one(site.sync(done(lease, 4, 6, outputs=True), want=0), DeliverOrder)
    assert (order.done, order.fresh, order.delivery) == ("0-9", None, 1), "as if nothing had arrived"
    site.sync(arrived(lease.job, "0-8"), want=0)
    site.sync(delivered(order), want=0)
    assert shown(world, lease.job) == [("hits", "ab", "0-9")]
    site.sync(arrived(lease.job, "0-8"), want=0)
    assert shown(world, lease.job) == [("hits", "ab", "0-9")], "what is late changes nothing"


def test_files_of_a_retry_arrive_beside_what_was_delivered(world: World) -> None:
    site = Site(world)
    lease = started(world, site, JobSpec(app="reco", events=10, failed_max=5), results=8)
    site.sync(arrived(lease.job, "0-7"), want=0)
    order = one(site.sync(failed(lease, 8), failed(lease, 9), want=0), DeliverOrder)
    site.sync(delivered(order), want=0)
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    (rest,) = leases(site.sync())
    site.sync(done(rest, 8, 1, outputs=True), want=0)
    site.sync(arrived(lease.job, "8"), want=0)
    assert shown(world, lease.job) == [("hits", "ab", "0-7"), ("hits", "", "8")]
    order = one(site.sync(done(rest, 9, 1, outputs=True), want=0), DeliverOrder)
    site.sync(delivered(order), want=0)
    assert shown(world, lease.job) == [("hits", "ab", "0-7"), ("hits", "ab", "8-9")]


def test_what_arrives_in_the_same_sync_as_a_delivery_is_kept_apart_from_it(world: World) -> None:
    site = Site(world)
    lease = started(world, site, JobSpec(app="reco", events=10, failed_max=5))
    site.sync(arrived(lease.job, "0-3"), want=0)
    world.dispatcher.handle_cancel(ActionRequest(jobs=[lease.job]))
    order = one(site.sync(release(lease, 4, 6), want=0), DeliverOrder)
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    site.sync(delivered(order), done(lease, 4, 1, outputs=True), arrived(lease.job, "4"), want=0)
    assert shown(world, lease.job) == [("hits", "ab", "0-3"), ("hits", "", "4")]


def test_a_site_that_is_not_the_jobs_home_shows_nothing_of_it(world: World) -> None:
    site, other = Site(world), Site(world, "other")
    lease = started(world, site)
    other.sync(arrived(lease.job, "0-9"), want=0)
    assert shown(world, lease.job) == []
    world.submit(TEN)
    (fresh,) = leases(site.sync())
    site.sync(arrived(fresh.job, "0-9"), want=0)
    assert shown(world, fresh.job) == [], "of a job that keeps nothing, nothing can have arrived"


def test_what_cannot_be_counted_is_not_shown(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    site.sync(arrived(lease.job, "0-"), want=0)
    assert shown(world, lease.job) == []
    many = [
        OutputRow(name=f"o{k}", url="file:///x/", size_bytes=1, sha256="ab", events="0") for k in range(200)
    ]
    site.sync(ArrivedReport(n=0, job=lease.job, outputs=many), want=0)
    assert {(len(world.job(lease.job).outputs), row.sha256) for row in world.job(lease.job).outputs} == {
        (100, "")
    }


@pytest.mark.parametrize(("said", "kept"), [("5-0", ""), (f"8-{10**30}", "8-9")])
def test_pages_and_clients_read_the_events_that_a_site_names(world: World, said: str, kept: str) -> None:
    site = Site(world)
    lease = started(world, site)
    if kept:
        site.sync(arrived(lease.job, said), want=0)
        assert shown(world, lease.job) == [("hits", "", kept)]
    order = one(site.sync(done(lease, 4, 6, outputs=True), want=0), DeliverOrder)
    report = delivered(order)
    (row,) = report.outputs
    site.sync(msgspec.structs.replace(report, outputs=[msgspec.structs.replace(row, events=said)]), want=0)
    assert shown(world, lease.job) == [("hits", "ab", kept)]


def test_a_job_that_takes_an_output_gets_no_directory_to_which_files_still_come(world: World) -> None:
    site = Site(world)
    lease = started(world, site, JobSpec(app="reco", events=10, failed_max=5), results=8)
    order = one(site.sync(failed(lease, 8), failed(lease, 9), want=0), DeliverOrder)
    site.sync(delivered(order), want=0)
    taken = Input(name="hits", url=f"job:{lease.job}/hits")
    (later,) = world.submit(JobSpec(app="sim", inputs=[taken], priority=-5))
    world.dispatcher.handle_retry(ActionRequest(jobs=[lease.job]))
    (rest,) = leases(site.sync(ranges=1))
    site.sync(done(rest, 8, 1, outputs=True), arrived(lease.job, "8"), want=0)
    assert shown(world, lease.job)[-1] == ("hits", "", "8")
    (last,) = leases(site.sync())
    assert (last.job, last.from_jobs) == (later, {"hits": lease.job})
    assert last.spec is not None
    assert [each.url for each in last.spec.inputs] == ["file:///x/1.tar"]


def test_what_arrived_at_a_site_that_is_lost_is_not_shown_any_more(world: World) -> None:
    site = Site(world)
    lease = started(world, site)
    site.sync(arrived(lease.job, "0-3"), want=0)
    world.now_s += 601
    world.dispatcher.check_sites()
    assert shown(world, lease.job) == []
