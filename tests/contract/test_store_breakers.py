"""Sites' own troubles: they fail no job, and what would meet an open breaker is not leased."""

from __future__ import annotations

import msgspec
from tests.contract.server_world import SIM, Site, World, done, leases, refused

from tidemill import clock
from tidemill.model.failure import Evidence, FailureClass, FaultKind
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.model.trouble import EXAMPLES_MAX, TEXT_MAX, TROUBLES_MAX, Scope, Trouble
from tidemill.server.read import api_pages
from tidemill.wire.api import Capacity, LeaseOrder, Order, ReleaseReport
from tidemill.wire.monitoring import AwaitedNodes

EXPIRED = "`https://dav.example.org/a` refuses us: our certificate `/etc/proxy.pem` expired at Nov 20 2026"

LATER_S = 8_000
"""More than the longest pause: a clock ahead of the wall goes at half speed."""


def given_back(lease: LeaseOrder, failure: FailureClass, message: str, fault: str = "") -> ReleaseReport:
    evidence = Evidence(failure=failure, message=message, fault=fault)
    return ReleaseReport(
        n=0, lease=lease.lease, job=lease.job, first=lease.first, count=lease.count, reason=message,
        evidence=evidence,
    )  # fmt: skip


def capacity(*troubles: Trouble) -> Capacity:
    return Capacity(
        want_core_s=1e6, want_ranges_max=5000, slot_cores_max=4, slot_memory_mb_max=4000, devices={}, event_s={},
        nodes=1, busy_cores=0, adhoc=True, troubles=list(troubles),
    )  # fmt: skip


def with_troubles(site: Site, *troubles: Trouble) -> list[LeaseOrder]:
    orders: list[Order] = site.sync(capacity=capacity(*troubles))
    return leases(orders)


def trouble(scope: Scope, name: str = "", **more: object) -> Trouble:
    fields: dict[str, object] = {
        "failure": "credential", "scope": scope.value, "name": name, "message": EXPIRED,
        "hint": "renew `/etc/proxy.pem`", "since_us": 1, "next_us": 2_000_000, "is_open": True, **more,
    }  # fmt: skip
    return Trouble(**fields)  # type: ignore[arg-type]


def remote(url: str = "https://dav.example.org/a", app: str = "sim") -> JobSpec:
    return JobSpec(app=app, inputs=[Input(name="in", url=url)])


def listed(url: str) -> JobSpec:
    """Jobs whose input names a list are of one kind wherever the list is: it is not the data."""
    return JobSpec(app="sim", inputs=[Input(name="in", url=url, kind=InputKind.EACH)])


def test_a_lone_site_whose_credential_expired_fails_no_job_however_often_it_gives_it_back(
    world: World,
) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    for _ in range(10):
        (lease,) = leases(site.sync())
        assert leases(site.sync(given_back(lease, FailureClass.CREDENTIAL, EXPIRED))) == []
        assert leases(site.sync()) == []  # not at once
        found = world.job(job)
        assert (found.row.state, found.waits_for) == ("WAITING", "site_refused")
        assert EXPIRED in (found.waits_hint or "")
        world.now_s += LATER_S
    (lease,) = leases(site.sync())
    site.sync(done(lease))
    assert world.state(job) == "COMPLETED"


def test_three_sites_that_refuse_for_causes_of_their_own_leave_the_job_waiting_and_are_named(
    world: World,
) -> None:
    (job,) = world.submit(SIM)
    causes = {
        "a": (FailureClass.CREDENTIAL, "our proxy expired", ""),
        "b": (FailureClass.IMAGE, "image `rel` cannot be mounted", ""),
        "c": (FailureClass.DISPATCH, "this site runs no jobs of ada", FaultKind.SITE.value),
    }
    sites = {name: Site(world, name) for name in causes}
    for site in sites.values():
        site.sync(want=0)
    for _ in range(3):
        for name, (failure, message, fault) in causes.items():
            (lease,) = leases(sites[name].sync())
            sites[name].sync(given_back(lease, failure, message, fault), want=0)
        for site in sites.values():
            assert leases(site.sync()) == []
        found = world.job(job)
        assert (found.row.state, found.waits_for) == ("WAITING", "site_refused")
        for name, (_, message, _) in causes.items():
            assert f"{name}: {message}, offered again at 20" in (found.waits_hint or "")
        world.now_s += LATER_S
        for site in sites.values():
            site.sync(want=0)


