"""The report of this machine's server, from its files, next to what the server itself tells."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import Home

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    it = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        it.start()
        yield it
    finally:
        it.end()


def test_a_server_without_jobs_says_so() -> None:
    it = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        it.start()
        done = it.run("report", "--local", "--html", "report.html")
        assert done.returncode == 0
        assert "no job has come to this server yet\n" in done.stderr
        assert "No job has come to this server yet." in (it.work / "report.html").read_text()
    finally:
        it.end()


def test_the_files_of_a_running_server_tell_what_the_server_tells(home: Home) -> None:
    assert (
        home.run("run", "--events", "3", "--name", "good", "--", "sh", "-c", "echo {event}").returncode == 0
    )
    assert home.run("run", "--events", "2", "--name", "bad", "--", "sh", "-c", "exit 3").returncode == 1
    server = home.data("report")
    files = home.data("report", "--local")
    total = files["sites"][-1]
    campaigns = server["campaigns"]
    assert total["jobs"] == sum(each["jobs"] for each in campaigns) == 2
    assert total["events_done"] == sum(each["events_done"] for each in campaigns) == 3
    hours = sum(each["usage"]["wall_us"] for each in campaigns) / 3600e6
    assert total["core_hours"] == pytest.approx(hours), "slots of one core"
    assert {row["class"] for row in files["failures"]} == {"payload"}
    assert home.run("report", "--local", "--campaign", "good", "--html", "report.html").returncode == 0
    assert "Campaign good" in (home.work / "report.html").read_text()
