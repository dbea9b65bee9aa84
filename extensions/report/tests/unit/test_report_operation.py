"""A report from files: every sum against DuckDB's over the same files, distributions against the values themselves."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import ConfigError, SiteError
from tidemill_report.operation.moments import PieceSums, Spread

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
pytest.importorskip("numpy")

import pyarrow.parquet as pq
from bench import year
from bench.report_sums import differences

from tidemill.server.archive.operation import write_operation
from tidemill.server.archive.parquet import Archive, operation_path
from tidemill_report import frames
from tidemill_report.operation import figures
from tidemill_report.operation.figures import month_range, months_axis
from tidemill_report.operation.gather import OperationReport, gather
from tidemill_report.operation.page import months_of, page
from tidemill_report.operation.sheet import write_csv, write_parquet
from tidemill_report.operation.source import ReportFiles, Window

SIZE = year.Size(jobs=6_000, week_jobs=400)
HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = Path(tmp_path_factory.mktemp("year"))
    year.make(directory, seed=3, size=SIZE)
    return directory


@pytest.fixture(scope="module")
def operation(archive: Path) -> OperationReport:
    return gather(ReportFiles([archive]))


def job(**values: Any) -> tuple[Any, ...]:
    """A row of the archive's jobs."""
    zeros = {
        "id": 1, "campaign": "c", "owner": "o", "name": "", "app": "sim", "state": "COMPLETED", "site": "here",
        "events": 10,
        "events_done": 10, "events_failed": 0, "done": "0-9", "failed": "", "priority": 0, "seed_base": 1,
        "created_us": 0, "started_us": HOUR_US, "ended_us": 2 * HOUR_US, "reason": "", "attempts": 1, "cores": 4,
        "memory_mb": 0, "devices": "{}", "nodes": 0, "ranks": 0, "payloads": 2, "wall_us": HOUR_US, "setup_us": 0,
        "user_us": 0, "system_us": 0, "rss_kb": 0, "read_bytes": 0, "write_bytes": 0, "spec": b"{}", "remark": "",
        "events_canceled": 0, "canceled": "",
    }  # fmt: skip
    return tuple({**zeros, **values}.values())


def archived(directory: Path, jobs: list[tuple[Any, ...]], **tables: list[tuple[Any, ...]]) -> Path:
    """An archive with these rows, written by the archive's own writer."""
    with Archive(directory).batch("1970-01", 1) as out:
        out.write("jobs", jobs)
        for name, rows in tables.items():
            out.write(name, rows)
    return directory


def told(directory: Path, table: str, rows: list[tuple[Any, ...]], month: str = "1970-01") -> None:
    path = operation_path(directory, month, table)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_operation(file, table, rows)


def rows_of(operation: OperationReport, name: str) -> list[dict[str, Any]]:
    sheet = operation.sheets[name]
    return [dict(zip([each.name for each in sheet.columns], row, strict=True)) for row in sheet.rows]


def test_every_sum_is_what_duckdb_finds_in_the_same_files(
    archive: Path, operation: OperationReport, tmp_path: Path
) -> None:
    write_csv(tmp_path, list(operation.sheets.values()))
    assert differences(archive, tmp_path) == []


def test_a_cell_that_is_wrong_is_found(archive: Path, operation: OperationReport, tmp_path: Path) -> None:
    write_csv(tmp_path, list(operation.sheets.values()))
    path = tmp_path / "months.csv"
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[2] = str(int(cells[2]) + 1)
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    assert len(differences(archive, tmp_path)) == 1


def test_parts_of_a_year_add_up_to_it(archive: Path, operation: OperationReport) -> None:
    middle, _ = year.month_us(6)
    middle += 5 * 86_400_000_000
    parts = [
        gather(ReportFiles([archive], Window(until_us=middle))),
        gather(ReportFiles([archive], Window(since_us=middle))),
    ]
    for name in ("jobs", "events_done", "core_hours"):
        whole = rows_of(operation, "sites")[-1][name]
        assert sum(rows_of(each, "sites")[-1][name] for each in parts) == pytest.approx(whole)
    for name, column in (("failures", "failures"), ("allocations", "allocations")):
        whole = sum(row[column] for row in rows_of(operation, name))
        assert sum(row[column] for each in parts for row in rows_of(each, name)) == whole


