"""The archive on both databases: what ended leaves whole, nothing is lost or doubled by a kill, and what it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.server_world import SIM, Site, World, done, failed, key_of, leases

from tidemill import clock
from tidemill.errors import JobError, SiteError
from tidemill.model.identity import Identity, Role, Via
from tidemill.model.job import Input, JobSpec, Output, Resources
from tidemill.server.api.routes import (
    ROUTES,
    AuditQuery,
    Call,
    JobsQuery,
    NoQuery,
    OfCampaignQuery,
    OutputsQuery,
    OwnerQuery,
    PageQuery,
)
from tidemill.server.archive import lookup
from tidemill.server.archive.archiver import FIRST_S, Archiver, OpenBatch
from tidemill.server.archive.parquet import Archive
from tidemill.server.database.store import Session
from tidemill.server.errors import ConflictError, MissingError, RequestError, StandbyError
from tidemill.server.read import api_pages, archived, feed, numbered
from tidemill.server.read.job_search import Filter
from tidemill.wire.activity import RanRange, RanReport
from tidemill.wire.api import (
    ActionRequest,
    AllocationReport,
    AuditRow,
    DeliveredReport,
    DeliverOrder,
    JobDetail,
    OutputRow,
)

pytest.importorskip("pyarrow")


class Kept:
    """A world whose ended campaigns are archived at once."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world, self.archive = world, Archive(directory)
        self.site = Site(world)

    def archiver(self, write: Callable[[Any], Any] | None = None) -> Archiver:
        made = Archiver(self.world.store, write or self.world.dispatcher.writer.write, self.archive, keep_s=0)
        made.rests, made.piece, made.first_s = False, 2, 0.0
        return made

    def run(self, made: Archiver | None = None) -> None:
        made = made or self.archiver()
        while made.step(self.world.reader):
            pass

    def finish(self, campaign: str, jobs: int = 3, **spec: Any) -> list[int]:
        """A campaign that has ended; the last of its jobs failed."""
        ids = self.world.submit(*[JobSpec(app="sim", **spec)] * jobs, campaign=campaign)
        reports = [
            failed(each, 0) if each.job == ids[-1] and jobs > 1 else done(each)
            for each in leases(self.site.sync())
        ]
        self.site.sync(*reports, want=0)
        return ids

    def job(self, number: int) -> JobDetail:
        return api_pages.job(self.world.reader, number, cache={}, silent=set(), archive=self.archive)

    def live(self) -> list[int]:
        return [row[0] for row in self.world.reader.rows("jobs_oldest", after=0, limit=10_000)]

    def archived(self) -> list[int]:
        page = archived.jobs(self.world.reader, self.archive, Filter(), before=None, limit=1000)
        return sorted(row.id for row in page.jobs)


@pytest.fixture
def kept(world: World, tmp_path: Path) -> Kept:
    return Kept(world, tmp_path / "archive")


