"""Who may, and who ran what, on both databases: owners' things, notes of changes, allocations with what ran there."""

from __future__ import annotations

import contextlib
import threading

import msgspec
import pytest
from tests.contract.server_world import Site, World, done, key_of, leases
from tests.effort import lines_run

from tidemill.errors import JobError
from tidemill.model.identity import Identity, Role, Via
from tidemill.model.job import JobSpec
from tidemill.server.api.routes import ROUTES, Call, JobsQuery, OfCampaignQuery, OutputsQuery, OwnerQuery
from tidemill.server.audit import traces
from tidemill.server.audit.audit_log import AuditNote
from tidemill.server.errors import MissingError, RequestError
from tidemill.server.read import api_pages
from tidemill.server.read.job_search import Filter
from tidemill.wire.activity import RanRange, RanReport
from tidemill.wire.api import ActionRequest, AllocationReport, SubmitRequest

START_US = 1_795_000_000_000_000
OLD, NEW = "sha256:old", "sha256:new"


def site_of(world: World, name: str, digest: str = OLD) -> Site:
    made = Site(world, name)
    made.offers = [msgspec.structs.replace(each, digest=digest) for each in made.offers]
    return made


def submitter(name: str) -> Identity:
    return Identity(
        role=Role.SUBMITTER, name=name, via=Via.CERTIFICATE, subject=f"/CN={name}", credential=f"{name}-1"
    )


def submitted(world: World, name: str, **spec: object) -> int:
    job = msgspec.convert({"app": "sim", "events": 4, **spec}, JobSpec)
    request = SubmitRequest(key=f"k-{name}-{spec}", campaign=f"of-{name}", jobs=[job])
    return world.dispatcher.handle_submit(request, submitter(name)).first_job


def allocation(name: str, batch_id: str, hosts: list[str], *, ended_us: int = 0) -> AllocationReport:
    return AllocationReport(
        n=0, name=name, batch_id=batch_id, state="RUNNING", nodes=len(hosts), cores=8, at_us=START_US, reason="",
        busy_us=0, slot_us=0, hosts=hosts, started_us=START_US, ended_us=ended_us,
    )  # fmt: skip


def find(world: World, **asked: object) -> list[tuple[object, ...]]:
    rows = traces.find(world.reader, msgspec.convert(asked, traces.TraceQuestion))
    return [(row.site, row.batch_id, row.job, row.events, row.owner, row.subject, row.digest) for row in rows]


def test_thousands_of_allocations_in_one_sync_take_no_more_work_each_than_a_few(world: World) -> None:
    site, lines = site_of(world, "one"), {}
    for count in (200, 2000):
        reports = [allocation(f"a{k}", str(k), ["n1"]) for k in range(count)]
        lines[count] = lines_run(lambda reports=reports: site.sync(*reports, want=0)) / count  # type: ignore[misc]
    assert lines[2000] < 1.1 * lines[200]


def test_a_site_is_found_behind_more_allocations_of_others_than_an_answer_holds(world: World) -> None:
    one, two = site_of(world, "one"), site_of(world, "two")
    one.sync(allocation("mine", "7", ["n1"]), want=0)
    others = [
        msgspec.structs.replace(allocation(f"a{k}", "7", ["n1"]), started_us=START_US + 1 + k)
        for k in range(traces.ALLOCATIONS_MAX + 10)
    ]
    two.sync(*others, want=0)
    for asked in (
        {"batch_id": "7"},
        {"batch_id": "7", "at_us": START_US},
        {"node": "n1", "at_us": START_US + 99},
    ):
        assert [row[0] for row in find(world, site="one", **asked)] == ["one"]
        assert find(world, site="three", **asked) == []
    assert {row[0] for row in find(world, batch_id="7")} == {"two"}
    assert {row[0] for row in find(world, batch_id="7", at_us=START_US)} == {"one"}


def test_an_allocation_tells_jobs_ranges_subject_and_digest(world: World) -> None:
    mine, hers = submitted(world, "ada"), submitted(world, "bob", site="two")
    one, two = site_of(world, "one"), site_of(world, "two")
    (lease,) = leases(one.sync())
    one.sync(allocation("a", "7", ["n1.hpc", "n_2.hpc"]), want=0)
    one.sync(
        RanReport(n=0, allocation="a", ran=[RanRange(mine, "0-1"), RanRange(hers, "0-3")]),
        done(lease, 0, 2), want=0,
    )  # fmt: skip
    one.sync(RanReport(n=0, allocation="a", ran=[RanRange(mine, "2"), RanRange(mine, "", 1)]), want=0)
    two.sync(allocation("b", "7", ["n1.hpc"], ended_us=START_US + 60), want=0)
    row = ("one", "7", mine, "0-2", "ada", "/CN=ada", OLD)
    step = ("one", "7", mine, "", "ada", "/CN=ada", OLD)
    assert set(find(world, batch_id="7", site="one")) == {row, step}
    assert set(find(world, node="n_2", at_us=START_US + 1)) == {row, step}
    assert find(world, node="nx2", at_us=START_US + 1) == []
    assert find(world, node="n1", at_us=START_US - 1) == []
    assert {each[0] for each in find(world, node="n1", at_us=START_US + 30)} == {"one", "two"}
    assert {each[0] for each in find(world, node="n1", at_us=START_US + 90)} == {"one"}
    assert find(world, batch_id="7", site="two") == [("two", "7", None, "", "", "", "")]