def test_a_campaign_alone_has_the_table_of_its_io_week(archive: Path) -> None:
    found = rows_of(gather(ReportFiles([archive], Window(campaign=year.WEEK_CAMPAIGN))), "io")
    assert {row["application"] for row in found} == {year.WEEK_APP}
    assert [row["jobs"] for row in found] == [SIZE.week_jobs] * 10
    assert {row["quantity"] for row in found if row["kind"] == "estimate"} == {
        "opens", "closes", "metadata ok", "metadata failed",
    }  # fmt: skip


def test_core_hours_count_cores_and_ranks_and_else_what_the_lease_had(tmp_path: Path) -> None:
    lease = (2, 1, "here", 0, 10, "SETTLED", 0, 0, "", 8, 1.0)
    archived(
        tmp_path,
        [job(), job(id=2, cores=0), job(id=3, nodes=3, ranks=12, cores=2), job(id=4, nodes=3)],
        leases=[lease],
    )
    assert rows_of(gather(ReportFiles([tmp_path])), "months")[0]["core_hours"] == 4 + 8 + 2 * 12 + 4 * 3


def test_canceled_events_are_counted_and_archives_of_before_have_none(tmp_path: Path) -> None:
    counted = {"events": 10, "events_done": 6, "events_canceled": 4, "done": "0-5", "canceled": "6-9"}
    archived(tmp_path / "new", [job(**counted), job(id=2)])
    assert rows_of(gather(ReportFiles([tmp_path / "new"])), "months")[0]["events_canceled"] == 4

    old = archived(tmp_path / "old", [job()])
    path = old / "1970-01" / "00000001-jobs.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["events_canceled", "canceled"]), path)
    (month,) = rows_of(gather(ReportFiles([old])), "months")
    assert (month["events"], month["events_done"], month["events_canceled"]) == (10, 10, 0)
    assert frames.from_archive(old).jobs(["id", "events_canceled"]).arrow.to_pylist() == [
        {"id": 1, "events_canceled": 0}
    ]
    both = gather(ReportFiles([tmp_path / "new", old]))
    assert sum(row["events_canceled"] for row in rows_of(both, "months")) == 4


def test_nothing_is_estimated_without_traces_nor_closes_where_none_were_counted(tmp_path: Path) -> None:
    archived(tmp_path, [job(), job(id=2, site="there")])
    before = {row["quantity"] for row in rows_of(gather(ReportFiles([tmp_path])), "io")}
    assert not before & {"opens", "closes", "metadata ok", "metadata failed"}
    told(tmp_path, "traces", [("here", "sim", "1", 5, 3, 100, 60, 20, 30, 50, None)])
    after = {row["quantity"]: row for row in rows_of(gather(ReportFiles([tmp_path])), "io")}
    assert "closes" not in after
    assert (after["opens"]["jobs"], after["opens"]["average"]) == (1, 60.0), (
        "2 payloads x 30, at the site of the traces only"
    )


def test_a_failure_of_another_version_is_counted_as_that(tmp_path: Path) -> None:
    known = json.dumps({"failure": "memory", "message": "", "at_us": 5, "fault": "node"}).encode()
    rows = [(1, "c", 0, 0, "here", 1, known), (1, "c", 1, 0, "here", 0, b'{"failure": "unheard of"}')]
    archived(tmp_path, [job()], failures=rows)
    found = [
        (row["class"], row["component"], row["failures"], row["final"])
        for row in rows_of(gather(ReportFiles([tmp_path])), "failures")
    ]
    assert sorted(found) == [("memory", "node", 1, 1), ("unreadable", "unreadable", 1, 0)]


