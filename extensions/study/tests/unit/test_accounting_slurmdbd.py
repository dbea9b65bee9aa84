"""Windows of sacct: each job once, whatever the windows are, and replies that are too large are asked for in parts."""

from __future__ import annotations

import pytest

from tidemill.batch.run import CommandResult
from tidemill.errors import SiteError
from tidemill_study.accounting import slurmdbd
from tidemill_study.accounting.past_jobs import Remark, Remarks

HEAD = "JobID|Submit|Eligible|Start|End|NNodes|State"
BEGIN_S = 1_792_800_000
DAY_S = 86_400


class Database:
    """What a slurmdbd has, and what sacct prints: jobs eligible before the end of a window, not ended before it."""

    def __init__(self, jobs: list[tuple[str, int, int, int]], *, lines_max: int = 1000) -> None:
        self.jobs = jobs  # (id, eligible, start, end)
        self.lines_max = lines_max
        self.windows: list[tuple[int, int]] = []

    def ask(self, command: list[str]) -> CommandResult:
        since, until = (self._seconds(command[command.index(flag) + 1]) for flag in ("-S", "-E"))
        rows = [job for job in self.jobs if job[1] < until and job[3] >= since]
        if len(rows) > self.lines_max:
            raise OverflowError("too much")
        self.windows.append((since, until))
        lines = [f"{id}|{eligible}|{eligible}|{start}|{end}|2|COMPLETED" for id, eligible, start, end in rows]
        return CommandResult("sacct", 0, "\n".join([HEAD, *lines, ""]).encode(), "", 0.1)

    @staticmethod
    def _seconds(text: str) -> int:
        from datetime import datetime

        return int(datetime.fromisoformat(f"{text}+00:00").timestamp())


def test_every_job_is_read_once_whatever_windows_it_is_in() -> None:
    jobs = [
        (str(number), at, at + 600, at + 600 + length)
        for number, (at, length) in enumerate(
            (BEGIN_S + hour * 3600, length) for hour in range(-20, 200, 7) for length in (60, 7200, 3 * DAY_S)
        )
    ]
    database = Database(jobs)
    remarks = Remarks()

    found = list(slurmdbd.jobs(BEGIN_S, BEGIN_S + 8 * DAY_S, remarks, asked=database.ask))

    wanted = [id for id, eligible, _, end in jobs if end >= BEGIN_S and eligible < BEGIN_S + 8 * DAY_S]
    assert sorted(job.id for job in found) == sorted(wanted)
    assert not remarks.count(Remark.REPEATED)
    assert len(database.windows) > 1
    assert database.windows[-1][1] == BEGIN_S + 8 * DAY_S


def test_a_reply_that_is_too_large_is_asked_for_in_parts() -> None:
    jobs = [(str(k), BEGIN_S + 600 * k, BEGIN_S + 600 * k, BEGIN_S + 600 * k + 60) for k in range(144)]
    database = Database(jobs, lines_max=50)

    found = list(slurmdbd.jobs(BEGIN_S, BEGIN_S + DAY_S, Remarks(), asked=database.ask))

    assert len(found) == 144
    assert len(database.windows) >= 3


def test_what_is_too_large_in_any_part_is_an_error_and_not_an_endless_loop() -> None:
    jobs = [(str(k), BEGIN_S, BEGIN_S, BEGIN_S + DAY_S) for k in range(60)]

    with pytest.raises(SiteError, match="even for 60 s"):
        list(slurmdbd.jobs(BEGIN_S, BEGIN_S + DAY_S, Remarks(), asked=Database(jobs, lines_max=50).ask))


def test_what_sacct_refuses_is_told_with_its_words() -> None:
    refused = CommandResult("sacct -a", 1, b"", "sacct: error: Problem talking to the database", 0.1)

    with pytest.raises(SiteError, match="Problem talking to the database"):
        list(slurmdbd.jobs(0, 10, Remarks(), asked=lambda command: refused))
