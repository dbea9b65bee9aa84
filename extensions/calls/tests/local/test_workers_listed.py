"""Workers of an Executor are one line of `tidemill jobs`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.worlds.home.homes import Home, started_home, wait_for

from tidemill import Client, Executor


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def test_workers_of_an_executor_are_one_line_unless_all_are_asked_for(home: Home) -> None:
    client = Client(home=home.path)
    with Executor(client, workers=2, campaign="calls") as pool:
        calls = [pool.submit(time.sleep, 3) for _ in range(2)]
        wait_for(lambda: len(home.jobs("calls")) == 2, home.logs)
        for call in calls:
            call.result(120)
    numbers = [each.id for each in home.jobs("calls")]
    lines = [each for each in home.run("jobs", "--campaign", "calls").stdout.splitlines() if "calls" in each]
    assert [each.split()[0] for each in lines] == [f"{min(numbers)}..{max(numbers)}"]
    assert "2 workers" in lines[0]
    lines = home.run("jobs", "--campaign", "calls", "--all").stdout.splitlines()
    assert len([each for each in lines if "executor-worker" in each]) == 2
    assert len(home.data("jobs", "--campaign", "calls")) == 2