def table_sizes(kept: Kept) -> dict[str, int]:
    """Rows of every table that grows with work."""
    names = "campaigns kinds counts jobs leases failures failure_counts outputs deps needs specs"
    session: Any = kept.world.reader
    run = session._ready().execute if hasattr(session, "_ready") else session._connection.execute
    return {table: run(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in names.split()}


def test_a_follower_that_slept_until_jobs_were_archived_is_told_of_their_ends(kept: Kept) -> None:
    """It asks on from the number that it was told, and would never see them otherwise."""
    jobs = kept.finish("old")
    old = key_of(kept.world.reader, "old").number
    before = numbered.ended(kept.world.reader, old, 0, limit=10, archive=kept.archive)
    kept.run()
    assert kept.live() == []

    first = numbered.ended(kept.world.reader, old, 0, limit=2, archive=kept.archive)
    rest = numbered.ended(
        kept.world.reader,
        key_of(kept.world.reader, "old").number,
        first.reached or 0,
        limit=2,
        archive=kept.archive,
    )

    found = [*first.jobs, *rest.jobs]
    assert sorted(each.id for each in found) == jobs
    assert [(each.id, each.state) for each in found] == [(each.id, each.state) for each in before.jobs]
    assert (rest.next, rest.reached) == (None, feed.reached(kept.world.reader))


def test_an_ended_campaign_leaves_every_table_and_is_read_as_before(kept: Kept) -> None:
    first = kept.finish("old", name="n", params={"mass": 3})
    before = [kept.job(each) for each in first]
    campaign = api_pages.campaign(kept.world.reader, key_of(kept.world.reader, "old"))
    totals: dict[str, int] = dict(kept.world.reader.rows("totals"))
    kept.world.submit(SIM, campaign="open")

    kept.run()

    assert {row: number for row, number in table_sizes(kept).items() if number} == {
        "campaigns": 1, "kinds": 1, "counts": 1, "jobs": 1, "specs": 1,
    }  # fmt: skip
    for old, new in zip(before, [kept.job(each) for each in first], strict=True):
        assert new.archived
        new.archived = False
        assert new == old
    found = api_pages.campaign(kept.world.reader, key_of(kept.world.reader, "old"))
    assert found.archived
    found.archived = False
    assert found == campaign
    after: dict[str, int] = dict(kept.world.reader.rows("totals"))
    assert {name: after[name] for name in ("campaigns", "jobs", "events_done", "failures/payload")} == {
        "campaigns": 2, "jobs": 4, "events_done": totals["events_done"], "failures/payload": 1,
    }  # fmt: skip


def test_who_ran_what_knows_archived_jobs_of_the_site_that_had_them(kept: Kept) -> None:
    ids = kept.finish("old", 3)
    report = AllocationReport(
        n=0, name="a", batch_id="7", state="RUNNING", nodes=1, cores=8, at_us=1, reason="", busy_us=0, slot_us=0,
        hosts=["n1"], started_us=1, ended_us=2,
    )  # fmt: skip
    ran = [RanRange(job, "0") for job in (*ids, ids[-1] + 1000)]  # there is no such job
    kept.site.sync(report, RanReport(n=0, allocation="a", ran=ran), want=0)
    liar = Site(kept.world, "liar")
    liar.sync(report, RanReport(n=0, allocation="a", ran=ran), want=0)
    kept.world.dispatcher.rules = kept.world.dispatcher.rules._replace(archive=kept.archive)
    (run,) = [route.run for route in ROUTES if route.path == "/v1/audit"]
    assert run is not None

    def asked() -> list[AuditRow]:
        rows: list[AuditRow] = run(
            Call(kept.world.reader, kept.world.dispatcher, AuditQuery(batch_id="7"), None, {}, {})
        )
        return rows

    before = asked()
    assert {(row.site, row.job) for row in before} == {*(("s", job) for job in ids), ("liar", None)}
    kept.run()
    after = asked()
    assert all(row.archived == (row.job is not None) for row in after)
    for row in after:
        row.archived = False
    assert after == before


def test_who_ran_what_reads_a_bounded_part_of_the_archive(kept: Kept) -> None:
    ids = kept.finish("old", 3)
    kept.run()

    def about(jobs_max: int, files_max: int) -> list[dict[int, tuple[str, str, str] | None]]:
        of = archived.OfSites(kept.world.reader, kept.archive, jobs_max=jobs_max, files_max=files_max)
        return [of("s", ids[:1]), of("s", ids[1:])]

    known = ("old", "", "sim")
    assert about(3, 2) == [{ids[0]: known}, {ids[1]: known, ids[2]: known}]
    assert about(2, 2) == [{ids[0]: known}, {ids[1]: known, ids[2]: None}]
    assert about(9, 1) == [{ids[0]: known}, {ids[1]: None, ids[2]: None}]
    for path in (kept.archive.directory or Path()).rglob("*-leases.parquet"):
        path.unlink()
    assert about(9, 9) == [{ids[0]: None}, {ids[1]: None, ids[2]: None}]


def test_what_is_open_undelivered_or_needed_stays(kept: Kept) -> None:
    world, site = kept.world, kept.site
    (open_job,) = world.submit(JobSpec(app="sim", events=2), campaign="open")
    (half,) = leases(site.sync())
    site.sync(done(half, 0, 1), want=0)
    (source,) = world.submit(JobSpec(app="reco"), campaign="source")
    orders = site.sync(done(leases(site.sync())[0], outputs=True), want=0)
    assert [each.job for each in orders if isinstance(each, DeliverOrder)] == [source]
    kept.run()
    assert set(kept.live()) == {open_job, source}

    file = OutputRow(name="hits", url="file:///x", size_bytes=3, sha256="a" * 64)
    site.sync(DeliveredReport(n=0, job=source, outputs=[file], evidence=None), want=0)
    (needing,) = world.submit(
        JobSpec(app="far", inputs=[Input(name="in", url=f"job:{source}/hits")]), campaign="needing"
    )
    kept.run()
    assert set(kept.live()) == {open_job, source, needing}

    world.dispatcher.handle_cancel(ActionRequest(jobs=[needing]))
    kept.run()
    assert kept.live() == [open_job]
    assert [each.url for each in kept.job(source).outputs] == ["file:///x"]


def test_an_archived_job_is_refused_with_a_sentence(kept: Kept) -> None:
    ids = kept.finish("old")
    well = kept.finish("well", jobs=1)
    kept.run()
    act = kept.world.dispatcher

    with pytest.raises(
        RequestError, match=rf"job {ids[-1]} of campaign `old` is in the archive .* cannot be retried"
    ):
        act.handle_retry(ActionRequest(jobs=[ids[-1]]))
    with pytest.raises(RequestError, match="campaign `old` is in the archive"):
        act.handle_retry(ActionRequest(campaign="old"))
    with pytest.raises(ConflictError, match=r"campaign `old` ended on .* takes no more jobs"):
        kept.world.submit(SIM, campaign="old")
    with pytest.raises(RequestError, match="has an input of job"):
        kept.world.submit(JobSpec(app="sim", inputs=[Input(name="in", url=f"job:{well[0]}/hits")]))
    with pytest.raises(RequestError, match=r"comes after job .* which is in the archive; 1 jobs"):
        kept.world.submit(JobSpec(app="sim", after=[ids[0]]))
    (fine,) = kept.world.submit(JobSpec(app="sim", after=[well[0], "well"]), campaign="next")
    assert kept.world.state(fine) == "WAITING"
    (late,) = kept.world.submit(JobSpec(app="sim", after=["old"]), campaign="late")
    assert (
        kept.world.job(late).row.reason
        == "1 jobs of campaign `old`, which it comes after, have failed or were canceled"
    )


def test_the_api_reads_the_archive(kept: Kept) -> None:
    ids = kept.finish("old")
    more = kept.finish("older")
    kept.run()
    dispatcher = kept.world.dispatcher
    dispatcher.rules = dispatcher.rules._replace(archive=kept.archive)
    runs = {route.path: route.run for route in ROUTES if route.method == "GET"}

    def ask(path: str, query: Any, **at: Any) -> Any:
        run = runs[path]
        assert run is not None
        return run(Call(kept.world.reader, dispatcher, query, None, at, {}))

    def listed(**query: Any) -> list[int]:
        return [row.id for row in ask("/v1/jobs", JobsQuery(**query)).jobs]

    assert listed() == []
    assert listed(archived=True) == sorted(ids + more, reverse=True)
    assert listed(campaign="old") == sorted(ids, reverse=True)
    assert listed(archived=True, state="FAILED") == [more[-1], ids[-1]]
    assert listed(archived=True, limit=2, before=more[0]) == sorted(ids, reverse=True)[:2]
    assert ask("/v1/jobs/{job:int}", NoQuery(), job=ids[0]).row.campaign == "old"
    (failure,) = ask("/v1/failures", OfCampaignQuery(campaign="old")).failures
    assert (failure.job, failure.evidence.message) == (ids[-1], "exit 1")
    assert ask("/v1/outputs", OutputsQuery(job=ids[0])).outputs == []
    assert listed(jobs=f"{ids[0]},{more[0]}-{more[-1]}") == [*sorted(more, reverse=True), ids[0]]
    assert ask("/v1/outputs", OutputsQuery(jobs=str(ids[0]))).outputs == []


def test_outputs_in_the_archive_come_oldest_first_by_campaign_and_by_number(kept: Kept) -> None:
    ids = kept.world.submit(
        *[JobSpec(app="reco", outputs=[Output(name="hits", path="h")])] * 3, campaign="old"
    )
    orders = leases(kept.site.sync())
    delivers = kept.site.sync(*[done(each, outputs=True) for each in orders])
    row = OutputRow(name="hits", url="file:///h", size_bytes=1, sha256="0")
    kept.site.sync(
        *[
            DeliveredReport(n=0, job=each.job, outputs=[row], evidence=None)
            for each in delivers
            if isinstance(each, DeliverOrder)
        ]
    )
    kept.run()
    dispatcher = kept.world.dispatcher
    dispatcher.rules = dispatcher.rules._replace(archive=kept.archive)
    run = next(route.run for route in ROUTES if route.path == "/v1/outputs")
    assert run is not None

    def found(**query: Any) -> list[int]:
        call = Call(kept.world.reader, dispatcher, OutputsQuery(**query), None, {}, {})
        return [each.job for each in run(call).outputs]

    assert found(campaign="old", after=0) == ids
    assert found(campaign="old", after=ids[0]) == ids[1:]
    assert found(jobs=f"{ids[0]}-{ids[2]}", after=ids[0]) == ids[1:]


def test_nobody_reads_of_the_archive_what_is_another_owners(kept: Kept) -> None:
    ids = kept.finish("old", outputs=[Output(name="hits", path="h")])
    kept.run()
    dispatcher = kept.world.dispatcher
    dispatcher.rules = dispatcher.rules._replace(archive=kept.archive)
    bob = Identity(role=Role.SUBMITTER, name="bob", via=Via.CERTIFICATE)
    asked: list[tuple[str, Any, dict[str, Any]]] = [
        ("/v1/jobs", JobsQuery(campaign="old"), {}),
        ("/v1/jobs", JobsQuery(archived=True), {}),
        ("/v1/jobs/{job:int}", NoQuery(), {"job": ids[-1]}),
        ("/v1/campaigns", PageQuery(archived=True), {}),
        ("/v1/campaigns/{name:str}", OwnerQuery(), {"name": "old"}),
        ("/v1/failures", OfCampaignQuery(campaign="old"), {}),
        ("/v1/failures", OfCampaignQuery(job=ids[-1]), {}),
        ("/v1/outputs", OutputsQuery(campaign="old"), {}),
        ("/v1/outputs", OutputsQuery(job=ids[0]), {}),
    ]
    runs = {route.path: route.run for route in ROUTES if route.method == "GET"}
    for path, query, at in asked:
        run = runs[path]
        assert run is not None
        try:
            found = msgspec.json.encode(
                run(Call(kept.world.reader, dispatcher, query, None, at, {}, identity=bob))
            )
        except MissingError:
            continue
        assert b"old" not in found, (path, query)
    for change in (dispatcher.handle_retry, dispatcher.handle_accept, dispatcher.handle_discard):
        for request in (ActionRequest(jobs=[ids[-1]]), ActionRequest(campaign="old")):
            with pytest.raises(MissingError):
                change(request, bob)


def test_what_an_archived_job_printed_is_said_to_be_gone(kept: Kept) -> None:
    (job,) = kept.finish("old", jobs=1)
    assert lookup.refusal_of_log(kept.world.reader, job) is None
    kept.run()
    assert f"job {job} is in the archive" in str(lookup.refusal_of_log(kept.world.reader, job))


class Killed(BaseException):
    """A SIGKILL."""


@pytest.mark.parametrize("at", range(1, 12))
def test_a_kill_at_any_write_loses_and_doubles_nothing(kept: Kept, at: int) -> None:
    every = sorted(kept.finish("a", jobs=5) + kept.finish("b"))
    calls = 0

    def write(act: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Killed
        answer = kept.world.dispatcher.writer.write(act)
        assert sorted(kept.live() + gone(kept)) == every, "each job is in one place"
        return answer

    try:
        kept.run(kept.archiver(write))
    except Killed:
        kept.run()
    assert kept.live() == []
    assert kept.archived() == every
    assert sum(kept.job(each).row.events_done for each in every) == 6
    files = sorted(path.name for path in (kept.archive.directory or Path()).rglob("*.*"))
    assert files == [
        f"00000001-{table}.parquet"
        for table in ("activity", "campaigns", "failures", "jobs", "leases", "outputs", "stays")
    ]


def test_a_server_that_was_taken_over_while_it_wrote_files_replaces_none(kept: Kept) -> None:
    """It wakes up with rows that the other server has begun to delete."""
    every = kept.finish("a")
    write = kept.world.dispatcher.writer.write
    asleep = kept.archiver(lambda act: write(act))
    assert asleep.step(kept.world.reader), "a batch is chosen"

    def refused(act: Any) -> Any:
        raise StandbyError

    asleep._write = refused
    with pytest.raises(StandbyError):
        asleep.step(kept.world.reader)
    assert list((kept.archive.directory or Path()).rglob("*.*")) == []
    batch = OpenBatch(*kept.world.reader.rows("open_batch")[0])
    kept.run()
    asleep._write = write
    with pytest.raises(SiteError, match="another server has written batch 1"):
        asleep._write_files(kept.world.reader, batch)
    assert kept.archived() == every


def test_an_archive_whose_file_system_hangs_does_not_keep_a_server_from_ending(kept: Kept) -> None:
    kept.finish("a")
    at_work, over = threading.Event(), threading.Event()

    def hang(act: Any) -> Any:
        at_work.set()
        over.wait(60)
        raise SiteError("it is over")

    made = kept.archiver(hang)
    made.start()
    assert at_work.wait(30)
    ending = threading.Thread(target=made.stop, daemon=True)
    ending.start()
    ending.join(30)
    hangs = ending.is_alive()
    over.set()
    assert not hangs


def test_a_server_that_has_just_started_leaves_the_archive_for_later(kept: Kept) -> None:
    kept.finish("a")
    writes: list[Any] = []
    made = kept.archiver(writes.append)
    made.first_s = FIRST_S
    with made:
        clock.sleep_s(0.3)  # the first write of a search comes within some 10 ms
    assert writes == []


def test_an_error_in_making_room_does_not_keep_campaigns_from_the_archive(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    every, passes = kept.finish("a"), []

    def fail(session: Session, now_us: int) -> bool:
        passes.append(now_us)
        if len(passes) == 3:
            made._stopped.set()
        raise SiteError("no room is made")

    write = kept.world.dispatcher.writer.write
    made = Archiver(kept.world.store, write, kept.archive, keep_s=0, shorten=fail)
    made.first_s, made.pause_s = 0.0, 0.01
    made._run()
    assert (kept.live(), kept.archived(), kept.archive.trouble) == ([], every, "")
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == ["room.failed"] * 2


def gone(kept: Kept) -> list[int]:
    """Jobs that the database has noted as archived."""
    found = [(each, kept.world.reader.rows("archived_range", job=each)) for each in range(1, 20)]
    return [job for job, rows in found if rows and rows[0][0] <= job <= rows[0][1]]


def test_a_disk_that_is_full_leaves_everything_in_the_database(kept: Kept, tmp_path: Path) -> None:
    every = kept.finish("a")
    (tmp_path / "archive").write_text("a file where the directory should be")

    with pytest.raises(OSError, match="archive"):
        kept.run()
    assert kept.live() == every
    (tmp_path / "archive").unlink()
    kept.run()
    assert kept.archived() == every


def test_the_archive_may_be_a_link_to_a_directory_that_is_shared(kept: Kept, tmp_path: Path) -> None:
    every = kept.finish("a")
    (tmp_path / "archive").symlink_to(tmp_path / "share" / "archive")

    with pytest.raises(FileNotFoundError, match="the link leads to no directory"):
        kept.run()  # what it leads to is not mounted
    assert kept.live() == every
    assert not (tmp_path / "share").exists()
    (tmp_path / "share" / "archive").mkdir(parents=True)
    kept.run()

    assert (kept.live(), kept.archived()) == ([], every)
    assert (tmp_path / "archive").is_symlink()
    other = Archive(tmp_path / "other")  # of the other server of a pair
    (tmp_path / "other").symlink_to("share/archive")
    page = archived.jobs(kept.world.reader, other, Filter(), before=None, limit=1000)
    assert sorted(row.id for row in page.jobs) == every


def test_a_campaign_that_is_retried_before_it_is_closed_stays(kept: Kept) -> None:
    every = kept.finish("a")
    write = kept.world.dispatcher.writer.write

    def late(act: Any) -> Any:
        if not hasattr(late, "done"):
            late.done = True  # type: ignore[attr-defined]
            kept.world.dispatcher.handle_retry(ActionRequest(jobs=[every[-1]]))
        return write(act)

    made = kept.archiver(late)
    assert not made.step(kept.world.reader)
    assert kept.live() == every


def test_a_server_without_pyarrow_keeps_everything_and_says_so(kept: Kept) -> None:
    made = kept.archiver()
    made.is_installed = lambda: False
    kept.run(made)
    assert kept.archive.trouble == ""
    every = kept.finish("a")
    kept.run(made)
    assert kept.live() == every
    assert "not installed" in kept.archive.trouble


def test_the_specification_of_archived_jobs_goes_and_its_number_is_not_used_again(kept: Kept) -> None:
    cache: dict[int, JobSpec] = {}

    def resources(job: int) -> Resources:
        found = api_pages.job(kept.world.reader, job, cache=cache, silent=set(), archive=kept.archive)
        return found.spec.resources

    (old,) = kept.finish("a", jobs=1, resources=Resources(event_s=3.0))
    assert resources(old).event_s == 3.0
    kept.run()
    assert table_sizes(kept)["specs"] == 0
    (other,) = kept.world.submit(JobSpec(app="sim", resources=Resources(event_s=4.0)), campaign="b")
    (again,) = kept.world.submit(JobSpec(app="sim", resources=Resources(event_s=3.0)), campaign="b")
    assert [resources(each).event_s for each in (old, other, again)] == [3.0, 4.0, 3.0]


def test_a_lost_file_of_the_archive_is_said(kept: Kept) -> None:
    (job,) = kept.finish("a", jobs=1)
    kept.run()
    for path in (kept.archive.directory or Path()).rglob("*-jobs.parquet"):
        path.unlink()
    with pytest.raises((SiteError, JobError), match="of the archive cannot be read"):
        kept.job(job)
