"""A real slurmdbd with 20,000 jobs: what sacct says window by window, a dump, and the simulator agree."""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from extensions.study.tests.slurmdbd.slurm_database import (
    CANCELED,
    COMPLETED,
    REQUEUED,
    RUNNING,
    Record,
    SlurmDatabase,
)

pytestmark = pytest.mark.timeout(400)  #: the first test waits for MariaDB, slurmdbd and 20,000 records
NODES, CORES = 128, 16
COUNT = 20_000
DAY_S = 86_400
BEGIN_S = int(datetime(2026, 7, 6, tzinfo=UTC).timestamp())
RUNS = ("--nodes", str(NODES), "--seeds", "1", "--replicas", "1", "--policy", "yield")
EVENT_S = 3600.0


def at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def past(count: int) -> list[Record]:
    """Records as first come, first served starts their jobs: single jobs, arrays, jobs that are requeued after a while,
    some that are canceled before their start, and those that still run when the log is written."""
    chance = Random(16)
    waiting: list[tuple[int, int, int, int, tuple[int, int] | None]] = []  # (submit, id, width, run, array)
    found: list[Record] = []
    ends, submit, id, earliest = [0] * NODES, BEGIN_S, 0, 0
    while len(found) < count:
        while len(waiting) < 60:  # more than an array has: what comes next is known to be the next
            submit += 1 + int(chance.expovariate(1 / 500))
            width, tasks = 2 ** chance.randint(0, 6), chance.choice([1, 1, 1, 1, 1, 12])
            first = id = id + 1
            for task in range(tasks):
                run = int(chance.uniform(300, 5500))
                array = (first, task) if tasks > 1 else None
                heapq.heappush(waiting, (submit, first + task, width if tasks == 1 else 1, run, array))
            id += tasks - 1
        came, number, width, run, array = heapq.heappop(waiting)
        limit = int(run * chance.uniform(1.1, 3) / 60) + 1
        job = partial(
            Record, id=number, submit_s=came, nodes=width, cores=width * CORES, limit_min=limit, array=array
        )
        if chance.random() < 0.02:
            gone = came + int(chance.uniform(1, 500))
            found.append(job(start_s=gone, end_s=gone, state=CANCELED))
            continue
        ends.sort()
        start = earliest = max(earliest, came, ends[width - 1])
        state = COMPLETED
        if array is None and chance.random() < 0.02:
            run, state = max(60, run // 3), REQUEUED
            heapq.heappush(waiting, (start + run, number, width, run * 2, None))
        ends[:width] = [start + run] * width
        found.append(job(start_s=start, end_s=start + run, state=state))
    return found


def still_running(records: list[Record], now_s: int) -> list[Record]:
    """What slurmdbd has at this time: nothing that was submitted later, no end that is to come."""
    begun = [each for each in records if each.start_s < now_s]
    return [replace(each, end_s=0, state=RUNNING) if each.end_s > now_s else each for each in begun]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """20,000 of them, seen a minute after the last start."""
    made = past(COUNT)
    return still_running(made, made[-1].start_s + 60)


@pytest.fixture(scope="module")
def database(records: list[Record]) -> Iterator[SlurmDatabase]:
    made = SlurmDatabase()
    try:
        made.load(records)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def span(records: list[Record]) -> tuple[str, str]:
    """Whole seconds before the first and after the last that is recorded."""
    return at(BEGIN_S), at(max(max(each.submit_s, each.start_s, each.end_s) for each in records) + 1)


@pytest.fixture(scope="module")
def dump(database: SlurmDatabase, span: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the how-to's command writes of the same time."""
    path = tmp_path_factory.mktemp("dump") / "sacct.txt"
    path.write_text(database.sacct("-S", span[0], "-E", span[1]))
    return path


def unnumbered(remark: str) -> str:
    """Without the number of a line: windows of sacct have more lines than a dump."""
    return remark.partition(", first at line")[0]


def document(database: SlurmDatabase, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tidemill.cli.main", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=database.env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def asked(database: SlurmDatabase, span: tuple[str, str]) -> dict[str, Any]:
    """The report that asks slurmdbd by itself."""
    words = ("--since", f"{span[0]}Z", "--until", f"{span[1]}Z", "--event-length", f"{EVENT_S:g}s")
    return document(database, "report", "opportunity", *words, *RUNS)


def test_every_record_of_slurmdbd_is_read_once(
    records: list[Record], asked: dict[str, Any], dump: Path
) -> None:
    assert len(records) > COUNT * 0.99
    assert len(dump.read_text().splitlines()) == 1 + len(records)
    ran = [each for each in records if each.state != CANCELED]
    assert asked["jobs"] == len(ran)
    kinds = {each.state for each in records}
    assert kinds == {COMPLETED, REQUEUED, CANCELED, RUNNING}
    assert sum(each.array is not None for each in records) > COUNT / 4
    requeued = sum(each.state == REQUEUED for each in records)
    assert requeued > 100
    assert asked["remarks"][0].startswith(f"{requeued:,} lines with a further run of a requeued job")


def test_idle_node_hours_are_those_of_the_records(records: list[Record], asked: dict[str, Any]) -> None:
    idle = asked["idle"]
    first, last = idle["start_s"], idle["end_s"]
    busy = sum(
        each.nodes * max(0, min(each.end_s or last, last) - max(each.start_s, first))
        for each in records
        if each.state != CANCELED
    )

    assert last - first > 30 * DAY_S
    assert idle["idle_node_h"] * 3600 == pytest.approx(NODES * (last - first) - busy, rel=1e-9)


def test_the_report_of_slurmdbd_equals_that_of_a_dump(
    database: SlurmDatabase, asked: dict[str, Any], dump: Path
) -> None:
    read = document(database, "report", "opportunity", str(dump), "--event-length", f"{EVENT_S:g}s", *RUNS)

    assert {key for key in asked if asked[key] != read[key]} <= {"log", "made_us", "remarks"}
    assert [unnumbered(each) for each in asked["remarks"]] == [unnumbered(each) for each in read["remarks"]]


def test_the_report_of_slurmdbd_agrees_with_simulate(
    database: SlurmDatabase, asked: dict[str, Any], dump: Path
) -> None:
    words = ("--kind", "sacct", "--event-s", str(EVENT_S), *RUNS)
    simulated = document(database, "simulate", str(dump), *words)

    (found,) = asked["found"]
    same = simulated["policies"]["yield"]
    assert asked["idle_share"] == simulated["idle_share"]
    keys = ("useful", "useful_low", "useful_high", "occupied", "wait_change", "wait_s", "by_size")
    assert {key: found[key] for key in keys} == {key: same[key] for key in keys}


def test_a_slurmdbd_that_does_not_answer_is_reported_in_its_words(
    database: SlurmDatabase, span: tuple[str, str]
) -> None:
    command = [sys.executable, "-m", "tidemill.cli.main", "report", "opportunity", "--since", f"{span[0]}Z"]

    with database.down():
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=250, check=False, env=database.env
        )

    assert done.returncode == 3
    assert "`sacct " in done.stderr
    assert "Connection refused" in done.stderr
    assert "hint: is there a slurmdbd" in done.stderr
    assert len(database.sacct("-S", span[0], "-E", span[1]).splitlines()) > COUNT * 0.99
