"""Dependencies, matching, actions, pages and drained sites, on both databases."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.contract.server_world import (
    SCRIPT,
    SIM,
    Site,
    World,
    done,
    failed,
    key_of,
    leases,
    number_of,
    refused,
)

from tidemill.errors import ConfigError, SiteError
from tidemill.model.identity import Identity, Role, Via
from tidemill.model.job import Input, JobSpec, Output, Resources
from tidemill.model.legal import row_fault, spec_fault
from tidemill.server.core.dispatcher import Dispatcher, DispatchRules
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.database.rows import PARTIAL, SETTLED
from tidemill.server.database.store import Store, row
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.errors import ForbiddenError, MissingError, RequestError, WrongEdgeError
from tidemill.server.read import api_pages, feed
from tidemill.server.read.job_search import Filter
from tidemill.wire.api import (
    ActionRequest,
    AllocationReport,
    CancelOrder,
    Capacity,
    DeliveredReport,
    DeliverOrder,
    DrainOrder,
    DrainRequest,
    FetchLogOrder,
    ForgetOrder,
    LogReport,
    OutputRow,
    SubmitRequest,
)

ANY_COMMAND = Capacity(
    want_core_s=1e6, want_ranges_max=5000, slot_cores_max=4, slot_memory_mb_max=4000, devices={}, event_s={}, nodes=1,
    busy_cores=0, adhoc=True,
)  # fmt: skip

# ---- names -------------------------------------------------------------------------------------------------------

PROGRAMS = [
    "./my prog", "/opt/pr\u00f6g", "p\U0010ffffq", "li\nne", "_main_.py", ".hidden", "-x", "\u00e9\u00e9", "a" * 200,
    "-" * 99 + "ab", "a" * 99 + " b", "tab\t", "end/", "~", "a(1)", "prog",
]  # fmt: skip


def test_sites_take_jobs_whatever_the_name_of_their_program_is(world: World) -> None:
    jobs = world.submit(*(JobSpec(command=[program]) for program in PROGRAMS))
    found = leases(Site(world).sync(capacity=ANY_COMMAND))
    assert sorted(lease.job for lease in found) == jobs
    specs = [lease.spec for lease in found if lease.spec is not None]
    assert [row_fault(spec) or spec_fault(spec) for spec in specs] == [None] * len(PROGRAMS)
    names = {spec.command[0]: spec.name for spec in specs if spec.command}
    assert (names["./my prog"], names["prog"], names["\u00e9\u00e9"]) == ("my-prog", "prog", None)


def test_an_output_without_a_path_is_refused_before_any_site_has_the_job(world: World) -> None:
    with pytest.raises(RequestError, match="path of output o is empty"):
        world.submit(JobSpec(command=["true"], outputs=[Output(name="o", path="")]))


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


def test_a_job_comes_after_its_own_campaign_only_where_that_has_earlier_jobs(world: World) -> None:
    later = JobSpec(app="sim", after=["a"])
    with pytest.raises(
        RequestError, match="job 1 of the request comes after its own campaign `a`"
    ) as refused:
        world.submit(SIM, later, campaign="a")
    assert 'after = ["NAME"]' in str(refused.value.hint)
    (first,) = world.submit(SIM, campaign="a")  # nothing of the refused request is left
    beside, second = world.submit(SIM, later, campaign="a")
    site = Site(world)
    granted = {lease.job: lease for lease in leases(site.sync())}
    assert set(granted) == {first, beside}
    assert [lease.job for lease in leases(site.sync(done(granted[first])) + site.sync())] == [second]


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
    assert after.from_jobs == {"in.tar": first}
    assert lease.from_jobs == {}
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


def test_a_job_that_no_slot_can_hold_says_what_it_asks_for_next_to_what_there_is(world: World) -> None:
    jobs = world.submit(
        JobSpec(app="sim", resources=Resources(devices={"gpu": 2})),
        JobSpec(app="sim", site="s", resources=Resources(devices={"gpu": 2})),
        JobSpec(app="sim", resources=Resources(cores=99)),
        JobSpec(app="sim", resources=Resources(devices={"gpu_percent": 50})),
    )
    Site(world).sync()
    gpus, pinned, cores, share = (world.job(each).waits_hint or "" for each in jobs)
    assert "asked: 1 core, any MB, 2 GPUs; largest slot: 4 cores, 4000 MB, 1 GPU" in gpus
    assert "asked: 1 core, any MB, 2 GPUs; largest slot: 4 cores, 4000 MB, 1 GPU" in pinned
    assert "asked: 99 cores, any MB; largest slot: 4 cores, 4000 MB, 1 GPU" in cores
    assert "by `--cores 4`, in a job file `cores = 4`" in cores
    assert "asked: 1 core, any MB, 0.5 of a GPU" in share, "a site of an older version shares no GPU"


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
    assert api_pages.counts(world.reader).states["COMPLETED"] == 5000


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


def test_jobs_that_their_owner_needs_no_more_are_completed_and_nothing_of_them_runs_on(world: World) -> None:
    site = Site(world)
    started, waiting, half = world.submit(SIM, SIM, JobSpec(app="sim", events=2))
    (after,) = world.submit(JobSpec(app="sim", after=[started]))
    given = {each.job: each for each in leases(site.sync())}
    site.sync(done(given[half], count=1), want=0)
    reply = world.dispatcher.handle_cancel(
        ActionRequest(jobs=[started, waiting, half], reason="no call is left", unneeded=True)
    )
    assert reply.changed == 3
    rows = [world.job(each).row for each in (started, waiting)]
    assert [(row.state, row.reason, row.events_done) for row in rows] == [
        ("COMPLETED", "no call is left", 0)
    ] * 2
    assert world.state(half) == "CANCELED", "what is done of it is not all of it"
    orders = site.sync(want=0)
    assert {order.job for order in orders if isinstance(order, CancelOrder)} >= {started, half}
    site.sync(done(given[started]), want=0)
    assert world.state(started) == "COMPLETED", "a result that comes late changes nothing"
    (lease,) = leases(site.sync())
    assert lease.job == after


def test_only_the_owner_of_jobs_says_that_they_are_not_needed(world: World) -> None:
    ada = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE)
    operator = Identity(role=Role.OPERATOR, name="eve", via=Via.CERTIFICATE)
    request = SubmitRequest(campaign="ada-1", owner="ada", key="k", jobs=[SIM, SIM])
    first = world.dispatcher.handle_submit(request, ada).first_job
    second = first + 1
    unneeded = ActionRequest(jobs=[first], unneeded=True)
    with pytest.raises(ForbiddenError, match="only their owner knows") as caught:
        world.dispatcher.handle_cancel(unneeded, operator)
    assert caught.value.hint == "cancel them without `unneeded`"
    assert world.state(first) == "WAITING"
    assert world.dispatcher.handle_cancel(unneeded, ada).changed == 1
    assert world.dispatcher.handle_cancel(ActionRequest(jobs=[second]), operator).changed == 1
    assert (world.state(first), world.state(second)) == ("COMPLETED", "CANCELED")


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
    with pytest.raises(MissingError):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[999]))


def test_pages_filter_by_everything_together_and_go_deep(world: World) -> None:
    for campaign, app in itertools.product(("a", "b"), ("sim", "other")):
        world.submit(JobSpec(app=app), campaign=campaign, repeat=[30])
    site = Site(world)
    for lease in leases(site.sync(ranges=40)):
        site.sync(done(lease), want=0)
    everything = api_pages.jobs(world.reader, Filter(), before=None, limit=1000).jobs
    assert [each.id for each in everything] == list(range(120, 0, -1))
    for state, of_app, of, at in itertools.product(
        ("WAITING", "COMPLETED", None), ("sim", None), ("a", None), ("s", None)
    ):
        filters = Filter(state=state, app=of_app, campaign=number_of(world.reader, of), site=at)
        expected = [
            each.id for each in everything
            if state in (None, each.state) and of_app in (None, each.app) and of in (None, each.campaign)
            and at in (None, each.site)
        ]  # fmt: skip
        found: list[int] = []
        before: int | None = None
        while True:
            page = api_pages.jobs(world.reader, filters, before=before, limit=7)
            found += [each.id for each in page.jobs]
            before = page.next
            if before is None:
                break
        assert found == expected, filters
    with pytest.raises(RequestError, match="not a state"):
        api_pages.jobs(world.reader, Filter(state="DONE"), before=None, limit=None)


def test_named_jobs_are_found(world: World) -> None:
    world.submit(JobSpec(app="sim", name="x"), SIM, JobSpec(app="sim", name="x"))
    found = api_pages.jobs(
        world.reader, Filter(name="x", campaign=number_of(world.reader, "c")), before=None, limit=None
    )
    assert [each.id for each in found.jobs] == [3, 1]


def test_changes_tell_every_state_in_order(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease))
    changes, reached = feed.changes(world.reader, 0, key_of(world.reader, "c").number)
    assert [(each.job, each.state, each.events_done) for each in changes] == [
        (job, "RUNNING", 0),
        (job, "COMPLETED", 1),
    ]
    assert feed.changes(world.reader, reached, None) == ([], reached)
    assert feed.changes(world.reader, changes[0].number, 99)[0] == []


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


def test_who_asks_for_a_log_again_waits_for_the_same_answer(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    site.sync()

    def notes() -> int:
        return len(world.reader.rows("audit_pending", limit=100))

    first, noted = world.dispatcher.ask_log(job, None), notes()
    assert first is not None
    assert [world.dispatcher.ask_log(job, None) for _ in range(5)] == [first] * 5
    assert notes() == noted
    other = world.dispatcher.ask_log(job, 0)
    assert other not in (None, first)
    orders = [each for each in site.sync() if isinstance(each, FetchLogOrder)]
    assert [each.request for each in orders] == [first, other]
    site.sync(LogReport(n=0, request=first, found=True, stdout="out", stderr=""))
    assert world.dispatcher.ask_log(job, None) not in (None, first, other)


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
    (found,) = api_pages.allocations(world.reader, site="s", limit=None)
    assert (found.site, found.state, found.batch_id) == ("s", "ACTIVE", "7")
    (shown,) = api_pages.site_rows(world.reader, set())
    assert (shown.name, shown.state, shown.applications) == ("s", "UP", ["reco", "sim"])


def test_everything_is_there_after_the_server_starts_again(world: World) -> None:
    (job,) = world.submit(JobSpec(app="reco", events=3, outputs=[Output(name="hits", path="h")]))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease, 0, 1, outputs=True))
    world.dispatcher.close()
    world.dispatcher = Dispatcher(
        world.store, DispatchRules(site_lost_s=600), server_clock=ServerClock(monotonic_s=lambda: world.now_s)
    )
    assert leases(site.sync()) == []
    orders = site.sync(done(lease, 1, 2, outputs=True))
    assert [order.done for order in orders if isinstance(order, DeliverOrder)] == ["0-2"]
    assert world.job(job).waits_for == "delivering"


@pytest.mark.postgresql
def test_a_crashed_postgresql_refuses_and_is_found_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
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
    with pytest.raises(RequestError, match="not finite"):
        Site(world).sync(want=float("inf"))
    with pytest.raises(RequestError, match="is not a valid name"):
        Site(world, "s\n").sync()
    with pytest.raises(MissingError, match="no job"):
        world.dispatcher.handle_cancel(ActionRequest(jobs=[2**70]))


# ---- what a cycle does not write, and drained sites ----------------------------------------------------------------


def test_a_lease_that_was_settled_with_its_job_is_shown_so_and_stays_so(world: World) -> None:
    (number,) = world.submit(JobSpec(app="sim"))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease))
    world.dispatcher.close()
    world.dispatcher = Dispatcher(
        world.store, DispatchRules(site_lost_s=600), server_clock=ServerClock(monotonic_s=lambda: world.now_s)
    )
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
        world.dispatcher = Dispatcher(
            world.store,
            DispatchRules(site_lost_s=600),
            server_clock=ServerClock(monotonic_s=lambda: world.now_s),
        )
    site.sync(done(first), failed(second, 0, final=False), refused(third), failed(fourth, 0), want=0)
    assert [world.state(each) for each in numbers] == ["COMPLETED", "RUNNING", "WAITING", "FAILED"]
    site.sync(done(second), want=0)
    (again,) = leases(site.sync())
    site.sync(done(again))
    world.dispatcher.handle_retry(ActionRequest(jobs=[numbers[3]]))
    (retried,) = leases(site.sync())
    site.sync(done(retried))
    assert [world.state(each) for each in numbers] == ["COMPLETED"] * 4
    counted = api_pages.counts(world.reader)
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
    with pytest.raises(MissingError, match="later"):
        world.dispatcher.handle_drain("later", DrainRequest(drain=True))


def test_a_wrong_change_of_state_is_a_bug_that_undoes_its_request_only(world: World) -> None:
    (number,) = world.submit(JobSpec(app="sim"))

    def accept(work: UnitOfWork) -> None:
        work.load([number])
        work.enter(work.jobs[number], PARTIAL)

    with pytest.raises(WrongEdgeError, match="WAITING -> PARTIAL"):
        world.dispatcher.writer.write(accept)
    assert len(leases(Site(world).sync())) == 1


def test_an_active_lease_of_a_completed_job_is_settled(world: World) -> None:
    world.submit(JobSpec(app="sim"))
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(done(lease))
    (stored,) = world.reader.rows("leases_of_jobs", ids=[lease.job])
    assert (stored.state, stored.ended_us) == (SETTLED, world.job(lease.job).row.ended_us)
    assert world.reader.rows("sites_of_jobs", ids=[lease.job]), "the row itself is not written again"
    assert [each.state for each in world.job(lease.job).attempts] == ["SETTLED"]
