"""Why nothing happens is printed once for each cause, not once for each figure in it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import pytest

from tidemill.cli.jobs.follow import JOBS_NAMED, jobs_text
from tidemill.cli.jobs.outcome import ranges_text
from tidemill.cli.jobs.wait import SHOWN, unshown_text
from tidemill.cli.progress import PATIENCE_S, Progress, WaitingNotice
from tidemill.client.outputs import DirectoryFile
from tidemill.wire.api import CampaignRow, PayloadUsage


def row(done: int) -> CampaignRow:
    return CampaignRow(
        name="c", owner="", shares=1.0, states={"RUNNING": 1}, jobs=1, events=9, events_done=done, events_failed=0,
        created_us=0, first_started_us=None, last_ended_us=None, failures={}, usage=PayloadUsage(),
    )  # fmt: skip


def test_a_cause_is_printed_again_only_where_more_than_its_numbers_have_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    causes = iter(["idle, again in 12 s", "idle, again in 4 s", None, "held", "held", "idle, again in 7 s"])
    notice = WaitingNotice(lambda _: next(causes))
    notice(row(0))
    for _ in range(6):
        now[0] += PATIENCE_S
        notice(row(0))
    told = capsys.readouterr().err.splitlines()
    assert told == ["idle, again in 12 s", "held", "idle, again in 7 s"]


def test_a_cause_that_stays_is_printed_again_each_minute_whatever_its_times_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    polls = ("due now", "in 9 s at the latest")
    notice = WaitingNotice(
        lambda _: f"asked for {int(now[0])} s ago; the next poll is {polls[int(now[0]) % 2]}"
    )
    with Progress(what="c") as progress:
        for second in range(180):
            now[0] = 101.0 + second
            notice(row(0))
            progress(row(0))
    told = capsys.readouterr().err.splitlines()
    causes = [line for line in told if line.startswith("asked for")]
    assert len(causes) == 3, told
    counts = [line for line in told if "0 of 9 events ended" in line]
    assert len(counts) == 3, "not every ten seconds while nothing ends"


def test_no_cause_is_asked_for_while_events_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def cause(_: CampaignRow) -> str | None:
        raise AssertionError("it was asked for")

    notice = WaitingNotice(cause)
    for done in range(5):
        now[0] += PATIENCE_S
        notice(row(done + 1))


def test_events_that_failed_have_ended_and_are_not_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(what="picky") as progress:
        progress(msgspec.structs.replace(row(8), events_failed=1))
    assert "picky: 9 of 9 events ended (100 %), 1 failed, " in capsys.readouterr().err


def test_canceled_events_are_neither_ended_nor_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(what="half") as progress:
        progress(msgspec.structs.replace(row(5), events_canceled=4))
    assert "half: 5 of 5 events ended (100 %), 4 canceled, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        (range(12), "val-0.txt ... val-11.txt"),
        ([k for k in range(12) if k != 7], "val-0.txt ... val-6.txt, val-8.txt ... val-11.txt"),
        ([0, 2], "val-0.txt, val-2.txt"),
        (range(0, 40, 2), "val-0.txt, val-2.txt, val-4.txt, val-6.txt, ..., val-38.txt"),
    ],
)
def test_files_are_named_as_a_range_only_where_none_is_missing(events: Sequence[int], shown: str) -> None:
    files = [
        DirectoryFile(name=f"val-{event}.txt", size_bytes=1, sha256="", first=event, count=1)
        for event in events
    ]
    assert ranges_text(files) == shown


def test_jobs_are_named_as_a_range_only_where_they_are_one() -> None:
    assert jobs_text([7]) == "job 7"
    assert jobs_text([9, 7, 8]) == "3 jobs, 7 to 9,"
    assert jobs_text([1, 6]) == "2 jobs, 1 and 6,"
    assert jobs_text([1, 3, 6]) == "3 jobs, 1, 3 and 6,"
    many = range(1, 2 * JOBS_NAMED + 2, 2)
    assert jobs_text(many) == f"{len(many)} jobs, of 1 to {many[-1]},"


def test_campaigns_whose_results_are_not_printed_are_counted() -> None:
    names = [f"c{k}" for k in range(SHOWN + 3)]
    assert unshown_text(names[-1:]) == (
        f"`tidemill outputs ls --campaign {names[-1]}` lists the results of one more campaign"
    )
    assert unshown_text(names[SHOWN:]).endswith("lists results of the next of 3 more campaigns")
    assert f"--campaign {names[SHOWN]}`" in unshown_text(names[SHOWN:])
