"""One suite over both databases: submit, sync, ends of jobs, dependencies, actions and pages."""

from __future__ import annotations

import pytest
from tests.contract.server_world import SIM, Site, World, done, failed, key_of, leases, refused, release_of

from tidemill.errors import ConfigError
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import Input, JobSpec, ReadAs, Resources
from tidemill.model.seed import campaign_offset
from tidemill.server.core.silent_sites import SiteWatch
from tidemill.server.database.queries import migrations
from tidemill.server.database.store import Store, transaction
from tidemill.server.errors import ConflictError, RequestError
from tidemill.server.read import api_pages
from tidemill.wire.api import (
    ORDER_JUMP_MAX,
    ActionRequest,
    CancelOrder,
    DeliveredReport,
    DeliverOrder,
    DiscardOrder,
    ForgetOrder,
    OutputRow,
    ReleaseReport,
    SubmitRequest,
)
from tidemill.wire.far import RouteView
from tidemill.wire.views import packed

# ---- schema ------------------------------------------------------------------------------------------------------


def test_an_empty_database_is_refused_until_it_is_filled(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"no database|empty"):
        store.check()
    known = len(migrations(store.dialect))
    assert store.upgrade() == (0, known)
    store.check()
    assert store.upgrade() == (known, known)


def test_a_database_of_a_newer_version_is_refused_and_not_changed(store: Store) -> None:
    store.init()
    session = store.writer()
    with transaction(session):
        session.run("set_schema_version", version=99)
    session.close()
    for refuse in (store.check, store.upgrade):
        with pytest.raises(ConfigError, match="newer"):
            refuse()
    assert store.version() == 99


def test_an_error_undoes_the_whole_transaction(store: Store) -> None:
    store.init()
    session = store.writer()

    def fail() -> None:
        with transaction(session):
            session.rows("insert_site", name="x", named_by="")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert session.rows("sites") == []
    session.close()


# ---- submit ------------------------------------------------------------------------------------------------------


def test_a_key_sent_again_answers_as_the_first_time(world: World) -> None:
    request = SubmitRequest(key="k", campaign="c", jobs=[SIM, SIM], repeat=[2, 1])
    first = world.dispatcher.handle_submit(request)
    again = world.dispatcher.handle_submit(request)
    assert (first.count, first.repeated, again.repeated) == (3, False, True)
    assert (again.first_job, again.count) == (first.first_job, 3)
    with pytest.raises(ConflictError, match="other content"):
        world.dispatcher.handle_submit(SubmitRequest(key="k", campaign="c", jobs=[SIM]))
    assert api_pages.counts(world.reader).jobs == 3


def test_a_submission_with_one_wrong_job_changes_nothing(world: World) -> None:
    with pytest.raises(RequestError, match="job 1 of the request"):
        world.submit(SIM, JobSpec(app="sim", events=0))
    with pytest.raises(RequestError, match=r"^the job: `events` is 0"):
        world.submit(JobSpec(app="sim", events=0))
    with pytest.raises(RequestError, match="does not exist"):
        world.submit(SIM, JobSpec(app="sim", after=[77]))
    assert api_pages.counts(world.reader).jobs == 0
    assert world.submit(SIM) == [1]


def test_seeds_of_a_campaign_do_not_overlap(world: World) -> None:
    ids = world.submit(JobSpec(app="sim", events=10), SIM) + world.submit(SIM)
    bases = [world.job(each).seed_base for each in ids]
    assert bases == [campaign_offset("c") + at for at in (0, 10, 11)]
    with pytest.raises(RequestError, match="at most 1247483647"):
        world.submit(JobSpec(app="sim", events=1_000_000_000), JobSpec(app="sim", events=900_000_000))


def test_a_spec_comes_back_as_it_was_written(world: World) -> None:
    spec = JobSpec(app="sim", name="n1", events=7, priority=3, params={"a": 'x\\"\t'}, env={"K": "ü"})
    (number,) = world.submit(spec)
    assert world.job(number).spec == spec


# ---- the path of a job -------------------------------------------------------------------------------------------


def test_a_job_without_outputs_completes_with_its_last_event(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=4))
    site = Site(world)
    (lease,) = leases(site.sync())
    assert (lease.first, lease.count, lease.campaign, lease.spec is not None) == (0, 4, "c", True)
    assert world.state(job) == "RUNNING"
    site.sync(done(lease, 0, 3))
    orders = site.sync(done(lease, 3, 1))
    assert [type(order) for order in orders] == [ForgetOrder]
    found = world.job(job)
    assert (found.row.state, found.done, found.usage.wall_us) == ("COMPLETED", "0-3", 4_000_000)
    assert [attempt.state for attempt in found.attempts] == ["SETTLED"]
    campaign = api_pages.campaign(world.reader, key_of(world.reader, "c"))
    assert (campaign.states, campaign.events_done, campaign.usage.payloads) == ({"COMPLETED": 1}, 4, 2)


