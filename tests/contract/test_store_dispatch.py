"""One suite over both databases: submit, sync, ends of jobs, dependencies, actions and pages."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tidemill.errors import ConfigError, SiteError
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.job import Input, JobSpec, Output, Resources
from tidemill.model.seed import campaign_offset
from tidemill.server import pages
from tidemill.server.dispatcher import Dispatcher, Missing
from tidemill.server.pages import Filter
from tidemill.server.queries import migrations
from tidemill.server.records import COMPLETED
from tidemill.server.store import Session, Store, row, transaction
from tidemill.server.sync import Bad, Conflict
from tidemill.server.work import Work, WrongEdgeError
from tidemill.wire.api import (
    ActionRequest,
    AllocationReport,
    AppOffer,
    CancelOrder,
    Capacity,
    DeliveredReport,
    DeliverOrder,
    DiscardOrder,
    DoneReport,
    DrainOrder,
    DrainRequest,
    FailureReport,
    FetchLogOrder,
    ForgetOrder,
    JobDetail,
    LeaseOrder,
    LogReport,
    Order,
    OutputRow,
    ReleaseReport,
    SubmitRequest,
    SyncReply,
    SyncRequest,
    Usage,
)

SCRIPT = Path(__file__).parents[2] / "scripts" / "postgresql.sh"
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A real server; without its programs a failure in CI, else a skip."""
    pytest.importorskip("psycopg")
    with tempfile.TemporaryDirectory(prefix="tm-pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        options = {**os.environ, "POSTGRESQL_OPTIONS": "-c fsync=off"}
        started = subprocess.run(
            [SCRIPT, "start", f"{folder}/d"], env=options, capture_output=True, text=True, check=False
        )
        if started.returncode:
            reason = f"PostgreSQL does not start: {started.stderr.strip()}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        yield started.stdout.strip()
        subprocess.run([SCRIPT, "stop", f"{folder}/d"], check=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return Store(path=tmp_path / "t.db")
    url = request.getfixturevalue("postgresql_url")
    schema = f"t{next(_NUMBERS)}"
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return Store(url=f"{url}&options={quote(f'-csearch_path={schema}')}")


class World:
    """A dispatcher whose sites' clock is the test's."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_s = 0.0
        self.dispatcher = Dispatcher(store, site_lost_s=600, monotonic_s=lambda: self.now_s)
        self.reader: Session = store.reader()
        self.keys = itertools.count()

    def submit(self, *jobs: JobSpec, campaign: str = "c", **more: Any) -> list[int]:
        request = SubmitRequest(key=f"k{next(self.keys)}", campaign=campaign, jobs=list(jobs), **more)
        reply = self.dispatcher.handle_submit(request)
        return list(range(reply.first_job, reply.first_job + reply.count))

    def job(self, number: int) -> JobDetail:
        return pages.job(self.reader, number, cache={}, silent=set())

    def state(self, number: int) -> str:
        return self.job(number).row.state


class Site:
    """A site that keeps to the contract."""

    def __init__(self, world: World, name: str = "s", outputs: dict[str, list[str]] | None = None) -> None:
        self.world, self.name = world, name
        self.have = self.n = 0
        self.epoch = 1
        self.offers = [
            AppOffer(
                name=app, version="1", digest="", mode="command", parameters={}, outputs=outputs, cores=1,
                memory_mb=100, event_s=1.0,
            )
            for app, outputs in (outputs or {"sim": [], "reco": ["hits"]}).items()
        ]  # fmt: skip

    def sync(self, *reports: Any, want: float = 1e6, ranges: int = 5000, **changes: Any) -> list[Order]:
        return self.exchange(*reports, want=want, ranges=ranges, **changes).orders

    def exchange(self, *reports: Any, want: float = 1e6, ranges: int = 5000, **changes: Any) -> SyncReply:
        for report in reports:
            self.n += 1
            report.n = self.n
        capacity = Capacity(
            want_core_s=want, want_ranges_max=ranges, slot_cores_max=4, slot_memory_mb_max=4000, devices={"gpu": 1},
            event_s={}, nodes=1, busy_cores=0, adhoc=False,
        )  # fmt: skip
        fields: dict[str, Any] = {
            "site": self.name, "epoch": self.epoch, "host": "h", "version": "1", "reports": list(reports),
            "have": self.have, "offers": self.offers, "capacity": capacity, **changes,
        }  # fmt: skip
        reply = self.world.dispatcher.handle_sync(SyncRequest(**fields))
        self.have = max([self.have, *(order.n for order in reply.orders)])
        return reply


def done(
    lease: LeaseOrder, first: int | None = None, count: int | None = None, *, outputs: bool = False
) -> DoneReport:
    at = lease.first if first is None else first
    return DoneReport(
        n=0, lease=lease.lease, job=lease.job, first=at, count=lease.count if count is None else count,
        outputs=outputs, usage=Usage(payloads=1, wall_us=2_000_000),
    )  # fmt: skip


def failed(lease: LeaseOrder, event: int, *, final: bool = True) -> FailureReport:
    evidence = Evidence(failure=FailureClass.PAYLOAD, message="exit 1", stderr_tail="a\0b")
    return FailureReport(
        n=0,
        lease=lease.lease,
        job=lease.job,
        first=event,
        count=1,
        event=event,
        final=final,
        evidence=evidence,
    )


def refused(lease: LeaseOrder) -> ReleaseReport:
    evidence = Evidence(failure=FailureClass.DISPATCH, message="no such parameter")
    return ReleaseReport(
        n=0, lease=lease.lease, job=lease.job, first=lease.first, count=lease.count, reason="refused",
        evidence=evidence,
    )  # fmt: skip


def leases(orders: list[Order]) -> list[LeaseOrder]:
    return [order for order in orders if isinstance(order, LeaseOrder)]


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    store.init()
    made = World(store)
    yield made
    made.reader.close()
    made.dispatcher.close()


SIM = JobSpec(app="sim")


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
            session.rows("insert_site", name="x")
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
    with pytest.raises(Conflict, match="other content"):
        world.dispatcher.handle_submit(SubmitRequest(key="k", campaign="c", jobs=[SIM]))
    assert pages.counts(world.reader).jobs == 3


def test_a_submission_with_one_wrong_job_changes_nothing(world: World) -> None:
    with pytest.raises(Bad, match="job 1 of the request"):
        world.submit(SIM, JobSpec(app="sim", events=0))
    with pytest.raises(Bad, match="does not exist"):
        world.submit(SIM, JobSpec(app="sim", after=[77]))
    assert pages.counts(world.reader).jobs == 0
    assert world.submit(SIM) == [1]


def test_seeds_of_a_campaign_do_not_overlap(world: World) -> None:
    ids = world.submit(JobSpec(app="sim", events=10), SIM) + world.submit(SIM)
    bases = [world.job(each).seed_base for each in ids]
    assert bases == [campaign_offset("c") + at for at in (0, 10, 11)]
    with pytest.raises(Bad, match="at most 1247483647"):
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
    campaign = pages.campaign(world.reader, "c")
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
    assert pages.campaign(world.reader, "c").usage.payloads == 1


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
    assert pages.outputs(world.reader, campaign="c").outputs[0].output == output


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
    assert pages.campaign(world.reader, "c").failures == {"payload": 2}
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
    assert pages.campaign(world.reader, "c").events_done == 4


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


def test_an_old_epoch_and_a_copied_site_are_refused(world: World) -> None:
    site = Site(world)
    site.epoch = 2
    site.sync()
    with pytest.raises(Conflict, match="epoch 2 on host `h`"):
        site.sync(epoch=1)
    with pytest.raises(Conflict, match="not to `other`"):
        site.sync(host="other")


# ---- dependencies ------------------------------------------------------------------------------------------------


def test_a_job_waits_for_the_jobs_it_comes_after(world: World) -> None:
    (first,) = world.submit(SIM)
    (second,) = world.submit(JobSpec(app="sim", after=[first]))
    site = Site(world)
    (lease,) = leases(site.sync())
    assert (lease.job, world.job(second).waits_for) == (first, "after")
    assert f"job {first}" in str(world.job(second).waits_hint)
    (after,) = leases(site.sync(done(lease)) + site.sync())
    assert after.job == second


def test_failure_is_passed_on_with_its_reason_unless_any_end_will_do(world: World) -> None:
    (first,) = world.submit(SIM)
    (second,) = world.submit(JobSpec(app="sim", after=[first]))
    (third,) = world.submit(JobSpec(app="sim", after=[second]))
    (fourth,) = world.submit(JobSpec(app="sim", after=[third], after_any=True))
    world.dispatcher.handle_cancel(ActionRequest(jobs=[first], reason="wrong energy"))
    assert [world.state(each) for each in (second, third, fourth)] == ["FAILED", "FAILED", "WAITING"]
    assert "wrong energy" in world.job(second).row.reason
    assert [lease.job for lease in leases(Site(world).sync())] == [fourth]
    (fifth,) = world.submit(JobSpec(app="sim", after=[third]))
    assert world.state(fifth) == "FAILED"


def test_a_job_waits_for_the_present_jobs_of_a_campaign(world: World) -> None:
    world.submit(SIM, SIM, campaign="a")
    (later,) = world.submit(JobSpec(app="sim", after=["a"]), campaign="b")
    world.submit(SIM, campaign="a")
    site = Site(world)
    granted = leases(site.sync())
    assert len(granted) == 3
    one, two, _ = sorted(granted, key=lambda lease: lease.job)
    assert leases(site.sync(done(one)) + site.sync()) == []
    assert [lease.job for lease in leases(site.sync(done(two)) + site.sync())] == [later]


def test_an_input_from_another_job_is_given_by_its_url(world: World) -> None:
    (first,) = world.submit(JobSpec(app="reco"))
    wants = JobSpec(app="sim", inputs=[Input(name="in.tar", url=f"job:{first}/hits")])
    (second,) = world.submit(wants)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, outputs=True))
    output = OutputRow(name="hits", url="file:///x/hits.tar", size_bytes=5, sha256="ab")
    (after,) = leases(
        site.sync(DeliveredReport(n=0, job=first, outputs=[output], evidence=None)) + site.sync()
    )
    assert after.job == second
    assert after.spec is not None
    assert after.spec.inputs == [Input(name="in.tar", url="file:///x/hits.tar", sha256="ab")]
    assert world.job(second).spec == wants


def test_an_input_that_was_never_delivered_fails_the_job(world: World) -> None:
    (first,) = world.submit(SIM)
    (second,) = world.submit(JobSpec(app="sim", inputs=[Input(name="x", url=f"job:{first}/none")]))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease))
    site.sync()
    assert (world.state(second), "delivered no such output" in world.job(second).row.reason) == (
        "FAILED",
        True,
    )


# ---- matching ----------------------------------------------------------------------------------------------------


def test_priority_goes_first_then_age(world: World) -> None:
    low, high, later = world.submit(SIM, JobSpec(app="sim", priority=5), SIM)
    assert [lease.job for lease in leases(Site(world).sync())] == [high, low, later]


def test_a_site_gets_only_what_it_can_run(world: World) -> None:
    fits, elsewhere, unknown, large, adhoc, devices = world.submit(
        SIM, JobSpec(app="sim", site="t"), JobSpec(app="none"), JobSpec(app="sim", resources=Resources(cores=8)),
        JobSpec(command=["/bin/true"]), JobSpec(app="sim", resources=Resources(devices={"gpu": 2})),
    )  # fmt: skip
    assert [lease.job for lease in leases(Site(world).sync())] == [fits]
    causes = [world.job(each).waits_for for each in (elsewhere, unknown, large, adhoc, devices)]
    assert causes == [
        "site_pinned_unknown", "app_not_offered", "resources_too_large", "adhoc_not_allowed", "resources_too_large",
    ]  # fmt: skip
    assert [lease.job for lease in leases(Site(world, "t").sync())] == [elsewhere]


def test_big_jobs_are_cut_into_what_a_site_wants(world: World) -> None:
    world.submit(JobSpec(app="sim", events=100_000))
    (lease,) = leases(Site(world).sync(want=500))
    (other,) = leases(Site(world, "t").sync(want=300))
    assert ((lease.first, lease.count), (other.first, other.count)) == ((0, 500), (500, 300))


def test_thousands_of_jobs_are_leased_and_finished_in_two_syncs(world: World) -> None:
    world.submit(SIM, repeat=[6000])
    site = Site(world)
    granted = leases(site.sync(ranges=5000))
    assert len(granted) == 5000
    rest = leases(site.sync(*(done(lease) for lease in granted)))
    assert len(rest) == 1000
    assert pages.counts(world.reader).states["COMPLETED"] == 5000


def test_campaigns_share_by_their_weights(world: World) -> None:
    world.submit(SIM, campaign="a", repeat=[4000], shares=3.0)
    world.submit(SIM, campaign="b", repeat=[4000])
    site, got = Site(world), {"a": 0, "b": 0}
    for _ in range(10):
        for lease in leases(site.sync(want=100)):
            got[lease.campaign] += 1
    assert sum(got.values()) == 1000
    assert abs(got["a"] - 750) <= 20


# ---- actions and pages -------------------------------------------------------------------------------------------


def test_cancel_stops_a_campaign_wherever_it_is(world: World) -> None:
    ids = world.submit(SIM, SIM, SIM)
    site = Site(world)
    (lease,) = leases(site.sync(ranges=1))
    reply = world.dispatcher.handle_cancel(ActionRequest(campaign="c", reason="no more"))
    assert (reply.changed, {world.state(each) for each in ids}) == (3, {"CANCELED"})
    assert [type(order) for order in site.sync()] == [CancelOrder, ForgetOrder]
    site.sync(done(lease))
    assert world.dispatcher.handle_cancel(ActionRequest(jobs=ids)).unchanged == 3
    assert world.dispatcher.handle_retry(ActionRequest(campaign="c")).changed == 3
    assert len(leases(site.sync())) == 3
    with pytest.raises(Missing):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[999]))


def test_pages_filter_by_everything_together_and_go_deep(world: World) -> None:
    for campaign, app in itertools.product(("a", "b"), ("sim", "other")):
        world.submit(JobSpec(app=app), campaign=campaign, repeat=[30])
    site = Site(world)
    for lease in leases(site.sync(ranges=40)):
        site.sync(done(lease), want=0)
    everything = pages.jobs(world.reader, Filter(), before=None, limit=1000).jobs
    assert [each.id for each in everything] == list(range(120, 0, -1))
    for state, of_app, of, at in itertools.product(
        ("WAITING", "COMPLETED", None), ("sim", None), ("a", None), ("s", None)
    ):
        filters = Filter(state=state, app=of_app, campaign=of, site=at)
        expected = [
            each.id for each in everything
            if state in (None, each.state) and of_app in (None, each.app) and of in (None, each.campaign)
            and at in (None, each.site)
        ]  # fmt: skip
        found: list[int] = []
        before: int | None = None
        while True:
            page = pages.jobs(world.reader, filters, before=before, limit=7)
            found += [each.id for each in page.jobs]
            before = page.next
            if before is None:
                break
        assert found == expected, filters
    with pytest.raises(Bad, match="no state"):
        pages.jobs(world.reader, Filter(state="DONE"), before=None, limit=None)


def test_named_jobs_are_found(world: World) -> None:
    world.submit(JobSpec(app="sim", name="x"), SIM, JobSpec(app="sim", name="x"))
    found = pages.jobs(world.reader, Filter(name="x", campaign="c"), before=None, limit=None)
    assert [each.id for each in found.jobs] == [3, 1]


def test_changes_tell_every_state_in_order(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease))
    changes, reached = pages.changes(world.reader, 0, "c")
    assert [(each.job, each.state, each.events_done) for each in changes] == [
        (job, "RUNNING", 0),
        (job, "COMPLETED", 1),
    ]
    assert pages.changes(world.reader, reached, None) == ([], reached)
    assert pages.changes(world.reader, changes[0].number, "other")[0] == []


def test_a_log_is_fetched_from_the_site_that_ran_the_event(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    assert world.dispatcher.ask_log(job, None) is None
    site.sync()
    number = world.dispatcher.ask_log(job, 0)
    assert number is not None
    (order,) = (each for each in site.sync() if isinstance(each, FetchLogOrder))
    site.sync(LogReport(n=0, request=order.request, found=True, stdout="out\0", stderr="err"))
    found = row(world.reader, "log_request", id=number)
    assert found is not None
    assert (found[0], found[1], bytes(found[2])) == (1, 1, b"out\0")


def test_allocations_show_their_latest_state(world: World) -> None:
    site = Site(world)
    report: dict[str, Any] = {
        "name": "tm-s-e1-1",
        "batch_id": "7",
        "nodes": 1,
        "cores": 2,
        "reason": "",
        "busy_us": 0,
        "slot_us": 0,
    }
    site.sync(
        AllocationReport(n=0, state="QUEUED", at_us=1, **report),
        AllocationReport(n=0, state="ACTIVE", at_us=2, **report),
    )
    (found,) = pages.allocations(world.reader, site="s", limit=None)
    assert (found.site, found.state, found.batch_id) == ("s", "ACTIVE", "7")
    (shown,) = pages.site_rows(world.reader, set())
    assert (shown.name, shown.state, shown.applications) == ("s", "UP", ["reco", "sim"])


def test_everything_is_there_after_the_server_starts_again(world: World) -> None:
    (job,) = world.submit(JobSpec(app="reco", events=3, outputs=[Output(name="hits", path="h")]))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 1, outputs=True))
    world.dispatcher.close()
    world.dispatcher = Dispatcher(world.store, site_lost_s=600, monotonic_s=lambda: world.now_s)
    assert leases(site.sync()) == []
    orders = site.sync(done(lease, 1, 2, outputs=True))
    assert [order.done for order in orders if isinstance(order, DeliverOrder)] == ["0-2"]
    assert world.job(job).waits_for == "delivering"


@pytest.mark.postgresql
def test_a_crashed_postgresql_refuses_and_is_found_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and os.environ.get("CI") != "true":
        pytest.skip("PostgreSQL's server programs are not installed")
    with tempfile.TemporaryDirectory(prefix="tm-pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        start: list[str | Path] = [SCRIPT, "start", f"{folder}/d"]
        url = subprocess.run(start, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        store = Store(url=url)
        store.init()
        dispatcher = Dispatcher(store)
        with pytest.raises(ConfigError, match="another server"):
            Dispatcher(store)
        request = SubmitRequest(key="a", campaign="c", jobs=[SIM])
        assert dispatcher.handle_submit(request).repeated is False
        subprocess.run([SCRIPT, "crash", f"{folder}/d"], check=True)
        for _ in range(2):
            with pytest.raises(SiteError):
                dispatcher.handle_submit(SubmitRequest(key="b", campaign="c", jobs=[SIM]))
        subprocess.run(start, check=True, stdout=subprocess.PIPE)
        assert dispatcher.handle_submit(request).repeated is True
        assert dispatcher.handle_submit(SubmitRequest(key="b", campaign="c", jobs=[SIM])).first_job == 2
        dispatcher.close()
        subprocess.run([SCRIPT, "stop", f"{folder}/d"], check=True)


def test_numbers_that_are_not_finite_are_refused(world: World) -> None:
    with pytest.raises(Bad, match="not finite"):
        Site(world).sync(want=float("inf"))
    with pytest.raises(Bad, match="no name"):
        Site(world, "s\n").sync()
    with pytest.raises(Missing, match="no job"):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[2**70]))


# ---- what a cycle does not write, and drained sites ----------------------------------------------------------------


def test_a_lease_that_was_settled_with_its_job_is_shown_so_and_stays_so(world: World) -> None:
    (number,) = world.submit(JobSpec(app="sim"))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease))
    world.dispatcher.close()
    world.dispatcher = Dispatcher(world.store, site_lost_s=600, monotonic_s=lambda: world.now_s)
    (attempt,) = world.job(number).attempts
    assert (world.state(number), attempt.state) == ("COMPLETED", "SETTLED")
    assert attempt.ended_us is not None
    site.sync(done(lease))
    world.now_s += 1_000
    assert world.dispatcher.check_sites() == ["s"]
    site.sync()
    assert [each.state for each in world.job(number).attempts] == ["SETTLED"]
    assert world.job(number).row.events_done == 1


@pytest.mark.parametrize("restart", [False, True])
def test_results_count_alike_whether_the_server_remembers_the_job_or_not(
    world: World, *, restart: bool
) -> None:
    numbers = world.submit(*[JobSpec(app="sim")] * 4)
    site = Site(world)
    first, second, third, fourth = leases(site.sync())
    if restart:
        world.dispatcher.close()
        world.dispatcher = Dispatcher(world.store, site_lost_s=600, monotonic_s=lambda: world.now_s)
    site.sync(done(first), failed(second, 0, final=False), refused(third), failed(fourth, 0), want=0)
    assert [world.state(each) for each in numbers] == ["COMPLETED", "RUNNING", "WAITING", "FAILED"]
    site.sync(done(second), want=0)
    (again,) = leases(site.sync())
    site.sync(done(again))
    world.dispatcher.handle_retry(ActionRequest(jobs=[numbers[3]]))
    (retried,) = leases(site.sync())
    site.sync(done(retried))
    assert [world.state(each) for each in numbers] == ["COMPLETED"] * 4
    counted = pages.counts(world.reader)
    assert (counted.states["COMPLETED"], counted.events_done, counted.events_failed) == (4, 4, 0)


def test_a_drained_site_gets_no_leases_and_another_does(world: World) -> None:
    world.submit(*[JobSpec(app="sim")] * 3, JobSpec(app="sim", site="s"))
    site, other = Site(world), Site(world, "other")
    site.sync(want=0)
    reply = world.dispatcher.handle_drain("s", DrainRequest(drain=True, reason="cooling"))
    assert (reply.changed, reply.unchanged) == (1, 0)
    assert world.job(1).waits_for == "site_drained"
    assert world.job(1).waits_hint is not None
    assert "s: cooling" in str(world.job(1).waits_hint)
    orders = site.sync()
    assert [(type(each), each.drain) for each in orders if isinstance(each, DrainOrder)] == [
        (DrainOrder, True)
    ]
    assert len(orders) == 1
    assert len(leases(other.sync())) == 3
    assert world.job(4).waits_for == "site_drained"
    world.dispatcher.handle_drain("s", DrainRequest(drain=False))
    assert len(leases(site.sync())) == 1


def test_a_site_that_has_not_joined_cannot_be_drained(world: World) -> None:
    world.submit(JobSpec(app="sim", site="later"))
    with pytest.raises(Missing, match="later"):
        world.dispatcher.handle_drain("later", DrainRequest(drain=True))


def test_a_wrong_change_of_state_is_a_bug_that_undoes_its_request_only(world: World) -> None:
    (number,) = world.submit(JobSpec(app="sim"))

    def complete(work: Work) -> None:
        work.load([number])
        work.enter(work.jobs[number], COMPLETED)

    with pytest.raises(WrongEdgeError, match="WAITING -> COMPLETED"):
        world.dispatcher.write(complete)
    assert len(leases(Site(world).sync())) == 1
