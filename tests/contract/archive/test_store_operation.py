"""What a report reads of a server, on both databases: stays in the archive, what sites told kept for good, the live
export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.server_world import SIM, World
from tests.contract.test_store_archive import Kept

from tidemill import clock
from tidemill.server.archive import operation
from tidemill.server.archive.live import MONTH, export
from tidemill.server.archive.operation import month_of
from tidemill.server.archive.parquet import COLUMNS, OPERATION, Archive
from tidemill.wire.api import AllocationReport, AppOffer, StartCost
from tidemill.wire.far import CacheFigures, CacheView
from tidemill.wire.monitoring import BadNode, GrantView, StagingView, TidePoint
from tidemill.wire.views import RawViews, packed

pytest.importorskip("pyarrow")


@pytest.fixture
def kept(world: World, tmp_path: Path) -> Kept:
    return Kept(world, tmp_path / "archive")


def told(directory: Path, table: str) -> list[dict[str, Any]]:
    import pyarrow.parquet

    paths = sorted(directory.glob(f"*/operation-{table}.parquet"))
    return [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]


def ended(name: str, at_us: int, state: str = "COMPLETED") -> AllocationReport:
    return AllocationReport(
        n=0, name=name, batch_id="7", state=state, nodes=3, cores=16, at_us=at_us, reason="", busy_us=5, slot_us=9,
        started_us=at_us - 1000, ended_us=0 if state == "ACTIVE" else at_us,
    )  # fmt: skip


def test_stays_are_archived_with_their_job(kept: Kept) -> None:
    (job,) = kept.finish("old", jobs=1)

    def admit(work: Any) -> None:
        work.session.run("insert_ward", name="memory")
        ((ward, _),) = work.session.rows("wards")
        work.session.many("insert_stays", [(job, 1, ward, "memory x2", "memory", 5, 1, 1, 9)])

    kept.world.dispatcher.writer.write(admit)
    kept.run()
    assert kept.archive.directory is not None
    (path,) = kept.archive.directory.glob("*/*-stays.parquet")
    month, batch = path.parent.name, int(path.name[:8])
    assert kept.archive.rows(month, batch, "stays", key="job", values=[job]) == [{
        "job": job, "number": 1, "ward": "memory", "cure": "memory x2", "why": "memory", "admitted_us": 5,
        "outcome": "cured",
        "site": "s", "ended_us": 9,
    }]  # fmt: skip


def test_a_batch_of_version_1_without_stays_leaves_the_database_as_before(kept: Kept) -> None:
    import pyarrow.parquet

    kept.finish("old")
    made = kept.archiver()
    assert made.step(kept.world.reader)  # chosen
    assert made.step(kept.world.reader)  # written
    assert kept.archive.directory is not None
    (stays,) = kept.archive.directory.glob("*/*-stays.parquet")
    stays.unlink()
    for path in kept.archive.directory.glob("*/*.parquet"):
        table = pyarrow.parquet.read_table(path)
        metadata = {key: value for key, value in table.schema.metadata.items() if key != b"tidemill.archive"}
        pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    kept.run(made)
    assert kept.live() == []


def test_what_sites_told_outlives_the_database(kept: Kept) -> None:
    now = clock.now_us()
    view = _view(now)
    kept.site.offers = [
        AppOffer(
            name="sim", version="2", digest="", mode="command", parameters={}, outputs=[], cores=1, memory_mb=1,
            event_s=1,
            start=StartCost(runs=4, ops=50, failed=20, files=9, opens=12, opens_failed=6),
        )
    ]  # fmt: skip
    kept.site.sync(ended("a", now), ended("b", now, "ACTIVE"), views=view)
    changed = operation.update_files(kept.world.reader, kept.archive, now_us=now)
    assert len(changed) == len(OPERATION)
    directory = kept.archive.directory
    assert directory is not None
    assert [(row["name"], row["cores"], row["ended_us"]) for row in told(directory, "allocations")] == [
        ("a", 16, now)
    ]
    (hour,) = told(directory, "hours")
    assert (hour["site"], hour["minutes"], hour["ours"], hour["idle"]) == ("s", 1, 2.0, 3.0)
    assert [(row["account"], row["left"]) for row in told(directory, "grants")] == [("hep1", 55.0)]
    assert [(row["name"], row["served"]) for row in told(directory, "caches")] == [("x", 10)]
    assert [(row["node"], row["why"]) for row in told(directory, "quarantine")] == [("n1", "starts fail")]
    (line,) = told(directory, "staging")
    assert (line["nodes"], line["way"], line["files"], line["square_ms"]) == (4, "peer", 2, 500)
    assert [(row["edge_ms"], row["files"]) for row in told(directory, "staging_times")] == [(11, 1), (22, 1)]
    (trace,) = told(directory, "traces")
    assert (trace["app"], trace["runs"], trace["opens"], trace["closes"]) == ("sim", 4, 12, None)

    assert operation.update_files(kept.world.reader, kept.archive, now_us=now) == [], "nothing new"
    kept.world.dispatcher.writer.write(lambda work: work.session.run("prune_tide", site=1, before=1 << 40))
    kept.site.sync(ended("c", now + 1, "RELEASED"))
    assert operation.update_files(kept.world.reader, kept.archive, now_us=now + 1)
    assert [row["name"] for row in told(directory, "allocations")] == ["a", "c"]
    assert len(told(directory, "hours")) == 1, "what the database forgot is kept"


def _view(now: int) -> RawViews:
    return packed(
        tide=[TidePoint(minute=now // 60_000_000 - 1, regular=5, ours=2, idle=3, away=0)],
        grants=[GrantView(account="hep1", granted=100, used=40, open=5, left=55)],
        bad_nodes=[BadNode(node="n1", since_us=now - 9, until_us=now, why="starts fail", evidence=[])],
        staging=[
            StagingView(
                nodes=4,
                way="peer",
                since_us=1,
                files=2,
                bytes=8,
                ms=30,
                square_ms=500,
                max_ms=20,
                times=[(11, 1), (22, 1)],
            )
        ],
        caches=[
            CacheView(name="x", state="running", since_us=1, total=CacheFigures(opens=3, served=10)),
            CacheView(name="y", state="other"),
        ],
    )


def test_the_export_holds_what_is_live_as_the_archive_would(kept: Kept, tmp_path: Path) -> None:
    import pyarrow.parquet

    ids = kept.finish("old")
    kept.run()
    newer = kept.finish("newer")
    open_jobs = kept.world.submit(SIM, campaign="open")
    assert export(kept.world.reader, tmp_path / "live", now_us=clock.now_us()) == len(newer) + len(open_jobs)
    exported = Archive(tmp_path / "live")
    found = exported.rows(MONTH, 0, "jobs", key="id", values=[*ids, *newer, *open_jobs])
    assert [row["id"] for row in found] == sorted([*newer, *open_jobs])
    kept.run()
    assert kept.archive.directory is not None
    (path,) = (each for each in kept.archive.directory.glob("*/*2-jobs.parquet"))
    assert pyarrow.parquet.read_table(path).to_pylist() == [row for row in found if row["id"] in newer]
    assert {each.name.partition("-")[2] for each in (tmp_path / "live" / MONTH).glob("*.parquet")} == {
        f"{table}.parquet" for table in COLUMNS
    }


def test_the_export_has_a_batch_that_is_being_written_and_none_that_is(kept: Kept, tmp_path: Path) -> None:
    jobs = len(kept.finish("old"))
    made = kept.archiver()
    assert made.step(kept.world.reader)  # chosen
    assert export(kept.world.reader, tmp_path / "one", now_us=clock.now_us()) == jobs
    assert made.step(kept.world.reader)  # written
    assert export(kept.world.reader, tmp_path / "two", now_us=clock.now_us()) == 0


def test_a_month_is_that_of_utc() -> None:
    assert (month_of(0), month_of(1_470_009_599_999_999), month_of(1_470_009_600_000_000)) == (
        "1970-01",
        "2016-07",
        "2016-08",
    )


def test_a_server_without_an_archive_keeps_nothing(world: World) -> None:
    assert operation.update_files(world.reader, Archive(None), now_us=clock.now_us()) == []