def test_reports_sent_again_count_once_and_orders_come_again_until_they_are_acknowledged(
    world: World,
) -> None:
    world.submit(SIM)
    site = Site(world)
    first = site.exchange()
    site.have = 0
    assert [order.n for order in site.exchange().orders] == [order.n for order in first.orders]
    (lease,) = leases(first.orders)
    report = done(lease)
    site.sync(report)
    site.n -= 1
    assert site.exchange(report).acked == 1
    assert api_pages.campaign(world.reader, key_of(world.reader, "c")).usage.payloads == 1


def test_a_job_with_outputs_ends_when_they_are_delivered(world: World) -> None:
    (job,) = world.submit(JobSpec(app="reco", events=2))
    site, other = Site(world), Site(world, "t")
    (lease,) = leases(site.sync(want=1))
    assert leases(other.sync()) == []
    (more,) = leases(site.sync())
    assert more.spec is None
    orders = site.sync(done(lease, outputs=True), done(more, outputs=True))
    (deliver,) = (order for order in orders if isinstance(order, DeliverOrder))
    assert (deliver.done, world.state(job), world.job(job).waits_for) == ("0-1", "RUNNING", "delivering")
    output = OutputRow(name="hits", url="file:///x/hits.tar", size_bytes=5, sha256="ab")
    site.sync(DeliveredReport(n=0, job=job, outputs=[output], evidence=None))
    assert (world.state(job), world.job(job).outputs) == ("COMPLETED", [output])
    assert (
        api_pages.outputs(world.reader, campaign=key_of(world.reader, "c").number).outputs[0].output == output
    )


def test_a_failed_delivery_fails_the_job_and_can_be_tried_again(world: World) -> None:
    (job,) = world.submit(JobSpec(app="reco"))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, outputs=True))
    evidence = Evidence(failure=FailureClass.STAGE_OUT, message="disk full")
    orders = site.sync(DeliveredReport(n=0, job=job, outputs=[], evidence=evidence))
    assert (world.state(job), orders) == ("FAILED", [])
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[job])).changed == 1
    assert [type(order) for order in site.sync()] == [DeliverOrder]


def test_failed_events_within_the_limit_make_a_job_partial(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=3, failed_max=1))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(failed(lease, 1, final=False), failed(lease, 1), done(lease, 0, 1), done(lease, 2, 1))
    found = world.job(job)
    assert (found.row.state, found.done, found.failed) == ("PARTIAL", "0,2", "1")
    assert [(each.event, each.final, each.seed) for each in found.failures] == [
        (1, True, found.seed_base + 2),
        (1, False, found.seed_base + 2),
    ]
    assert api_pages.campaign(world.reader, key_of(world.reader, "c")).failures == {"payload": 2}
    assert world.dispatcher.handle_retry(ActionRequest(jobs=[job])).changed == 1
    (again,) = leases(site.sync())
    assert (again.first, again.count) == (1, 1)
    site.sync(done(again))
    assert world.state(job) == "COMPLETED"


def test_too_many_failed_events_fail_the_job_and_cancel_the_rest(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=5))
    site, other = Site(world), Site(world, "t")
    (lease,) = leases(site.sync(want=2))
    (rest,) = leases(other.sync())
    site.sync(failed(lease, 0))
    assert world.state(job) == "FAILED"
    assert [type(order) for order in other.sync()] == [CancelOrder, ForgetOrder]
    other.sync(done(rest))
    assert world.job(job).row.events_done == 0


def test_a_job_that_is_refused_three_times_fails_with_the_reason(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    for _ in range(3):
        (lease,) = leases(site.sync())
        site.sync(refused(lease), want=0)
    found = world.job(job)
    assert found.row.state == "FAILED"
    assert "no such parameter" in found.row.reason


def test_a_job_goes_first_to_a_site_that_has_not_refused_it(world: World) -> None:
    world.submit(SIM)
    site, other = Site(world), Site(world, "t")
    other.sync(want=0)
    (lease,) = leases(site.sync())
    assert leases(site.sync(refused(lease))) == []
    assert len(leases(other.sync())) == 1


def test_released_events_are_leased_again_once(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=10))
    site, other = Site(world), Site(world, "t")
    (lease,) = leases(site.sync())
    back = ReleaseReport(n=0, lease=lease.lease, job=job, first=4, count=3, reason="idle", evidence=None)
    site.sync(back, want=0)
    (again,) = leases(other.sync())
    assert (again.first, again.count) == (4, 3)
    site.sync(done(lease, 0, 4), done(lease, 7, 3))
    other.sync(done(again))
    assert world.state(job) == "COMPLETED"


