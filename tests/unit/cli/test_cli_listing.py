"""Workers of an Executor stand in one line of `tidemill jobs`."""

from __future__ import annotations

from tidemill.cli.jobs.listing import folded
from tidemill.model.workers import WORKER_NAME
from tidemill.wire.api import JobRow


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