def test_a_node_is_found_among_many_whose_names_begin_like_its_own(world: World) -> None:
    job = submitted(world, "ada")
    site = site_of(world, "one")
    leases(site.sync())
    site.sync(allocation("a", "7", ["n1"]), RanReport(n=0, allocation="a", ran=[RanRange(job, "0")]), want=0)
    others = [
        msgspec.structs.replace(allocation(f"b{n}", str(n), [f"n1{n}"]), started_us=START_US + 1)
        for n in range(100, 160)
    ]
    site.sync(*others, want=0)
    assert [row[2] for row in find(world, node="n1", at_us=START_US + 2)] == [job]


def test_what_is_made_while_somebody_cancels_it_is_not_his(world: World) -> None:
    world.dispatcher.start()
    ada, ended = submitter("ada"), threading.Event()
    target = [submitted(world, "ada") + 1]

    def attack() -> None:
        while not ended.is_set():
            for request in (ActionRequest(jobs=target[:]), ActionRequest(campaign=f"of-bob{target[0]}")):
                with contextlib.suppress(JobError):
                    world.dispatcher.handle_cancel(request, ada)

    threads = [threading.Thread(target=attack) for _ in range(3)]
    for each in threads:
        each.start()
    try:
        for _ in range(60):
            target[0] = submitted(world, f"bob{target[0]}") + 1
    finally:
        ended.set()
        for each in threads:
            each.join()
    assert api_pages.jobs(world.reader, Filter(state="CANCELED"), before=None, limit=None).jobs == []


def test_no_hint_names_a_campaign_of_another(world: World) -> None:
    submitted(world, "ada")
    submitted(world, "bob")
    bob = submitter("bob")
    asked = [
        ("/v1/campaigns/{name:str}", OwnerQuery(), {"name": "nothing"}),
        ("/v1/jobs", JobsQuery(campaign="nothing"), {}),
        ("/v1/failures", OfCampaignQuery(campaign="nothing"), {}),
        ("/v1/outputs", OutputsQuery(campaign="nothing"), {}),
    ]
    for path, query, at in asked:
        (ask,) = (each.run for each in ROUTES if (each.method, each.path) == ("GET", path) and each.run)
        with pytest.raises(JobError) as caught:
            ask(Call(world.reader, world.dispatcher, query, None, dict(at), {}, bob))
        assert "`of-bob`" in (caught.value.hint or ""), path
        assert "`of-ada`" not in (caught.value.hint or ""), path
    with pytest.raises(JobError) as refused:
        submitted(world, "bob", after=["nothing"])
    assert "`of-ada`" not in (refused.value.hint or "")


def test_a_text_that_a_database_cannot_hold_is_an_error_of_who_asks(world: World) -> None:
    job = submitted(world, "ada")
    for ask in (
        lambda: key_of(world.reader, "of\0ada"),
        lambda: world.dispatcher.handle_cancel(ActionRequest(campaign="of\0ada"), submitter("ada")),
    ):
        with pytest.raises(JobError):
            ask()
    assert world.dispatcher.handle_cancel(ActionRequest(jobs=[job]), submitter("ada")).changed == 1


def test_an_application_that_changes_is_told_as_it_was_then(world: World) -> None:
    job = submitted(world, "ada")
    site = site_of(world, "one")
    (lease,) = leases(site.sync())
    site.sync(allocation("a", "7", ["n1"]), RanReport(n=0, allocation="a", ran=[RanRange(job, "0")]), want=0)
    site.sync(done(lease, 0, 4), want=0, offers=site_of(world, "one", NEW).offers)
    digests = {row[3] for row in world.reader.rows("approved_of", site=1)}
    assert digests == {OLD, NEW}
    assert find(world, batch_id="7")[0][6] == OLD


def test_what_is_old_is_forgotten(world: World) -> None:
    job = submitted(world, "ada")
    site = Site(world, "one")
    site.sync()
    site.sync(
        allocation("a", "7", ["n1"], ended_us=START_US + 1),
        RanReport(n=0, allocation="a", ran=[RanRange(job, "0")]), want=0,
    )  # fmt: skip
    world.dispatcher.writer.write(lambda work: traces.prune(work, START_US))
    assert find(world, batch_id="7")
    world.dispatcher.writer.write(lambda work: traces.prune(work, START_US + 10**15))
    assert find(world, batch_id="7") == []


