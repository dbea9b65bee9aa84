"""The sums of a report, once more: DuckDB's SQL over the archive's Parquet files, compared with the report's CSV."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import duckdb

NEAR = 1e-9  #: of a value that is not whole
H = "3600e6"
AT = "COALESCE(ended_us, started_us, created_us)"
SLOTS = "GREATEST(cores, 1) * GREATEST(ranks, GREATEST(nodes, 1))"
JOBS = "'{archive}/*/*-jobs.parquet'"
MONTH = "strftime(make_timestamp({at}), '%Y-%m')"
SITE = "CASE WHEN site = '' THEN '-' ELSE site::VARCHAR END"

#: sheet -> columns of its key, and SQL that gives key and values under the sheet's names
QUERIES: dict[str, tuple[tuple[str, ...], str]] = {
    "months": (
        ("month", "site"),
        f"""SELECT {MONTH.format(at=AT)} AS month, {SITE} AS site, COUNT(*) AS jobs,
        COUNT(*) FILTER (state = 'COMPLETED') AS completed, COUNT(*) FILTER (state = 'FAILED') AS failed,
        COUNT(*) FILTER (state = 'PARTIAL') AS partial, COUNT(*) FILTER (state = 'CANCELED') AS canceled,
        SUM(events) AS events, SUM(events_done) AS events_done, SUM(events_failed) AS events_failed,
        SUM(events_canceled) AS events_canceled,
        SUM(wall_us::HUGEINT * {SLOTS}) / {H} AS core_hours, SUM(user_us + system_us) / SUM(wall_us) AS cpu_per_wall,
        SUM(read_bytes) / 1e12 AS read, SUM(write_bytes) / 1e12 AS written FROM {JOBS} GROUP BY 1, 2""",
    ),
    "days": (
        ("day", "site"),
        f"""SELECT strftime(make_timestamp({AT}), '%Y-%m-%d') AS day, {SITE} AS site, COUNT(*) AS jobs,
        COUNT(*) FILTER (state = 'COMPLETED') AS completed, COUNT(*) FILTER (state = 'FAILED') AS failed,
        SUM(events_done) AS events_done FROM {JOBS} GROUP BY 1, 2""",
    ),
    "failures": (
        ("month", "site", "class"),
        f"""SELECT {MONTH.format(at="(decode(evidence)::JSON->>'at_us')::BIGINT")} AS month, {SITE} AS site,
        decode(evidence)::JSON->>'failure' AS class, COUNT(*) AS failures, SUM(final) AS final
        FROM '{{archive}}/*/*-failures.parquet' GROUP BY 1, 2, 3""",
    ),
    "failure_rate": (
        ("month",),
        f"""SELECT {MONTH.format(at=AT)} AS month, COUNT(*) AS ended, COUNT(*) FILTER (state = 'FAILED') AS failed,
        AVG((state = 'FAILED')::INT) AS rate FROM {JOBS} WHERE state NOT IN ('WAITING', 'RUNNING') GROUP BY 1""",
    ),
    "backfill": (
        ("month", "site"),
        """WITH h AS (SELECT strftime(make_timestamp(hour * 3600000000), '%Y-%m') AS month, site::VARCHAR AS site,
        SUM(minutes / 60) AS hours, SUM((ours + idle) * minutes / 60) AS available, SUM(ours * minutes / 60) AS used,
        SUM(regular * minutes / 60) AS other_jobs FROM '{archive}/*/operation-hours.parquet' GROUP BY 1, 2),
        a AS (SELECT strftime(make_timestamp(ended_us), '%Y-%m') AS month, site::VARCHAR AS site,
        SUM(busy_us) / SUM(slot_us) AS share, MAX(cores) AS cores FROM '{archive}/*/operation-allocations.parquet'
        GROUP BY 1, 2) SELECT h.*, used / available AS efficiency, used * share AS useful, used * share / available AS
        useful_share, available * cores AS available_cores FROM h JOIN a USING (month, site)""",
    ),
    "allocations": (
        ("month", "site"),
        """SELECT strftime(make_timestamp(ended_us), '%Y-%m') AS month, site::VARCHAR AS site, COUNT(*) AS allocations,
        COUNT(*) FILTER (state = 'FAILED') AS failed, SUM((ended_us - started_us) * nodes) / 3600e6 AS node_hours,
        SUM((ended_us - started_us) * nodes * cores) / 3600e6 AS core_hours, SUM(busy_us) / SUM(slot_us) AS occupied
        FROM '{archive}/*/operation-allocations.parquet' GROUP BY 1, 2""",
    ),
    "hospital": (
        ("month", "ward"),
        """SELECT strftime(make_timestamp(admitted_us), '%Y-%m') AS month, ward::VARCHAR AS ward,
        COUNT(*) FILTER (outcome = 'cured') AS cured, COUNT(*) FILTER (outcome = 'failed') AS failed,
        COUNT(*) FILTER (outcome = 'home') AS home, AVG(ended_us - admitted_us) / 3600e6 AS mean_stay
        FROM '{archive}/*/*-stays.parquet' GROUP BY 1, 2""",
    ),
    "staging": (
        ("site", "nodes", "way"),
        """SELECT site::VARCHAR AS site, nodes, way::VARCHAR AS way,
        SUM(files) AS files, SUM(ms) / SUM(files) / 1000 AS mean,
        MAX(max_ms) / 1000 AS max, SUM(bytes) / SUM(files) / 1e9 AS mean_size
        FROM '{archive}/*/operation-staging.parquet' GROUP BY 1, 2, 3""",
    ),
    "grants": (
        ("month", "site", "account"),
        """SELECT strftime(make_timestamp(at_us), '%Y-%m') AS month, site::VARCHAR AS site, account::VARCHAR AS account,
        granted, used, "left" FROM '{archive}/*/operation-grants.parquet'""",
    ),
}
RAN = f"(SELECT *, GREATEST(nodes, 1) AS width FROM {JOBS} WHERE payloads > 0 AND started_us IS NOT NULL)"
#: quantity of the sheet `io` -> SQL of a job's
IO = {
    "nodes": "width", "duration": "(ended_us - started_us) / 1e6", "read": "read_bytes / 1e9",
    "written": "write_bytes / 1e9", "read per node": "read_bytes / 1e9 / width",
    "written per node": "write_bytes / 1e9 / width",
}  # fmt: skip
#: the same of what is estimated: a column, or a sum of columns, of traces
TRACED = {
    "opens": "opens",
    "closes": "closes",
    "metadata ok": "ops - t.failed",
    "metadata failed": "t.failed",
}
TIMES = {
    "set-up time of a payload": "setup_us / payloads / 1e6",
    "time of an event": "CASE WHEN events_done > 0 THEN (wall_us - setup_us) / events_done / 1e6 END",
}
FOUR = "COUNT({0}) AS jobs, MIN({0}) AS min, MAX({0}) AS max, AVG({0}) AS {1}, STDDEV_SAMP({0}) AS deviation"


def differences(archive: Path, directory: Path) -> list[str]:
    """Cells of the report's CSV files that differ from DuckDB's sums, in words; also cells and rows that are
    missing."""
    database = duckdb.connect()
    database.execute("SET memory_limit = '2GB'; SET threads = 2")
    found: list[str] = []
    for name, (keys, query) in QUERIES.items():
        found += _compare(name, keys, _rows(database, query.format(archive=archive)), directory)
    for name, quantity, query in _of_jobs():
        rows = _rows(database, query.format(archive=archive))
        keys = ("application", "site") if name != "io" else ("application",)
        found += _compare(name, keys, rows, directory, quantity=quantity)
    return found + _histograms(database, archive, directory)


def _of_jobs() -> list[tuple[str, str, str]]:
    """Sheet, quantity and query of what the archive holds for each job."""
    made = []
    for quantity, value in IO.items():
        made.append(
            (
                "io",
                quantity,
                f"SELECT app::VARCHAR AS application, {FOUR.format(value, 'average')} FROM {RAN} GROUP BY 1",
            )
        )
    for quantity, value in TRACED.items():
        made.append((
            "io", quantity,
            f"""WITH t AS (SELECT site, app, ops, failed, opens, closes FROM '{{archive}}/*/operation-traces.parquet'
            QUALIFY ROW_NUMBER() OVER (PARTITION BY site, app ORDER BY at_us DESC) = 1)
            SELECT j.app::VARCHAR AS application, {FOUR.format(f"j.payloads * ({value})", "average")}
            FROM {RAN} j JOIN t USING (site, app) GROUP BY 1""",
        ))  # fmt: skip
    for quantity, value in TIMES.items():
        query = f"""SELECT app::VARCHAR AS application, {SITE} AS site, {FOUR.format(f"({value})", "mean")}
        FROM {RAN} GROUP BY 1, 2 HAVING COUNT({value}) > 0"""
        made.append(("times", quantity, query))
    return made


def _histograms(database: Any, archive: Path, directory: Path) -> list[str]:
    """Jobs between the edges that the report states: each bin is counted again."""
    found = []
    values = {"read": IO["read"], "written": IO["written"]}
    for row in _csv(directory / "io_histograms.csv"):
        value = values.get(row["quantity"])
        if value is None or row["application"] != "simulate-mpi":
            continue
        inside = f"{value} >= {row['low']} AND {value} < {row['high']}"
        query = f"SELECT COUNT(*) FROM {RAN} WHERE app = '{row['application']}' AND {inside}"
        counted = database.execute(query.format(archive=archive)).fetchone()[0]
        if counted != int(row["jobs"]):
            found.append(f"io_histograms {row}: {counted}")
    return found


def _rows(database: Any, query: str) -> list[dict[str, Any]]:
    answer = database.execute(query)
    names = [each[0] for each in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _compare(
    name: str, keys: tuple[str, ...], rows: list[dict[str, Any]], directory: Path, *, quantity: str = ""
) -> list[str]:
    told = [row for row in _csv(directory / f"{name}.csv") if not quantity or row["quantity"] == quantity]
    lines = {tuple(row[key] for key in keys): row for row in told}
    found = (
        []
        if len(lines) == len(told) == len(rows)
        else [f"{name} {quantity}: {len(told)} rows, not {len(rows)}"]
    )
    for row in rows:
        line = lines.get(tuple(str(row[key]) for key in keys))
        if line is None:
            found.append(f"{name} {quantity}: no row {[row[key] for key in keys]}")
            continue
        for column, value in row.items():
            if column not in keys and not is_same(line[column], value):
                found.append(
                    f"{name} {quantity} {[row[key] for key in keys]} {column}: {line[column]}, not {value}"
                )
    return found


def is_same(text: str, value: Any) -> bool:
    """Whether a cell of CSV is a value: whole numbers exactly, others within NEAR."""
    if value is None or text == "":
        return value is None and text == ""
    if isinstance(value, int):
        return float(text) == value if "." in text or "e" in text else int(text) == value
    return math.isclose(float(text), float(value), rel_tol=NEAR, abs_tol=1e-12)
