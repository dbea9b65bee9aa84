"""`top` shows the rate of a campaign that runs, at its first look; `jobs` folds the workers of an Executor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worlds.home.homes import Home, started_home, wait_for

from tidemill.cli.jobs.jobs import folded
from tidemill.client import Client
from tidemill.model.campaign.workers import WORKER_NAME
from tidemill.model.job import JobSpec
from tidemill.wire.api import JobRow


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def test_top_shows_the_rate_of_a_campaign_that_runs(home: Home) -> None:
    """Before, `-` wherever it was asked once."""
    client = Client(home=home.path)
    client.submit(JobSpec(command=["sleep", "0.5"], events=100_000), campaign="long")
    wait_for(lambda: client.campaign("long").events_done > 0, home.logs)

    def rate() -> str:
        lines = home.run("top", "--once").stdout.splitlines()
        end = lines[0].index("EVENTS/S") + len("EVENTS/S")
        (line,) = [each for each in lines if each.startswith("long")]
        return line[:end].split()[-1]

    wait_for(lambda: rate() != "-", home.logs)  # none is shown until the site reports a node at work
    assert float(rate()) > 0
    assert home.run("job", "cancel", str(home.jobs("long")[0].id)).returncode == 0


def row(number: int, name: str, campaign: str = "calls", owner: str = "ann") -> JobRow:
    return JobRow(
        id=number, campaign=campaign, name=name, app="", state="RUNNING", site=None, events=1, events_done=0,
        events_failed=0, events_leased=1, priority=0, created_us=0, started_us=None, ended_us=None, reason="",
        owner=owner,
    )  # fmt: skip


def test_workers_of_a_campaign_are_one_group_and_all_other_jobs_stand_alone() -> None:
    rows = [
        row(9, WORKER_NAME),
        row(8, "fit"),
        row(7, WORKER_NAME),
        row(6, WORKER_NAME, "other"),
        row(5, WORKER_NAME, owner="bob"),
        row(4, "fit"),
    ]
    assert [[each.id for each in group] for group in folded(rows)] == [[9, 7], [8], [6], [5], [4]]
