"""Core-hours on both databases: what allocations held, and what payloads of each campaign used of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.contract.server_world import NotingSession, Site, World, leases

from tidemill.model.identity import Identity, Role, Via
from tidemill.model.job import JobSpec
from tidemill.server.api.routes import ROUTES, Call, CoreHoursQuery
from tidemill.server.audit import traces
from tidemill.server.errors import RequestError
from tidemill.server.read.core_hours import CoreHoursQuestion, page, split
from tidemill.wire.activity import RanRange, RanReport
from tidemill.wire.api import AllocationReport, SubmitRequest
from tidemill.wire.core_hours import AllocationUse

START_US = 1_795_000_000_000_000
HOUR_US = 3_600_000_000


def submitter(name: str) -> Identity:
    return Identity(
        role=Role.SUBMITTER, name=name, via=Via.CERTIFICATE, subject=f"/CN={name}", credential=name
    )


def submitted(world: World, owner: str, **spec: object) -> int:
    job = msgspec.convert({"app": "sim", "events": 4, **spec}, JobSpec)
    request = SubmitRequest(key=f"k-{owner}-{spec}", campaign=f"of-{owner}", jobs=[job])
    return world.dispatcher.handle_submit(request, submitter(owner)).first_job


def allocation(name: str, **fields: object) -> AllocationReport:
    told = {
        "n": 0, "name": name, "batch_id": f"b-{name}", "state": "COMPLETED", "nodes": 2, "cores": 8, "at_us": START_US,
        "reason": "", "busy_us": 0, "slot_us": 0, "hosts": ["n1", "n2"], "started_us": START_US,
        "ended_us": START_US + HOUR_US, "held_cores": 20, "held_gpus": 4,
    }  # fmt: skip
    return msgspec.convert({**told, **fields}, AllocationReport)


def ran(name: str, *found: tuple[int, int]) -> RanReport:
    return RanReport(n=0, allocation=name, ran=[RanRange(job, "0", wall_us=wall) for job, wall in found])


def asked(owner: str | None = None, **fields: object) -> CoreHoursQuestion:
    told = {"since_us": 0, "until_us": 1 << 62, "after": "", "limit": 100, "now_us": START_US + 2 * HOUR_US}
    return CoreHoursQuestion(owner=owner, **{**told, **fields})  # type: ignore[arg-type]


def two_campaigns(world: World) -> tuple[Site, int, int]:
    site = Site(world)
    ann = submitted(world, "ann", resources={"cores": 2})
    bob = submitted(world, "bob")
    assert {each.job for each in leases(site.sync())} == {ann, bob}
    return site, ann, bob


def test_what_an_allocation_held_is_split_by_what_payloads_used_and_adds_up(world: World) -> None:
    site, ann, bob = two_campaigns(world)
    site.sync(allocation("a1"), ran("a1", (ann, 2 * HOUR_US)), ran("a1", (bob, HOUR_US)), want=0)
    site.sync(ran("a1", (ann, HOUR_US)), allocation("a2", held_gpus=0), want=0)
    (first, second) = page(world.reader, asked()).allocations

    assert (first.batch_id, first.cores, first.gpus, first.elapsed_us) == ("b-a1", 20, 4, HOUR_US)
    assert (first.held_core_us, first.held_gpu_us) == (20 * HOUR_US, 4 * HOUR_US)
    bob_cores = next(each.cores for each in site.offers if each.name == "sim")
    used = {each.owner: each.core_us for each in first.uses}
    assert used == {"ann": 2 * 3 * HOUR_US, "bob": bob_cores * HOUR_US}
    assert sum(each.held_core_us for each in first.uses) == first.held_core_us
    assert sum(each.held_gpu_us for each in first.uses) == first.held_gpu_us
    assert (second.uses, second.held_core_us) == ([], 20 * HOUR_US)


def test_a_submitter_sees_the_own_parts_only(world: World) -> None:
    site, ann, bob = two_campaigns(world)
    site.sync(
        allocation("a1"),
        allocation("a2"),
        ran("a1", (ann, HOUR_US), (bob, HOUR_US)),
        ran("a2", (bob, 1)),
        want=0,
    )
    route = next(each for each in ROUTES if each.path == "/v1/core-hours")
    assert route.run is not None
    call = Call(world.reader, world.dispatcher, CoreHoursQuery(), None, {}, {}, submitter("ann"))
    (row,) = route.run(call).allocations
    assert (row.name, row.whole, row.cores, row.nodes, row.gpus) == ("a1", False, 0, 0, 0)
    assert {each.owner for each in row.uses} == {"ann"}
    assert row.held_core_us == row.uses[0].held_core_us < 20 * HOUR_US


def test_an_allocation_that_runs_holds_until_now_or_until_its_site_was_last_heard(world: World) -> None:
    site, _, _ = two_campaigns(world)
    site.sync(allocation("a1", ended_us=0, state="ACTIVE"), want=0)
    (row,) = page(world.reader, asked()).allocations
    assert (row.ended_us, row.elapsed_us) == (None, 2 * HOUR_US)
    (row,) = page(world.reader, asked(silent=frozenset({site.name}))).allocations
    seen_us = next(each[7] for each in world.reader.rows("sites"))
    assert row.elapsed_us == max(0, seen_us - START_US)


def test_pages_have_every_allocation_once(world: World) -> None:
    site, ann, _ = two_campaigns(world)
    names = [f"a{k}" for k in range(7)]
    site.sync(*(allocation(each) for each in names), *(ran(each, (ann, 5)) for each in names), want=0)
    found: list[AllocationUse] = []
    after: str | None = ""
    while after is not None:
        got = page(world.reader, asked(after=after, limit=3))
        found, after = found + got.allocations, got.next
    assert [each.name for each in found] == names
    assert all(len(each.uses) == 1 for each in found)
    early = asked(since_us=START_US + HOUR_US)
    assert page(world.reader, early).allocations == []
    for place in ("x/y", f"{'9' * 5000}/y"):
        with pytest.raises(RequestError, match="not a place"):
            page(world.reader, asked(after=place))


def test_pages_of_a_submitter_have_each_of_the_own_allocations_once(world: World) -> None:
    site, ann, bob = two_campaigns(world)
    more = JobSpec(app="sim", events=4)
    request = SubmitRequest(key="more", campaign="more", jobs=[more])
    again = world.dispatcher.handle_submit(request, submitter("ann")).first_job
    leases(site.sync())
    for name in ("a1", "a2", "a3", "a4"):
        used = [(bob, 5)] if name == "a2" else [(ann, 5), (bob, 5), (again, 5)]
        site.sync(allocation(name), ran(name, *used), want=0)
    first = page(world.reader, asked("ann", limit=2))
    second = page(world.reader, asked("ann", limit=2, after=first.next))
    assert [each.name for each in first.allocations] == ["a1", "a3"]
    assert [each.name for each in second.allocations] == ["a4"]
    assert {len(each.uses) for each in first.allocations} == {2}
    assert page(world.reader, asked("eve")).allocations == []


def test_a_page_reads_what_was_used_of_its_own_allocations_only(world: World) -> None:
    """Between two of a page there may be a year of others, which held nodes at another time."""
    site, ann, bob = two_campaigns(world)
    old = {"started_us": START_US - 9 * HOUR_US, "ended_us": START_US - 8 * HOUR_US}
    site.sync(allocation("a1"), allocation("a2", **old), allocation("a3"), want=0)
    site.sync(*(ran(each, (ann, 5), (bob, 5)) for each in ("a1", "a2", "a3")), want=0)
    session: Any = NotingSession(world.reader)
    (first, second) = page(session, asked(since_us=START_US)).allocations
    named = [row[0] for name, rows in session.found if name == "core_use_of" for row in rows]
    assert (first.name, second.name, named) == ("a1", "a3", ["a1", "a1", "a3", "a3"])


def test_what_a_site_makes_up_is_bounded_and_of_its_own_jobs_only(world: World) -> None:
    site, ann, _ = two_campaigns(world)
    foreign = submitted(world, "eve", app="other")
    huge = ((ann, 2**62), (foreign, 5), (10**9, 5))
    site.sync(allocation("a1", held_cores=2**40), *(ran("a1", *huge) for _ in range(50)), want=0)
    (row,) = page(world.reader, asked()).allocations
    assert [each.owner for each in row.uses] == ["ann"]
    assert 0 < row.uses[0].core_us < 2**63


def test_an_earlier_site_that_does_not_say_what_is_counted_has_nodes_x_cores(world: World) -> None:
    site, _, _ = two_campaigns(world)
    site.sync(allocation("a1", held_cores=0, held_gpus=0), want=0)
    (row,) = page(world.reader, asked()).allocations
    assert (row.cores, row.held_core_us) == (16, 16 * HOUR_US)


def test_what_was_used_is_forgotten_with_where_allocations_were(world: World) -> None:
    site, ann, _ = two_campaigns(world)
    site.sync(allocation("a1"), ran("a1", (ann, 5)), want=0)
    world.dispatcher.writer.write(lambda work: traces.prune(work, 1 << 62))
    assert page(world.reader, asked()).allocations == []


def test_a_split_adds_up() -> None:
    assert split(100, [1, 1, 1]) == [33, 33, 34]
    assert split(100, [0, 0]) == [0, 0]
    assert split(0, [5]) == [0]