def test_a_submitter_reaches_his_own_jobs_only(world: World) -> None:
    mine, hers = submitted(world, "ada"), submitted(world, "bob")
    ada = submitter("ada")
    for request in (ActionRequest(jobs=[mine, hers]), ActionRequest(campaign="of-bob")):
        with pytest.raises(MissingError):
            world.dispatcher.handle_cancel(request, ada)
    assert world.state(mine) == "WAITING"
    with pytest.raises(RequestError, match=f"after job {hers}, which does not exist"):
        submitted(world, "ada", after=[hers])
    assert world.dispatcher.handle_cancel(ActionRequest(campaign="of-ada"), ada).changed == 1
    assert world.state(hers) == "WAITING"
    own = api_pages.jobs(world.reader, Filter(owner="ada"), before=None, limit=None)
    assert [row.id for row in own.jobs] == [mine]
    assert [row.name for row in api_pages.campaigns(world.reader, owner="bob")] == ["of-bob"]
    notes = [
        msgspec.json.decode(bytes(row[2]), type=AuditNote)
        for row in world.reader.rows("audit_pending", limit=9)
    ]
    assert [(each.act, each.name) for each in notes] == [
        ("submit", "ada"),
        ("submit", "bob"),
        ("cancel", "ada"),
    ]


def test_allocations_that_held_nodes_between_two_times_come_by_name_and_in_pages(world: World) -> None:
    one, other = site_of(world, "one"), site_of(world, "other")
    hour_us = 3_600_000_000

    def held(name: str, start_h: int, end_h: int) -> AllocationReport:
        report = allocation(
            name, f"b-{name}", ["nid01", "nid02"], ended_us=START_US + end_h * hour_us if end_h else 0
        )
        return msgspec.structs.replace(report, started_us=START_US + start_h * hour_us)

    waits = msgspec.structs.replace(allocation("e5", "b-e5", []), started_us=0)
    one.sync(held("e3", 1, 2), held("e1", 0, 5), held("e2", 2, 3), held("e4", 4, 0), waits)
    other.sync(held("f1", 0, 9))

    def names(site: str, since_h: int, until_h: int, after: str = "", limit: int = 100) -> list[str]:
        since_us, until_us = START_US + since_h * hour_us, START_US + until_h * hour_us
        asked = traces.PlacementQuestion(since_us=since_us, until_us=until_us, after=after, limit=limit)
        return [row.name for row in api_pages.placements(world.reader, site, asked)]

    assert names("one", 0, 9) == ["e1", "e2", "e3", "e4"]
    assert names("one", 2, 3) == ["e1", "e2"]
    assert names("one", 6, 9) == ["e4"]
    assert names("one", 0, 9, limit=2) == ["e1", "e2"]
    assert names("one", 0, 9, after="e2", limit=2) == ["e3", "e4"]
    assert names("other", 0, 9) == ["f1"]
    every = traces.PlacementQuestion(since_us=0, until_us=1 << 62, limit=1)
    (row,) = api_pages.placements(world.reader, "other", every)
    assert (row.batch_id, row.nodes, row.cores, row.started_us) == ("b-f1", 2, 8, START_US)
    with pytest.raises(MissingError, match="there is no site `thre`"):
        names("thre", 0, 9)


def test_one_site_fills_no_disk_with_traces(world: World) -> None:
    """What one sync may hold is 32 MB, and all of it was kept for 400 days, whatever it was."""
    liar, other = Site(world, "liar"), Site(world, "other")
    other.sync(want=0)
    liar.sync(RanReport(n=0, allocation="a", ran=[]), want=0)
    memory = world.dispatcher.writer.memory
    memory.sites[
        memory.site_ids["liar"]
    ].traced_bytes = traces.TRACED_BYTES_MAX  # it has written so much already
    for k in range(20):
        ran = RanReport(n=0, allocation=f"a{k}", ran=[RanRange(1, "x" * 1_000_000)])
        liar.sync(ran, allocation(f"a{k}", "7", ["n" * 200]), want=0)
    kept = sum(len(bytes(row[1])) for k in range(20) for row in ran_in(world, "liar", f"a{k}"))
    assert kept <= 1_000_000, "but for what it may write in the time since"
    other.sync(RanReport(n=0, allocation="b", ran=[RanRange(1, "0-3")]), want=0)
    assert ran_in(world, "other", "b")


def ran_in(world: World, site: str, name: str) -> list[tuple[int, bytes]]:
    numbers = {each: number for number, each in world.reader.rows("site_names")}
    return world.reader.rows("ran_in", site=numbers[site], allocation=name, limit=100)
