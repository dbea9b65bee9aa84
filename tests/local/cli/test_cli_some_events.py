"""Half a campaign: some events of a job are canceled while they run, explained, and run after all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from tests.worlds.home.homes import Home, started_home, wait_for

from tidemill.client.client import Client
from tidemill.wire.api import JobDetail

CORES = os.cpu_count() or 1
HELD = f"2-{1 + CORES}"  #: as many as there are slots, each of which waits for ever
EVENTS = CORES + 6
SCRIPT = f"if [ $0 -ge 2 ] && [ $0 -le {1 + CORES} ]; then sleep 1000; fi; echo of $0 | tee o-$0.txt"


@pytest.fixture
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def _job(home: Home, campaign: str) -> JobDetail | None:
    rows = home.jobs(campaign)
    return Client(home=home.path).job(rows[0].id) if rows else None


def test_payloads_of_canceled_events_stop_and_all_others_run_to_the_end_of_the_campaign(home: Home) -> None:
    words = ["--name", "half", "--cores", "1", "--events", str(EVENTS), "--output", "o-{event}.txt"]
    with home.running("run", *words, "--", "sh", "-c", SCRIPT, "{event}") as run:
        wait_for(lambda: (job := _job(home, "half")) is not None and job.done == "0-1", home.logs)
        job = _job(home, "half")
        assert job is not None
        number = str(job.row.id)
        held = home.run("job", "explain", number, "--events", HELD)
        assert re.search(rf"^events? {HELD}: at site \S+ for ", held.stdout), held
        done = home.run("job", "cancel", number, "--events", f"0,{HELD}")
        assert f"{CORES} event{'s' if CORES > 1 else ''} canceled, 1 had ended already" in done.stderr, done
        _, told = run.communicate(timeout=100)
    assert run.returncode == 0, told
    assert f"COMPLETED: 6 of {EVENTS} events done, {CORES} canceled" in told
    files = sorted(path.name for path in (home.work / "tidemill-out" / "half").glob("o-*"))
    assert files == sorted(f"o-{event}.txt" for event in (0, 1, *range(2 + CORES, EVENTS)))

    said = home.run("job", "explain", number, "--events", f"0,{HELD}").stdout.splitlines()
    assert said == ["event 0: done", f"event{'s' if CORES > 1 else ''} {HELD}: canceled by the owner"]
    logs = home.run("job", "logs", number, "--events", "1,2")
    assert logs.stdout == "of 1\n"
    assert "event 1: done" in logs.stderr
    assert "event 2: canceled by the owner; it has no log" in logs.stderr

    refused = home.run("job", "retry", number, "--events", "1-2")
    assert (refused.returncode, "are done and cannot be retried: 1" in refused.stderr) == (2, True), refused
    assert home.run("job", "retry", number, "--events", "2").returncode == 0
    wait_for(lambda: (job := _job(home, "half")) is not None and job.leased == "2", home.logs)
    assert home.run("job", "cancel", number, "--events", "2").returncode == 0
    ended = home.run("wait", number)
    assert ended.returncode == 0, ended


def test_a_list_of_events_that_cannot_be_meant_is_refused_with_what_to_write(home: Home) -> None:
    assert home.run("run", "--name", "two", "--events", "2", "--", "true").returncode == 0
    for words, said in (
        (["1", "--events", "1-x"], "`1-x` is not an interval"),
        (["1", "2", "--events", "1"], "needs one job: events are numbered within a job"),
        (["1", "--events", "1"], "events of job 1 cannot be canceled: the job is COMPLETED"),
        (["--campaign", "two", "--events", "5"], "job 1 has no event 5"),
    ):
        done = home.run("job", "cancel", *words)
        assert (done.returncode, said in done.stderr) == (2, True), done
    assert "job 1 has no event 7" in home.run("job", "explain", "1", "--events", "7").stderr