def test_the_jobs_own_fault_still_fails_it_with_other_refusals_in_between(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    for _ in range(3):
        (lease,) = leases(site.sync())
        site.sync(given_back(lease, FailureClass.CREDENTIAL, EXPIRED), want=0)
        world.now_s += LATER_S
        (lease,) = leases(site.sync())
        assert world.state(job) == "RUNNING"
        assert leases(site.sync(refused(lease))) == []  # not in the same answer
    assert world.state(job) == "FAILED"


def test_work_for_an_open_breaker_is_not_leased_and_waits_with_the_cause(world: World) -> None:
    bad, other, plain = world.submit(remote(), remote("https://other.example.org/a"), SIM)
    site = Site(world)
    found = with_troubles(site, trouble(Scope.INPUT, "https://dav.example.org"))
    assert sorted(each.job for each in found) == [other, plain]
    waiting = world.job(bad)
    assert (waiting.row.state, waiting.waits_for) == ("WAITING", "site_trouble")
    for part in (EXPIRED, "to end it: renew `/etc/proxy.pem`", "the next try is due now"):
        assert part in (waiting.waits_hint or "")
    assert [each.job for each in with_troubles(site)] == [bad]


def test_a_breaker_that_tries_again_gets_one_job(world: World) -> None:
    jobs = world.submit(*[remote(f"https://dav.example.org/{n}") for n in range(5)])
    site = Site(world)
    found = with_troubles(site, trouble(Scope.INPUT, "https://dav.example.org", room=1))
    assert len(found) == 1
    assert with_troubles(site, trouble(Scope.INPUT, "https://dav.example.org")) == []
    assert len(with_troubles(site)) == len(jobs) - 1


def test_breakers_of_an_application_of_all_inputs_and_of_everything(world: World) -> None:
    sim, reco, with_input = world.submit(SIM, JobSpec(app="reco"), remote("/data/x", app="reco"))
    site = Site(world)
    assert with_troubles(site, trouble(Scope.ALL)) == []
    assert [each.job for each in with_troubles(site, trouble(Scope.APP, "sim"), trouble(Scope.INPUTS))] == [
        reco
    ]
    assert [each.job for each in with_troubles(site, trouble(Scope.APP, "sim"))] == [with_input]
    assert [each.job for each in with_troubles(site, trouble(Scope.APP, "sim", is_open=False))] == [sim]


def test_a_breaker_of_one_owner_holds_back_its_jobs_alone(world: World) -> None:
    (eves,) = world.submit(remote(), campaign="eves", owner="eve")
    (other,) = world.submit(remote("https://dav.example.org/elsewhere/a"), campaign="eves", owner="eve")
    (adas,) = world.submit(remote(), campaign="adas", owner="ada")
    site = Site(world)
    below = trouble(Scope.INPUT, "https://dav.example.org/", owner="eve")
    assert [each.job for each in with_troubles(site, below)] == [adas]
    hint = world.job(eves).waits_hint or ""
    assert "blocked for jobs of eve below `https://dav.example.org/` only" in hint
    (row,) = api_pages.site_rows(world.reader, silent=set(), owner="ada")
    assert row.capacity["troubles"] == [], "it is no matter of ada's"
    (row,) = api_pages.site_rows(world.reader, silent=set())
    assert [each["owner"] for each in row.capacity["troubles"]] == ["eve"]
    path = trouble(Scope.INPUT, "https://dav.example.org/elsewhere/", owner="eve")
    assert [each.job for each in with_troubles(site, path)] == [eves]
    assert [each.job for each in with_troubles(site)] == [other]


def test_for_a_trial_the_server_sends_a_job_of_an_owner_who_did_not_fail_last(world: World) -> None:
    eves = world.submit(remote(), remote(), campaign="eves", owner="eve")
    (adas,) = world.submit(remote(), campaign="adas", owner="ada")
    site = Site(world)
    tried = trouble(Scope.INPUT, "https://dav.example.org", room=1, passed_over=["eve"])
    assert [each.job for each in with_troubles(site, tried)] == [adas]
    assert with_troubles(site, tried) == []
    tried = trouble(Scope.INPUT, "https://dav.example.org", room=1)
    (one,) = with_troubles(site, tried)
    assert one.job in eves


def test_another_site_takes_what_a_breaker_holds_back(world: World) -> None:
    (job,) = world.submit(remote())
    site, other = Site(world), Site(world, "t")
    assert with_troubles(site, trouble(Scope.INPUTS)) == []
    other.sync(want=0)
    assert world.job(job).waits_for == "site_wants_nothing"  # the other one would take it
    assert [each.job for each in leases(other.sync())] == [job]


def test_a_job_that_waits_at_a_site_says_for_what(world: World) -> None:
    waiting, running = world.submit(remote(), SIM)
    site = Site(world)
    assert len(leases(site.sync())) == 2
    with_troubles(
        site, trouble(Scope.INPUT, "https://dav.example.org", is_open=False, jobs=1, examples=[waiting])
    )
    found = world.job(waiting)
    assert (found.row.state, found.waits_for) == ("RUNNING", "site_trouble")
    assert EXPIRED in (found.waits_hint or "")
    assert world.job(running).waits_for == "running"


def test_what_a_hostile_site_says_of_its_troubles_is_kept_within_bounds(world: World) -> None:
    (job,) = world.submit(SIM)
    nasty = trouble(
        Scope.INPUTS, message="x\0" * 100_000, hint="y" * 100_000, examples=list(range(100_000)), room=10**9,
        next_us=2**62, since_us=-5,
    )  # fmt: skip
    site = Site(world)
    with_troubles(site, *[nasty] * 1000, trouble(Scope.ALL))
    (stored,) = api_pages.sites(world.reader)
    assert stored.capacity is not None
    kept = stored.capacity.troubles
    assert len(kept) == TROUBLES_MAX
    assert len(kept[0].examples) == EXAMPLES_MAX
    assert len(kept[0].message) == len(kept[0].hint) == TEXT_MAX
    (row,) = api_pages.site_rows(world.reader, silent=set())
    assert "examples" not in row.capacity["troubles"][0], "they may be other owners' jobs"
    assert world.job(job).row.state == "RUNNING"  # the one for everything was one too many


def test_many_jobs_that_are_held_back_are_not_read_at_each_sync(world: World) -> None:
    jobs = world.submit(*[listed(f"https://dav.example.org/{n}") for n in range(200)])
    site = Site(world)
    held = trouble(Scope.INPUT, "https://dav.example.org")
    assert with_troubles(site, held) == []
    (late,) = world.submit(listed("https://other.example.org/x"))
    assert with_troubles(site, held) == []  # of the same kind: read again in some seconds
    world.now_s += 20
    assert [each.job for each in with_troubles(site, held)] == [late]
    assert len(with_troubles(site)) == len(jobs)


def awaiting(**fields: object) -> Capacity:
    told = capacity()
    told.awaits = AwaitedNodes(**fields)  # type: ignore[arg-type]
    return told


def test_a_job_whose_site_has_no_allocation_at_work_says_so_and_when_the_site_polls_again(
    world: World,
) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    (lease,) = leases(site.sync())
    site.sync(want=0)
    assert world.job(job).waits_for == "running"
    site.sync(
        capacity=awaiting(next_us=clock.now_us() + 20_500_000, why="idle; starts fail: `sbatch` says no")
    )
    found = world.job(job)
    assert found.waits_for == "no_allocation"
    hint = found.waits_hint or ""
    assert "site s: no node is wholly idle; starts fail: `sbatch` says no; the next poll is in " in hint
    assert 0 < int(hint.rpartition(" is in ")[2].split()[0]) <= 21
    site.sync(capacity=awaiting(asked_us=clock.now_us() - 90_000_000))
    assert "site s: an allocation of Tidemill, asked for 1 m 3" in (world.job(job).waits_hint or "")
    site.sync(capacity=capacity())
    assert world.job(job).waits_for == "running"
    site.sync(done(lease))
    assert world.job(job).waits_for is None


def test_a_site_that_takes_no_more_work_says_what_the_work_waits_for_that_it_has(world: World) -> None:
    (job,) = world.submit(SIM)
    why = "all 60 starts of an hour are used up; the next at 2026-11-26T20:41:00Z"
    told = awaiting(why=why)
    told.want_core_s = 0
    Site(world).sync(capacity=told)
    found = world.job(job)
    assert (found.waits_for, why in (found.waits_hint or "")) == ("site_wants_nothing", True)


def test_a_job_that_another_site_is_at_work_on_waits_for_nothing(world: World) -> None:
    (job,) = world.submit(JobSpec(app="sim", events=8))
    sites = [Site(world, name) for name in ("a", "b")]
    for site in sites:
        site.sync(want=4, ranges=1)
        site.sync(want=0)
    sites[0].sync(capacity=awaiting(why="idle"), want=0)
    found = world.job(job)
    assert {each.site for each in found.attempts} == {"a", "b"}
    assert found.waits_for == "running"


def test_what_a_site_says_of_its_nodes_is_kept_in_bounds(world: World) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    site.sync()
    site.sync(capacity=awaiting(asked_us=-5, next_us=2**62, why="a\0b" + "x" * 10_000))
    found = world.job(job)
    assert found.waits_for == "no_allocation"
    assert len(found.waits_hint or "") < 1_000


def test_a_job_that_was_returned_for_a_changed_program_is_offered_at_once_when_that_is_approved_again(
    world: World,
) -> None:
    (job,) = world.submit(SIM)
    site = Site(world)
    for _ in range(4):  # the pause grows
        (lease,) = leases(site.sync())
        site.sync(given_back(lease, FailureClass.DISPATCH, "the digest differs", "site"), want=0)
        world.now_s += LATER_S
    (lease,) = leases(site.sync())
    assert leases(site.sync(given_back(lease, FailureClass.DISPATCH, "the digest differs", "site"))) == []
    world.now_s += 2
    assert leases(site.sync()) == []
    site.offers = [msgspec.structs.replace(each, event_s=2.0) for each in site.offers]
    assert leases(site.sync()) == [], "nothing was approved"
    site.offers = [msgspec.structs.replace(each, digest="sha256:new") for each in site.offers]
    (again,) = leases(site.sync() + site.sync())
    assert again.job == job


def test_a_site_that_offers_other_applications_with_each_sync_fills_no_memory(world: World) -> None:
    site = Site(world)
    site.sync()
    offers = site.offers
    (record,) = world.dispatcher.writer.memory.sites.values()
    for number in range(5):
        site.offers = [*offers, msgspec.structs.replace(offers[0], name=f"other-{number}")]
        site.sync()
    assert set(record.approved_us) == {each.name for each in site.offers}
    assert "other-4" in record.approved_us
    site.offers = offers
    site.sync()
    assert set(record.approved_us) == {each.name for each in offers}


def test_a_job_whose_sites_are_stopped_says_so_and_how_they_are_resumed(world: World) -> None:
    stopped = awaiting(
        why="`/site/STOP` exists: lunch; `tidemill site resume --reason TEXT` lets it work again"
    )
    stopped.awaits = msgspec.structs.replace(stopped.awaits, is_stopped=True)  # type: ignore[type-var]
    stopped.want_core_s = 0
    (anywhere,), (pinned,) = world.submit(SIM), world.submit(JobSpec(app="sim", site="s"))
    site = Site(world)
    site.sync(want=0)
    assert world.job(anywhere).waits_for == "site_wants_nothing"
    site.sync(capacity=stopped)
    for job in (anywhere, pinned):
        found = world.job(job)
        assert found.waits_for == "site_drained"
        assert found.waits_hint == (
            "every site that could run it is stopped, or drained: it goes on when one is resumed; s: `/site/STOP` "
            "exists: lunch; `tidemill site resume --reason TEXT` lets it work again"
        )
    Site(world, "other").sync(want=0)
    assert world.job(anywhere).waits_for == "site_wants_nothing", "one site is at work"
