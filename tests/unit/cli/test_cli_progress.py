"""Why nothing happens is printed once for each cause, not once for each figure in it."""

from __future__ import annotations

import time

import pytest

from tidemill.cli.progress import PATIENCE_S, WaitingNotice
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
    assert told == ["waiting: idle, again in 12 s", "waiting: held", "waiting: idle, again in 7 s"]


def test_no_cause_is_asked_for_while_events_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def cause(_: CampaignRow) -> str | None:
        raise AssertionError("it was asked for")

    notice = WaitingNotice(cause)
    for done in range(5):
        now[0] += PATIENCE_S
        notice(row(done + 1))