def test_sums_of_caches_are_told_as_differences_and_begin_anew_with_them(tmp_path: Path) -> None:
    archived(tmp_path, [job()])
    for month, since, opens in (("1970-01", 0, 10), ("1970-02", 0, 25), ("1970-03", 9, 4)):
        at = {"1970-01": 1, "1970-02": 40, "1970-03": 70}[month] * 86_400_000_000
        told(tmp_path, "caches", [("here", "x", at, since, opens, *[0] * 8)], month)
    assert [row["opens"] for row in rows_of(gather(ReportFiles([tmp_path])), "caches")] == [10, 15, 4]


def test_medians_of_staging_times_are_of_the_period_and_unknown_without_a_histogram(tmp_path: Path) -> None:
    begun, day_us = 5, 24 * HOUR_US
    told(tmp_path, "staging", [("here", 4, "shared", begun, day_us, 3, 300, 30, 300, 10),
                               ("here", 8, "shared", begun, day_us, 1, 100, 10, 100, 10)])  # fmt: skip
    told(tmp_path, "staging_times", [("here", 4, "shared", begun, 11, day_us, 3)])
    months = "1970-02"
    later_us = 40 * day_us
    told(tmp_path, "staging", [("here", 4, "shared", begun, later_us, 8, 800, 5030, 5_000_300, 1000)], months)
    told(
        tmp_path,
        "staging_times",
        [("here", 4, "shared", begun, edge, later_us, n) for edge, n in ((11, 3), (1024, 5))],
        months,
    )
    whole = {row["nodes"]: row["median"] for row in rows_of(gather(ReportFiles([tmp_path])), "staging")}
    assert whole[4] == pytest.approx(0.9, rel=0.1)
    assert whole[8] is None
    (first,) = (row for row in rows_of(gather(ReportFiles([tmp_path], Window(until_us=2 * day_us))), "staging")
                if row["nodes"] == 4)  # fmt: skip
    assert first["median"] == pytest.approx(0.01, rel=0.1)
    (second,) = rows_of(gather(ReportFiles([tmp_path], Window(since_us=31 * day_us))), "staging")
    assert second["files"] == 5
    assert second["median"] == pytest.approx(0.94, rel=0.1)


def test_an_allocation_that_is_told_again_counts_once_as_told_last(tmp_path: Path) -> None:
    archived(tmp_path, [job()])
    first = ("here", "a", "1", "LOST", 2, 16, 0, "", 0, 0, HOUR_US, 2 * HOUR_US)
    told(tmp_path, "allocations", [first])
    told(tmp_path, "allocations", [(*first[:3], "COMPLETED", *first[4:])], "1970-02")
    found = rows_of(gather(ReportFiles([tmp_path])), "allocations")
    assert [(row["allocations"], row["failed"], row["core_hours"]) for row in found] == [(1, 0, 32.0)]


def test_backfill_is_what_was_idle_and_ours(tmp_path: Path) -> None:
    archived(tmp_path, [job()])
    told(tmp_path, "hours", [("here", 0, 60, 70.0, 20.0, 10.0, 0.0), ("here", 1, 30, 70.0, 0.0, 30.0, 0.0)])
    told(tmp_path, "allocations", [("here", "a", "1", "COMPLETED", 2, 16, 0, "", 3, 4, HOUR_US, 2 * HOUR_US)])
    (row,) = rows_of(gather(ReportFiles([tmp_path])), "backfill")
    assert (row["available"], row["used"], row["useful"], row["hours"]) == (45.0, 20.0, 15.0, 1.5)
    assert (row["efficiency"], row["useful_share"]) == (pytest.approx(20 / 45), pytest.approx(15 / 45))


