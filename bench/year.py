"""A synthetic year of operation in the archive's form, from a seed. See `bench/report.py`.

Its proportions are those of a published year on a leadership-class machine: 2,250,000 jobs of 100 events, 13.6 % of
them
failed, 3 to 15 million core-hours a month, and one week in which 1,175 jobs spanned 1 to 300 nodes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.model.failure import FailureClass
from tidemill.model.figures.time_classes import upper_edge_ms
from tidemill.server.archive.archiver import BATCH_JOBS, CHUNK
from tidemill.server.archive.operation import write_operation
from tidemill.server.archive.parquet import COLUMNS, Archive, operation_path, schema_of

YEAR = 2016
JOBS = 2_250_000
EVENTS = 100  #: of a job
WEEK_JOBS = 1_175
WEEK = datetime(2016, 10, 25, tzinfo=UTC)
WEEK_S = 174 * 3600
WEEK_CAMPAIGN, WEEK_APP = "io-week", "simulate-mpi"
CAMPAIGN_JOBS = 2_000
WEIGHTS = (6.1, 5.6, 5.2, 3.3, 4.9, 6.0, 6.9, 7.4, 7.9, 9.6, 11.2, 14.8)  #: of months, as core-hours were
SITES = ("titan", "theta", "cori")
SHARES = (0.8, 0.08, 0.12)
APPS = ("simulate", "generate", "digitize")
APP_SHARES = (0.86, 0.09, 0.05)
EVENT_S = {"titan": 70.0, "theta": 41.0, "cori": 30.0}
SETUP_S = {"titan": 410.0, "theta": 240.0, "cori": 95.0}
APP_FACTOR = {"simulate": 1.0, "generate": 0.12, "digitize": 0.35, WEEK_APP: 1.0}
CORES = {"titan": 16, "theta": 64, "cori": 32}
NODES = {"titan": 18_688, "theta": 4_392, "cori": 2_388}
STATES = np.array(["COMPLETED", "PARTIAL", "FAILED", "CANCELED"])
STATE_SHARES = (0.85, 0.009, 0.136, 0.005)
HOUR_US = 3_600_000_000
CORE_HOURS = {"titan": 29.0, "theta": 67.0, "cori": 24.0}  #: of a job, about
OCCUPIED = 0.88  #: of slot time
#: failures of a class in the first and the last month, as weights
CLASSES = {
    FailureClass.LOST: (30.0, 3.0), FailureClass.DISPATCH: (22.0, 9.0), FailureClass.PAYLOAD_SETUP: (12.0, 26.0),
    FailureClass.PAYLOAD: (10.0, 24.0), FailureClass.STAGE_IN: (9.0, 6.0), FailureClass.STAGE_OUT: (7.0, 5.0),
    FailureClass.NODE: (4.0, 4.0), FailureClass.MEMORY: (3.0, 5.0), FailureClass.WALLTIME: (3.0, 4.0),
}  # fmt: skip


class Size(NamedTuple):
    """How much is made."""

    jobs: int = JOBS
    week_jobs: int = WEEK_JOBS


def make(directory: Path, *, seed: int = 1, size: Size = Size()) -> None:  # noqa: B008 - a constant
    """Write the year below a directory. The same seed and size give the same values."""
    random = np.random.default_rng(seed)
    archive, batch, job = Archive(directory), 0, 1
    for month, jobs in enumerate(_shared(size.jobs - size.week_jobs, WEIGHTS)):
        parts = [_jobs(random, month, job, jobs)]
        job += jobs
        if month == WEEK.month - 1:
            parts.append(_week(random, job, size.week_jobs))
            job += size.week_jobs
        for part in parts:
            for piece in _cut(part, BATCH_JOBS):
                batch += 1
                _write_batch(archive, f"{YEAR}-{month + 1:02d}", batch, piece, random)
    for month in range(12):
        for table, rows in _operation(random, month, size).items():
            path = operation_path(directory, f"{YEAR}-{month + 1:02d}", table)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                write_operation(file, table, rows)


def _shared(total: int, weights: tuple[float, ...]) -> list[int]:
    ends = np.round(np.cumsum(weights) / sum(weights) * total).astype(int)
    return [int(each) for each in np.diff(ends, prepend=0)]


def month_us(month: int) -> tuple[int, int]:
    """The first microsecond of a month of the year, and of the next."""
    first = datetime(YEAR, month + 1, 1, tzinfo=UTC)
    after = datetime(YEAR + (month == 11), (month + 1) % 12 + 1, 1, tzinfo=UTC)
    return int(first.timestamp()) * 1_000_000, int(after.timestamp()) * 1_000_000


Columns = dict[str, Any]


def _jobs(random: np.random.Generator, month: int, first: int, n: int) -> Columns:
    """A month's ordinary jobs: a slot of one node each."""
    site = np.sort(random.choice(len(SITES), n, p=SHARES))  # a campaign is of one site mostly
    app = random.choice(len(APPS), n, p=APP_SHARES)
    names, apps = np.array(SITES)[site], np.array(APPS)[app]
    factor = np.array([APP_FACTOR[each] for each in APPS])[app]
    setup_s = (
        np.array([SETUP_S[each] for each in SITES])[site] * np.sqrt(factor) * random.lognormal(0, 0.35, n)
    )
    event_s = np.array([EVENT_S[each] for each in SITES])[site] * factor * random.lognormal(0, 0.12, n)
    start, end = month_us(month)
    found = _common(random, first, setup_s, event_s, np.ones(n, np.int64))
    ended = start + (random.random(n) * (end - start)).astype(np.int64)
    found |= {
        "campaign": np.char.add(f"{YEAR}-{month + 1:02d}-", (np.arange(n) // CAMPAIGN_JOBS).astype(str)),
        "site": names, "app": apps, "ended_us": ended, "started_us": ended - found["span_us"],
        "cores": np.array([CORES[each] for each in SITES])[site], "nodes": np.zeros(n, np.int64),
        "ranks": np.zeros(n, np.int64),
        "read_bytes": (random.lognormal(19.3, 0.5, n)).astype(np.int64),
        "write_bytes": (random.lognormal(18.8, 0.2, n)).astype(np.int64),
    }  # fmt: skip
    return found


def _week(random: np.random.Generator, first: int, n: int) -> Columns:
    """The week of jobs that span nodes; numbers as in the table of that week."""
    nodes = np.minimum(300, np.maximum(1, random.lognormal(2.45, 1.45, n).astype(np.int64)))
    nodes[: n // 50] = 300
    event_s = random.normal(6_280.8, 521.0, n).clip(1_932, 7_452) / EVENTS * 0.94
    found = _common(random, first, event_s * EVENTS * 0.06, event_s, nodes, states=(1.0, 0.0, 0.0, 0.0))
    ended = int(WEEK.timestamp()) * 1_000_000 + (random.random(n) * WEEK_S * 1e6).astype(np.int64)
    found |= {
        "campaign": np.full(n, WEEK_CAMPAIGN), "site": np.full(n, "titan"), "app": np.full(n, WEEK_APP),
        "ended_us": ended, "started_us": ended - found["span_us"], "cores": np.full(n, 16), "nodes": nodes,
        "ranks": nodes,
        "read_bytes": (nodes * random.normal(0.384e9, 0.19e9, n).clip(3.7e5, 8.2e8)).astype(np.int64),
        "write_bytes": (nodes * random.normal(0.168e9, 0.034e9, n).clip(2.5e7, 2.4e8)).astype(np.int64),
    }  # fmt: skip
    return found


def _common(
    random: np.random.Generator,
    first: int,
    setup_s: Any,
    event_s: Any,
    payloads: np.ndarray[Any, Any],
    *,
    states: tuple[float, ...] = STATE_SHARES,
) -> Columns:
    n = len(setup_s)
    state = random.choice(len(STATES), n, p=states)
    part = np.where(state == 0, EVENTS, random.integers(0, EVENTS, n))
    done = np.where(state == 1, np.maximum(1, EVENTS - random.integers(1, 5, n)), part)
    failed = np.where(
        state == 2,
        np.minimum(EVENTS - done, random.integers(1, 9, n)),
        np.where(state == 1, EVENTS - done, 0),
    )
    setup_us = (setup_s * 1e6).astype(np.int64)
    span_us = setup_us + (event_s * 1e6 * np.maximum(done, 1)).astype(np.int64)
    busy = random.normal(0.93, 0.02, n).clip(0.5, 0.99)
    return {
        "id": np.arange(first, first + n), "state": STATES[state], "events": np.full(n, EVENTS), "events_done": done,
        "events_failed": failed, "payloads": payloads, "setup_us": setup_us, "wall_us": span_us,
        "span_us": span_us, "user_us": (span_us * busy).astype(np.int64),
        "system_us": (span_us * 0.02).astype(np.int64), "rss_kb": random.integers(1_200_000, 2_100_000, n),
    }  # fmt: skip


def _cut(columns: Columns, size: int) -> Iterator[Columns]:
    for first in range(0, len(columns["id"]), size):
        yield {name: values[first : first + size] for name, values in columns.items()}


def _write_batch(
    archive: Archive, month: str, batch: int, jobs: Columns, random: np.random.Generator
) -> None:
    path = archive.path(month, batch, "jobs")
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        writers = {
            table: files.enter_context(
                pq.ParquetWriter(archive.path(month, batch, table), schema_of(text), compression="zstd")
            )
            for table, text in COLUMNS.items()
        }
        for piece in _cut(jobs, CHUNK):
            n = len(piece["id"])
            _write(writers["jobs"], "jobs", _job_columns(piece, n))
            _write(writers["leases"], "leases", _leases(piece, n))
            _write(writers["failures"], "failures", _failures(piece, int(month[5:]) - 1, random))
            _write(writers["outputs"], "outputs", _outputs(piece))
            _write(writers["stays"], "stays", _stays(piece, random))
        _write(writers["campaigns"], "campaigns", _campaigns(jobs))


def _write(writer: pq.ParquetWriter, table: str, columns: Columns) -> None:
    """Write a row group; what a column is not given is 0 or empty."""
    schema = schema_of(COLUMNS[table])
    n = len(next(iter(columns.values())))
    if n:
        zeros = {pa.int64(): 0, pa.float64(): 0.0, pa.binary(): b""}
        arrays = []
        for field in schema:
            values = columns.get(field.name)
            if values is None:
                values = [zeros.get(field.type, "")] * n
            plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            arrays.append(pa.array(values, plain).cast(field.type))
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _job_columns(piece: Columns, n: int) -> Columns:
    spec = json.dumps({"app": "simulate", "resources": {"cores": 16}}).encode()
    return {
        **{name: values for name, values in piece.items() if name != "span_us"},
        "owner": ["prod"] * n, "done": ["0-99"] * n, "created_us": piece["started_us"] - 3_600_000_000,
        "attempts": [1] * n, "memory_mb": [2_000] * n, "devices": ["{}"] * n, "spec": [spec] * n,
        "seed_base": piece["id"] * 7,
    }  # fmt: skip


def _leases(piece: Columns, n: int) -> Columns:
    return {
        "job": piece["id"], "lease": piece["id"], "site": piece["site"], "first": [0] * n, "count": piece["events"],
        "state": ["SETTLED"] * n, "leased_us": piece["started_us"] - 60_000_000, "ended_us": piece["ended_us"],
        "cores": piece["cores"], "event_s": [60.0] * n,
    }  # fmt: skip


def _failures(piece: Columns, month: int, random: np.random.Generator) -> Columns:
    at = np.flatnonzero(piece["state"] == "FAILED")
    weights = np.array([first + (last - first) * month / 11 for first, last in CLASSES.values()])
    chosen = random.choice(len(CLASSES), len(at), p=weights / weights.sum())
    names = list(CLASSES)
    evidence = [
        json.dumps(
            {"failure": str(names[k]), "message": "synthetic", "at_us": int(piece["ended_us"][j])}
        ).encode()
        for k, j in zip(chosen, at, strict=True)
    ]
    return {
        "job": piece["id"][at], "campaign": piece["campaign"][at], "event": piece["events_done"][at],
        "site": piece["site"][at], "final": (random.random(len(at)) < 0.7).astype(np.int64), "evidence": evidence,
    }  # fmt: skip


def _outputs(piece: Columns) -> Columns:
    at = np.arange(0, len(piece["id"]), 100)
    urls = [f"root://store.example.org//out/{each}.root" for each in piece["id"][at]]
    return {
        "job": piece["id"][at], "campaign": piece["campaign"][at], "number": np.zeros(len(at), np.int64),
        "name": ["hits"] * len(at), "url": urls, "size_bytes": piece["write_bytes"][at],
    }  # fmt: skip


def _stays(piece: Columns, random: np.random.Generator) -> Columns:
    at = np.arange(7, len(piece["id"]), 400)
    n = len(at)
    return {
        "job": piece["id"][at], "number": np.ones(n, np.int64),
        "ward": np.array(["memory", "far-reads", "waiting"])[random.integers(0, 3, n)], "cure": ["memory x2"] * n,
        "why": ["memory"] * n, "admitted_us": piece["started_us"][at],
        "outcome": np.array(["cured", "failed", "home"])[random.choice(3, n, p=(0.71, 0.2, 0.09))],
        "site": piece["site"][at], "ended_us": piece["ended_us"][at],
    }  # fmt: skip


def _campaigns(jobs: Columns) -> Columns:
    names, first = np.unique(jobs["campaign"], return_index=True)
    counts = np.diff(np.append(np.sort(first), len(jobs["id"])))
    return {
        "id": jobs["id"][np.sort(first)], "name": jobs["campaign"][np.sort(first)], "owner": ["prod"] * len(names),
        "jobs": counts, "shares": [1.0] * len(names),
    }  # fmt: skip


def _operation(random: np.random.Generator, month: int, size: Size) -> dict[str, list[tuple[Any, ...]]]:
    start, end = month_us(month)
    found: dict[str, list[tuple[Any, ...]]] = {
        name: [] for name in ("hours", "allocations", "grants", "caches")
    }
    found |= {"quarantine": [], "staging": [], "staging_times": [], "traces": []}
    for k, site in enumerate(SITES):
        scale = WEIGHTS[month] / sum(WEIGHTS) * 12 * size.jobs / JOBS
        _machine(found, random, (k, scale), (start, end))
        used = sum(WEIGHTS[: month + 1]) / sum(WEIGHTS) * 5.1e6 * SHARES[k] * size.jobs / JOBS
        granted = 6.0e6 * SHARES[k]
        found["grants"].append(
            (site, f"hep{k + 1}", end - HOUR_US, granted, used, used * 0.01, granted - used)
        )
        served = int(4e14 * SHARES[k] * sum(WEIGHTS[: month + 1]))
        found["caches"].append((
            site, f"xcache-{site}", end - HOUR_US, month_us(0)[0], 40_000 * (month + 1), served, int(served * 0.8),
            int(served * 0.74), int(served * 0.3), int(served * 0.01), int(served * 0.02), int(served * 0.31), month,
        ))  # fmt: skip
        for app in (*APPS, WEEK_APP):
            opens = {"simulate": 3_300, WEEK_APP: 4_107}.get(app, 900)
            found["traces"].append((
                site, app, "21.0", end - HOUR_US, 40 * (month + 1), opens * 9, opens * 6, 6_826, opens, opens * 3,
                int(opens * 0.233),
            ))  # fmt: skip
        for nodes in (1, 5, 20, 100, 300):
            for way, ms in (("shared", 9_000 + 60 * nodes), ("peer", 7_000 + 900 * nodes.bit_length())):
                times = (ms * random.lognormal(0, 0.3, 20 * (month + 1))).astype(np.int64)
                row = (len(times), 800_000_000 * len(times), times.sum(), (times**2).sum(), times.max())
                found["staging"].append(
                    (site, nodes, way, start, end - HOUR_US, *(int(each) for each in row))
                )
                classes = Counter(upper_edge_ms(int(each)) for each in times)
                found["staging_times"] += [
                    (site, nodes, way, start, edge_ms, end - HOUR_US, files)
                    for edge_ms, files in classes.items()
                ]
        for node in range(int(random.integers(1, 5))):
            since = start + int(random.random() * (end - start))
            long_us = int(random.lognormal(1.2, 0.8) * HOUR_US)
            found["quarantine"].append((site, f"{site}{random.integers(0, 40):04d}-{node}", since, since + long_us,
                                        "3 starts failed within 10 s"))  # fmt: skip
    return found


def _machine(
    found: dict[str, list[tuple[Any, ...]]],
    random: np.random.Generator,
    of: tuple[int, float],
    span: tuple[int, int],
) -> None:
    """A month of one machine: its hours, and allocations that add up to what was used."""
    (k, scale), (start, end) = of, span
    site, hours = SITES[k], (end - start) // HOUR_US
    nodes = NODES[site]
    used = CORE_HOURS[site] * SHARES[k] * JOBS / 12 * scale / OCCUPIED / CORES[site]
    ours = random.lognormal(0, 0.3, hours)
    ours *= used / ours.sum()
    idle = nodes * (0.1 + 0.02 * k) * random.lognormal(0, 0.25, hours) * random.uniform(0.85, 1.15)
    away = np.where(random.random(hours) < 0.01, nodes * 0.2, nodes * 0.004)
    first = start // HOUR_US
    found["hours"] += [
        (
            site,
            int(first + h),
            60,
            float(nodes - ours[h] - idle[h] - away[h]),
            float(ours[h]),
            float(idle[h]),
            float(away[h]),
        )
        for h in range(hours)
    ]
    left, number = float(ours.sum()), 0
    while left > 0:
        number += 1
        width, long_h = int(random.integers(15, 300)), float(random.uniform(0.5, 6.0))
        left -= width * long_h
        began = start + int(random.random() * (end - start - long_h * HOUR_US))
        ended = began + int(long_h * HOUR_US)
        slot = width * (ended - began)
        found["allocations"].append((
            site, f"{site}-{start // HOUR_US}-{number}", str(3_000_000 + number),
            "FAILED" if random.random() < 0.02 else "COMPLETED", width, CORES[site], ended, "",
            int(slot * random.uniform(OCCUPIED - 0.07, OCCUPIED + 0.07)),
            slot, began, ended,
        ))  # fmt: skip
