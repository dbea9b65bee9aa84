"""The report of this machine's server, from its files, next to what the server itself reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worlds.home.homes import WAIT_S, Home, started_home

from tidemill.client import Client
from tidemill.model.job import JobSpec

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A home after two campaigns: `good` with 3 events, and `bad`, which fails."""
    with started_home() as it:
        client = Client(home=it.path)
        client.submit(JobSpec(command=["echo", "{event}"], events=3), campaign="good")
        client.submit(JobSpec(command=["false"], events=2), campaign="bad")
        assert client.wait_end("good", timeout_s=WAIT_S).events_done == 3
        assert client.wait_end("bad", timeout_s=WAIT_S).states == {"FAILED": 1}
        yield it


def test_a_server_without_jobs_says_so() -> None:
    with started_home() as it:
        done = it.run("report", "--local", "--html", "report.html")
        assert done.returncode == 0
        assert "no job has come to this server yet\n" in done.stderr
        assert "No job has come to this server yet." in (it.work / "report.html").read_text()


def test_the_files_of_a_running_server_tell_what_the_server_tells(home: Home) -> None:
    server = home.data("report")
    files = home.data("report", "--local")
    total = files["sites"][-1]
    campaigns = server["campaigns"]
    assert total["jobs"] == sum(each["jobs"] for each in campaigns) == 2
    assert total["events_done"] == sum(each["events_done"] for each in campaigns) == 3
    hours = sum(each["usage"]["wall_us"] for each in campaigns) / 3600e6
    assert total["core_hours"] == pytest.approx(hours), "slots of one core"
    assert {row["class"] for row in files["failures"]} == {"payload"}


def test_the_files_of_a_running_server_make_a_page_of_a_campaign(home: Home) -> None:
    assert home.run("report", "--local", "--campaign", "good", "--html", "report.html").returncode == 0
    assert "Campaign good" in (home.work / "report.html").read_text()
