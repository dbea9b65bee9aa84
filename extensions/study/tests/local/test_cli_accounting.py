"""`tidemill report accounting`: a server's allocations against sacct, from a file and from the program itself."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.worlds.services.pages_world import SiteSide
from tests.worlds.services.server_process import Server

from tidemill.wire.api import AllocationReport

FIRST_S = int(datetime(2026, 10, 1, tzinfo=UTC).timestamp())
COUNT = 1203  #: more than a page of the API
HEAD = "JobID|JobName|User|Account|Submit|Eligible|Start|End|ElapsedRaw|NNodes|NCPUS|State|TotalCPU"


def times(number: int) -> tuple[int, int]:
    """An hour each, one after the other through the month, the last in the next one."""
    start_s = FIRST_S + number * 2200
    return start_s, start_s + 3600


def at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def line(number: int, *, late_s: int = 0, name: str = "") -> str:
    start_s, end_s = times(number)
    account = "grant" if number % 3 == 0 else "free"
    first = at(start_s + late_s)
    name = name or f"tm-lrz-e1-{number}"
    fields = [str(9000 + number), name, "tide", account, first, first, first, at(end_s), str(3600 - late_s)]
    return "|".join([*fields, "4", "32", "COMPLETED", "00:50:00"])


def report(number: int) -> AllocationReport:
    start_s, end_s = times(number)
    return AllocationReport(
        n=0, name=f"tm-lrz-e1-{number}", batch_id=str(9000 + number), state="COMPLETED", nodes=4, cores=8,
        at_us=end_s * 1_000_000, reason="", busy_us=0, slot_us=0, hosts=["n1", "n2", "n3", "n4"],
        started_us=start_s * 1_000_000, ended_us=end_s * 1_000_000,
    )  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tm-") as place:
        made = Server(Path(place) / "server").ready()
        site = SiteSide(made, "lrz", ("sim",), 4)
        for first in range(0, COUNT, 200):
            site.sync(*(report(number) for number in range(first, min(COUNT, first + 200))))
        yield made
        assert made.stop() == 0


def tidemill(server: Server, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else dict(os.environ)
    command = [
        sys.executable,
        "-m",
        "tidemill.cli.main",
        "report",
        "accounting",
        "--month",
        "2026-10",
        *words,
    ]
    command += ["--server", f"unix:{server.folder}/api.sock"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environ)


def dump(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "sacct.txt"
    path.write_text("".join(f"{each}\n" for each in (HEAD, *lines)))
    return str(path)


def test_a_month_that_agrees_has_its_hours_apart_its_table_and_its_message(
    server: Server, tmp_path: Path
) -> None:
    table, message = tmp_path / "october.csv", tmp_path / "october.apel"
    strangers = [
        line(number, name="hers").replace("|tide|", "|ada|").replace("9", "5", 1) for number in range(50)
    ]
    done = tidemill(
        server, "--sacct", dump(tmp_path, *strangers, *(line(number) for number in range(COUNT))), "--granted", "grant",
        "--csv", str(table), "--apel", str(message), "--vo", "atlas", "--benchmark", "10", "--json",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["site"], data["is_agreed"], data["differing"]) == ("lrz", True, [])
    assert [
        (each["kind"], each["allocations"], each["node_h_here"], each["node_h_there"])
        for each in data["totals"]
    ] == [
        ("granted", 401, 1604, 1604),
        ("harvested", 802, 3208, 3208),
        ("all", COUNT, 4 * COUNT, 4 * COUNT),
    ]
    assert data["totals"][-1]["core_h_here"] == data["totals"][-1]["core_h_there"] == 32 * COUNT
    assert len(list(csv.DictReader(table.read_text().splitlines()))) == COUNT
    assert f"NumberOfJobs: {COUNT}\n%%\n" in message.read_text()
    assert f"WallDuration: {3600 * COUNT}\n" in message.read_text()


def test_a_month_that_differs_is_told_by_batch_id_and_ends_with_status_1(
    server: Server, tmp_path: Path
) -> None:
    lines = [line(number, late_s=600 if number == 7 else 0) for number in range(COUNT) if number % 50]

    done = tidemill(server, "--sacct", dump(tmp_path, *lines))

    assert done.returncode == 1
    assert "lrz, 2026-10: the totals differ by 2.1" in done.stdout
    assert done.stdout.count("only in Tidemill") == 25
    assert "starts differ" in next(each for each in done.stdout.splitlines() if each.startswith("9007"))


def test_sacct_is_run_itself_where_no_file_is_named(server: Server, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "sacct"
    fake.parent.mkdir()
    body = "\n".join([HEAD, *(line(number) for number in range(COUNT))])
    (tmp_path / "all.txt").write_text(body + "\n")
    fake.write_text(f'#!/bin/sh\necho "$@ $TZ" >> {tmp_path}/calls\ncat {tmp_path}/all.txt\n')
    fake.chmod(0o755)

    done = tidemill(server, "--user", "tide", path=fake.parent)

    assert done.returncode == 0, done.stderr + done.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("-u tide -D -X -P --noconvert --delimiter=\x1f -o JobID,")
    assert all(each.endswith(" UTC") for each in calls)
    assert "-S 2026-10-01T00:00:00" in calls[0]
    assert "-E 2026-11-01T00:00:00" in calls[-1]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("--apel", "x.apel"), 2, "--apel needs --vo and --benchmark"),
        (("--sacct", "/nowhere/at/all"), 2, "failed to read `/nowhere/at/all`"),
        (("--site", "lzr"), 2, "there is no site `lzr`"),
        (("--dir", "/nowhere"), 2, "/nowhere/site.toml"),
    ],
)
def test_what_cannot_be_is_said(
    server: Server, tmp_path: Path, words: tuple[str, ...], status: int, text: str
) -> None:
    more = () if "--sacct" in words else ("--sacct", dump(tmp_path, line(1)))
    done = tidemill(server, *words, *more)

    assert (done.returncode, text in done.stderr) == (status, True), done.stderr