def test_what_a_site_has_returned_is_no_longer_its_own_however_late_it_returns_the_rest(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=10))
    site, other = Site(world), Site(world, "t")
    (lease,) = leases(site.sync())
    site.sync(release_of(lease, 4, 1), release_of(lease, 6, 1), want=0)
    first, second = leases(other.sync())
    assert [(each.first, each.count) for each in (first, second)] == [(4, 1), (6, 1)]
    site.sync(release_of(lease, 0, 10), want=0)
    assert [(each.first, each.count) for each in leases(site.sync())] == [(0, 4), (5, 1), (7, 3)]
    assert [each.state for each in world.job(job).attempts[:3]] == ["RELEASED", "ACTIVE", "ACTIVE"]


# ---- lost sites --------------------------------------------------------------------------------------------------


def test_events_of_a_lost_site_run_elsewhere_and_late_results_lose(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=4))
    site, other = Site(world), Site(world, "t")
    (lease,) = leases(site.sync())
    world.now_s = 601
    other.sync(want=0)
    assert world.dispatcher.check_sites() == ["s"]
    assert world.job(job).attempts[0].state == "LOST"
    (again,) = leases(other.sync())
    other.sync(done(again, 0, 2))
    site.sync(done(lease))
    found = world.job(job)
    assert (found.row.state, found.done) == ("COMPLETED", "0-3")
    assert any(isinstance(order, DiscardOrder) and order.first == 2 for order in other.sync())
    assert api_pages.campaign(world.reader, key_of(world.reader, "c")).events_done == 4


def test_late_results_are_taken_from_each_site_that_runs_some_of_their_events_again(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=10))
    site, one, two = Site(world), Site(world, "t"), Site(world, "u")
    (lease,) = leases(site.sync())
    world.now_s = 601
    assert world.dispatcher.check_sites() == ["s"]
    assert [(each.first, each.count) for each in leases(one.sync(want=4.0))] == [(0, 4)]
    assert [(each.first, each.count) for each in leases(two.sync())] == [(4, 6)]
    site.sync(done(lease), want=0)
    assert world.state(job) == "COMPLETED"
    for other, events in ((one, (0, 4)), (two, (4, 6))):
        discards = [each for each in other.sync(want=0) if isinstance(each, DiscardOrder)]
        assert [(each.first, each.count) for each in discards] == [events]


def test_a_lost_home_loses_its_outputs_to_the_next_home(world: World) -> None:
    (job,) = world.submit(JobSpec(app="reco", events=2))
    site, other = Site(world), Site(world, "t")
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 1, outputs=True))
    other.sync(want=0)
    world.now_s = 601
    other.sync(want=0)
    world.dispatcher.check_sites()
    (again,) = leases(other.sync())
    assert (again.first, again.count, world.job(job).done) == (0, 2, "")
    orders = site.sync(done(lease, 1, 1, outputs=True), want=0)
    assert {(each.first, each.count) for each in orders if isinstance(each, DiscardOrder)} == {(0, 1), (1, 1)}
    orders = other.sync(done(again, outputs=True))
    assert [order.done for order in orders if isinstance(order, DeliverOrder)] == ["0-1"]


def test_a_site_that_returns_in_time_keeps_results_and_leases(world: World) -> None:
    (job,) = world.submit(JobSpec(app="reco", events=2))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 1, outputs=True))
    world.now_s = 601
    world.dispatcher.check_sites()
    assert world.job(job).row.events_done == 0
    assert leases(site.sync()) == []
    assert (world.job(job).done, world.job(job).attempts[0].state) == ("0", "ACTIVE")
    orders = site.sync(done(lease, 1, 1, outputs=True))
    assert [order.done for order in orders if isinstance(order, DeliverOrder)] == ["0-1"]


@pytest.mark.parametrize("have", [1_000_000, (1 << 62) - 1_000])
def test_a_site_that_has_orders_which_we_never_gave_hears_us_all_the_same(world: World, have: int) -> None:
    """Somebody else gave them in our name, or this database is older than what the site was told."""
    first, second = world.submit(JobSpec(app="sim", events=4), JobSpec(app="sim", events=4))
    site = Site(world)
    (lease,) = leases(site.sync(ranges=1))
    (untold,) = leases(site.sync(ranges=1))  # an answer that is lost
    site.have = have
    again = site.sync(ranges=0)
    assert {order.lease for order in leases(again)} >= {untold.lease}
    assert all(order.n > have for order in again)
    site.sync(done(lease), done(untold))
    assert (world.state(first), world.state(second)) == ("COMPLETED", "COMPLETED")
    (third,) = world.submit(JobSpec(app="sim", events=4))
    (more,) = leases(site.sync())
    assert (more.job, more.n > have) == (third, True)