def test_parquet_says_what_csv_says(operation: OperationReport, tmp_path: Path) -> None:
    sheets = list(operation.sheets.values())
    write_csv(tmp_path, sheets)
    for path in write_parquet(tmp_path, sheets):
        table = pq.read_table(path)
        with path.with_suffix(".csv").open(newline="") as file:
            found = list(csv.reader(file))
        assert found[0] == table.column_names
        told_rows = [
            ["" if cell is None else str(cell) for cell in row.values()] for row in table.to_pylist()
        ]
        assert told_rows == found[1:]
        assert table.schema.metadata[b"definition"].decode()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    archived(tmp_path, [job()])
    (path,) = tmp_path.glob("*/*-failures.parquet")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(SiteError, match=str(path)):
        gather(ReportFiles([tmp_path]))


def test_without_pyarrow_the_command_to_install_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as raised:
        write_parquet(tmp_path, [])
    assert (raised.value.hint or "").startswith("`pip install --find-links dist 'tidemill[archive]'`, ")


def test_an_empty_archive_makes_a_page_that_says_so(tmp_path: Path) -> None:
    text = page(gather(ReportFiles([tmp_path])))

    assert f"No job has come into the archive <code>{tmp_path}</code> yet" in text
    assert "<svg" not in text


def test_a_campaign_and_a_time_without_jobs_are_named(tmp_path: Path) -> None:
    archived(tmp_path, [job()])

    assert "No job of campaign <code>nope</code> ran" in page(
        gather(ReportFiles([tmp_path], Window(campaign="nope")))
    )
    assert "No job ran in this time." in page(gather(ReportFiles([tmp_path], Window(since_us=9 * HOUR_US))))


