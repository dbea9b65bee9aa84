"""Times of payloads, on both databases: of timed jobs only, from sites that had them, bounded, and pruned."""

from __future__ import annotations

import msgspec
import pytest
from tests.contract.server_world import Site, World, leases

from tidemill.model.identity import Identity, Role, Via
from tidemill.model.job import JobSpec
from tidemill.server.api.routes import ROUTES, Call, TimesQuery
from tidemill.server.audit import payload_times
from tidemill.server.errors import MissingError
from tidemill.wire.api import PayloadTime, SubmitRequest, TimesReport

ADA = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE, subject="/CN=ada", credential="ada-1")
BOB = msgspec.structs.replace(ADA, name="bob", subject="/CN=bob", credential="bob-1")


def submitted(world: World, **spec: object) -> int:
    job = msgspec.convert({"app": "sim", "events": 4, **spec}, JobSpec)
    request = SubmitRequest(key=f"k-{spec}", campaign="c", jobs=[job])
    return world.dispatcher.handle_submit(request, ADA).first_job


def report(job: int, *events: int) -> TimesReport:
    times = [
        PayloadTime(each, 1, 1, "n1", 0, 1_000_000, 2_000_000, 1_000_000, 10, 900_000, 0) for each in events
    ]
    return TimesReport(n=0, job=job, times=times)


def first_events(world: World, job: int, after: int = 0) -> list[int]:
    return [each.first for each in payload_times.page(world.reader, job, after=after).times]


def test_times_are_read_in_the_order_they_came_and_from_where_a_reader_was(world: World) -> None:
    job, site = submitted(world, timed=True), Site(world, "one")
    leases(site.sync())
    site.sync(report(job, 2, 0), report(job, 1), want=0)
    assert first_events(world, job) == [2, 0, 1]
    page = payload_times.page(world.reader, job, after=0)
    assert {(each.site, each.node) for each in page.times} == {("one", "n1")}
    site.sync(report(job, 3), want=0)
    assert first_events(world, job, page.next) == [3]
    assert payload_times.page(world.reader, job, after=page.next + 5).next == page.next + 5


def test_times_of_other_jobs_and_from_other_sites_are_dropped(world: World) -> None:
    timed, plain = submitted(world, timed=True), submitted(world)
    one, two = Site(world, "one"), Site(world, "two")
    leases(one.sync())
    one.sync(report(plain, 0), report(timed + 1_000, 0), want=0)
    two.sync(report(timed, 1), want=0)
    assert first_events(world, timed) == first_events(world, plain) == []


def test_no_more_than_the_bound_is_kept(world: World) -> None:
    job, site = submitted(world, timed=True), Site(world, "one")
    leases(site.sync())
    bound = payload_times.TIMES_KEPT_MAX
    row = (job, 1, 1, bound - 2, b"[]")
    world.dispatcher.writer.write(lambda work: work.session.many("insert_payload_times", [row]))
    site.sync(report(job, 0), report(job, 1, 2), want=0)
    assert first_events(world, job) == [0, 1]
    assert payload_times.page(world.reader, job, after=0).full


def test_old_times_are_pruned(world: World) -> None:
    job, site = submitted(world, timed=True), Site(world, "one")
    leases(site.sync())
    site.sync(report(job, 0), want=0)
    world.dispatcher.writer.write(lambda work: payload_times.prune(work, 1))
    assert first_events(world, job) == [0]
    world.dispatcher.writer.write(lambda work: payload_times.prune(work, 1 << 62))
    assert first_events(world, job) == []


def test_only_the_owner_reads_times(world: World) -> None:
    job = submitted(world, timed=True)
    (ask,) = [each.run for each in ROUTES if each.path == "/v1/jobs/{job:int}/times" and each.run]
    with pytest.raises(MissingError):
        ask(Call(world.reader, world.dispatcher, TimesQuery(), None, {"job": job}, {}, BOB))
    assert ask(Call(world.reader, world.dispatcher, TimesQuery(), None, {"job": job}, {}, ADA)).times == []