def test_a_number_that_somebody_else_told_in_the_sites_name_does_not_deafen_it(world: World) -> None:
    site = Site(world)
    world.submit(JobSpec(app="sim", events=4), JobSpec(app="sim", events=4))
    site.sync(ranges=1)
    known = site.have
    site.sync(have=1 << 61, ranges=1)
    site.have = known
    told = site.sync(ranges=0)
    assert told
    assert all(known < order.n < known + ORDER_JUMP_MAX for order in told)


@pytest.mark.parametrize("have", [-1, 1 << 62, 1 << 64])
def test_a_number_that_no_order_has_is_refused(world: World, have: int) -> None:
    with pytest.raises(RequestError, match="says that it has order"):
        Site(world).sync(have=have)


def test_an_old_epoch_and_a_copied_site_are_refused(world: World) -> None:
    site = Site(world)
    site.epoch = 2
    site.sync()
    with pytest.raises(ConflictError, match="epoch 2 on host `h`"):
        site.sync(epoch=1)
    with pytest.raises(ConflictError, match="not to `other`"):
        site.sync(host="other")


def test_a_site_falls_silent_although_the_last_request_was_refused(world: World) -> None:
    Site(world).sync()
    with pytest.raises(RequestError):
        world.submit(JobSpec(app="sim", events=0))
    world.now_s = 601
    assert world.dispatcher.check_sites() == ["s"]
    assert world.dispatcher.check_sites() == []


def test_a_job_does_not_wait_for_its_share_while_no_site_was_heard_since_the_server_started(
    world: World,
) -> None:
    site = Site(world)
    site.sync()
    pinned, anywhere = world.submit(JobSpec(app="sim", site="s"), SIM)
    watch = SiteWatch(600, lambda: world.now_s)  # of a server that is started now
    unheard = watch.unheard(["s"])
    found = [api_pages.job(world.reader, job, cache={}, silent=unheard) for job in (pinned, anywhere)]
    assert [each.waits_for for each in found] == ["site_pinned_silent", "site_silent"]
    watch.on_contact("s")
    assert watch.unheard(["s"]) == set()
    watch.rest()
    assert watch.unheard(["t"]) == set(), "sites talk to the other server of the pair"


# ---- many kinds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [True, False])
def test_jobs_of_many_kinds_are_leased_by_priority_and_age(world: World, blocks: bool) -> None:
    """However the kinds lie among the jobs; and those that are pinned come in their turn."""
    specs = [
        JobSpec(
            app="sim", resources=Resources(memory_mb=1 + (number // 5 if blocks else number % 40)),
            priority=number % 3, site="s" if number % 7 == 0 else None,
        )
        for number in range(200)
    ]  # fmt: skip
    jobs = world.submit(*specs)
    site = Site(world)
    got = [each.job for _ in range(20) for each in leases(site.sync(want=15.0))]
    by_rank = sorted(jobs, key=lambda job: (-specs[job - jobs[0]].priority, job))
    assert got == by_rank
    assert leases(site.sync()) == []


def test_campaigns_beyond_what_a_sync_can_lease_get_their_turn(world: World) -> None:
    for number in range(30):
        world.submit(SIM, SIM, campaign=f"c{number}")
    site = Site(world)
    got = [each.campaign for _ in range(6) for each in leases(site.sync(ranges=10))]
    assert sorted(got[:30]) == sorted({f"c{number}" for number in range(30)})
    assert len(got) == 60


# ---- inputs that programs open -------------------------------------------------------------------------------

OPENED = JobSpec(app="sim", inputs=[Input(name="f", url="root://o//x", read=ReadAs.URL)])


def test_a_site_gets_inputs_that_programs_open_as_they_were_written(world: World) -> None:
    world.submit(OPENED)
    (lease,) = leases(Site(world).sync())

    assert lease.spec is not None
    assert lease.spec.inputs[0].is_opened


def test_the_ways_of_a_job_are_shown_as_a_site_that_had_it_says(world: World) -> None:
    (job,) = world.submit(OPENED)
    site, other = Site(world), Site(world, "other")
    site.sync()
    way = RouteView(
        job=job, name="f", way="cache", url="root://c//root://o//x", why="through cache `c`: it is far"
    )
    site.sync(views=packed(routes=[way]))
    other.sync(want=0, views=packed(routes=[RouteView(job=job, name="f", why="of a site that lies")]))

    assert world.job(job).routes == [way]