def test_an_archive_of_one_job_has_its_figures(tmp_path: Path) -> None:
    archived(tmp_path, [job(read_bytes=10**9, setup_us=HOUR_US // 10)])

    operation = gather(ReportFiles([tmp_path]))
    text = page(operation)

    assert [row["jobs"] for row in rows_of(operation, "sites")] == [1, 1]
    assert {row["deviation"] for row in rows_of(operation, "io")} == {None}
    assert text.count('class="figure"') >= 3
    assert "January 1970" in text
    assert not re.search(r"\b(nan|NaN|inf|None)\b", text.partition("</style>")[2])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_named_whatever_is_left_of_it(tmp_path: Path, share: float) -> None:
    archived(tmp_path, [job(id=number) for number in range(500)])
    (path,) = tmp_path.glob("*/*-jobs.parquet")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(SiteError, match=str(path)) as raised:
        gather(ReportFiles([tmp_path]))

    assert "restore the file from a copy" in str(raised.value.hint)


def test_what_is_not_an_archive_is_said(tmp_path: Path) -> None:
    archived(tmp_path / "archive", [job()])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    cases = {
        tmp_path / "nowhere": "does not exist",
        tmp_path / "other" / "notes.txt": "is not a directory",
        tmp_path / "other": "is not an archive",
        tmp_path: "is not an archive",
        tmp_path / "archive" / "1970-01": "is not an archive",
    }

    for path, words in cases.items():
        with pytest.raises(SiteError, match=words) as raised:
            ReportFiles([path])
        assert str(path) in raised.value.message
    assert f"name `{tmp_path / 'archive'}`" in str(raised.value.hint), "a month leads to its archive"


def test_months_of_several_years_are_added_up_by_year_and_named_by_january(tmp_path: Path) -> None:
    month_us = 30 * 24 * HOUR_US
    made = [
        job(id=k, started_us=k * month_us, ended_us=k * month_us + HOUR_US, site=("here", "there")[k % 2])
        for k in range(40)
    ]
    archived(tmp_path, made)

    operation = gather(ReportFiles([tmp_path]))

    years = [row for row in rows_of(operation, "years") if row["site"] == "all"]
    assert [row["year"] for row in years] == ["1970", "1971", "1972", "1973"]
    for name in ("jobs", "events_done", "core_hours"):
        assert sum(row[name] for row in years) == pytest.approx(rows_of(operation, "sites")[-1][name])
    marks = [name for _, name in months_axis(months_of(operation)).marks if name]
    assert marks[:5] == ["Jan\n1970", "Apr", "Jul", "Oct", "Jan\n1971"]
    assert "<h3>By year</h3>" in page(operation)


def test_a_single_year_has_no_table_of_years(operation: OperationReport) -> None:
    assert "years" not in operation.sheets


def test_the_marks_of_months_are_few_and_name_their_years() -> None:
    for first, last in (
        ("2016-01", "2016-12"),
        ("2016-11", "2017-03"),
        ("2015-05", "2018-02"),
        ("2001-03", "2026-11"),
    ):
        months = month_range(first, last)
        for marks_max in (7, 13):
            names = [name for _, name in months_axis(months, marks_max).marks if name]
            assert 2 <= len(names) <= marks_max + 1
            years = [int(word) for name in names for word in re.findall(r"\d{4}", name)]
            assert years == sorted(set(years))
            assert 0 <= years[0] - int(first[:4]) < 5, names


def test_what_traces_do_not_count_is_said_and_not_invented(tmp_path: Path) -> None:
    archived(tmp_path, [job()])
    assert "no payload of this application was traced" in page(gather(ReportFiles([tmp_path])))
    told(tmp_path, "traces", [("here", "sim", "1", 5, 3, 100, 60, 20, 30, 50, None)])
    text = page(gather(ReportFiles([tmp_path])))
    assert "Closes are not known" in text
    told(tmp_path, "traces", [("here", "sim", "1", 5, 3, 100, 60, 20, 30, 50, 25)])
    assert "Closes are not known" not in page(gather(ReportFiles([tmp_path])))


def test_the_page_has_each_section_and_loads_nothing(operation: OperationReport) -> None:
    text = page(operation)
    for title in (
        "Core-hours, jobs and events",
        "Backfill",
        "Failures",
        "I/O per job",
        "Hospital",
        "Grant ledger",
        "Node quality",
    ):
        assert f"<h2>{title}</h2>" in text
    for word in ("<script", "<link", "<img", "url(", "@import", 'src="', "http"):
        assert word not in text
    assert "@figure@" not in text


VALUES = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=60)


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_sums_of_pieces_describe_the_whole(pieces: list[list[float]]) -> None:
    spread, values = Spread(), [value for piece in pieces for value in piece]
    for piece in pieces:
        mean = statistics.fmean(piece)
        scatter = sum((value - mean) ** 2 for value in piece)
        spread.add(PieceSums(len(piece), sum(piece), scatter, min(piece), max(piece)))
    assert spread.count == len(values)
    assert spread.mean == pytest.approx(statistics.fmean(values))
    assert (spread.low, spread.high) == (min(values), max(values))
    if len(values) > 1:
        assert spread.deviation == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6 * max(values))


@given(VALUES, st.sampled_from([0.05, 0.5, 0.95]))
def test_a_percentile_is_right_within_a_bin(values: list[float], share: float) -> None:
    import pyarrow as pa

    from tidemill_report.operation.jobs import spreads

    table = pa.table({"app": ["a"] * len(values)})
    (spread,) = spreads(table, ("app",), pa.chunked_array([values])).values()
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert spread.quantile(share) == pytest.approx(exact, rel=0.04)
    assert sum(spread.bins.values()) == len(values)
    assert sum(each.number for each in spread.merged(6)) == len(values)


def test_days_are_drawn_with_few_marks_and_the_newest_of_them_only(operation: OperationReport) -> None:
    sheet = operation.sheets["days"]
    assert sum(sheet.column("jobs")) == sum(operation.sheets["months"].column("jobs"))
    assert sum(sheet.column("completed")) == sum(operation.sheets["months"].column("completed"))
    drawing = figures.per_day(sheet)
    assert "Jobs per day" in drawing
    first = date(2026, 1, 30)
    for number, most in ((1, 1), (13, 13), (30, 7), (90, 13), (400, 14)):
        days = [first + timedelta(days=k) for k in range(number)]
        marks = [name for _, name in figures.days_axis(days).marks]
        assert 1 <= len(marks) <= most, (number, marks)
