"""How far a campaign is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidemill import clock
from tidemill.cli.terminal import say, stderr_is_terminal
from tidemill.model.quantities import count_text, duration_text, percent_text, ratio
from tidemill.printable import printable_line

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import AllocationRow, CampaignRow, SiteRow

PATIENCE_S = 8.0  #: print the cause after this time without progress
LINE_S = 10.0  #: interval of lines without a terminal
STILL_S = 60.0  #: interval of lines, and of the same cause again, while nothing ends
JOBS_SEEN = 100  #: jobs of a campaign among which one that waits is looked for
_PASSING = re.compile(r"; the next poll is (due now|in \d+ s at the latest)|(\d[\d.]* (ms|s|m|h|d)\b ?)+|\d+")
"""What changes in a cause although it stays the same one."""


class Progress:
    """Call it with the campaign's row, as often as you like. Events that failed for good count as settled; those
    that were canceled are not waited for, and count as none."""

    def __init__(self, *, what: str, quiet: bool = False) -> None:
        self._what = what
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._started_s = clock.monotonic_s()
        self._printed_s = self._started_s
        self._printed: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        if not self._quiet and stderr_is_terminal():
            self._bar, self._task = _bar(self._what)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, row: CampaignRow) -> None:
        """Show where the campaign is."""
        settled = row.events_done + row.events_failed
        if self._bar is not None:
            total = row.events - row.events_canceled
            self._bar.update(self._task, completed=settled, total=total, failed=self._others(row, ""))
        elif not self._quiet:
            self._print_line(row, settled)

    def _print_line(self, row: CampaignRow, settled: int) -> None:
        now = clock.monotonic_s()
        total = row.events - row.events_canceled
        is_news = self._printed != (settled, total) and (settled > 0 or self._printed is not None)
        ended = settled >= total and is_news
        if now - self._printed_s < (LINE_S if is_news else STILL_S) and not ended:
            return
        self._printed_s, self._printed = now, (settled, total)
        done = percent_text(ratio(settled, total))
        others = self._others(row, ", ")
        say(f"{self._what}: {count_text(settled)} of {count_text(total)} events ended ({done}){others},"
            f" {duration_text(now - self._started_s)}")  # fmt: skip

    @staticmethod
    def _others(row: CampaignRow, before: str) -> str:
        """How many failed, and how many were canceled, which are not waited for."""
        counts = ((row.events_failed, "failed"), (row.events_canceled, "canceled"))
        text = ", ".join(f"{count_text(number)} {word}" for number, word in counts if number)
        return f"{before}{text}" if text else ""


class WaitingNotice:
    """Prints why nothing happens: call it at every poll; it asks `cause` when no event was settled for a while. It
    prints a cause when it changes, and again after `STILL_S`; times and numbers that change do not count."""

    def __init__(self, cause: Callable[[CampaignRow], str | None]) -> None:
        self._cause = cause
        self._settled = 0
        self._next_s = clock.monotonic_s() + PATIENCE_S
        self._printed: str | None = None
        self._told_s = 0.0

    def __call__(self, row: CampaignRow) -> None:
        """Look at a campaign's row."""
        settled = row.events_done + row.events_failed + row.events_canceled
        now = clock.monotonic_s()
        if settled != self._settled:
            self._settled, self._next_s = settled, now + PATIENCE_S
        if now < self._next_s:
            return
        self._next_s = now + PATIENCE_S
        cause = self._cause(row)
        kind = None if cause is None else _PASSING.sub("N", cause)
        if kind is None:
            self._printed = None
        elif kind != self._printed or now - self._told_s >= STILL_S:
            self._printed, self._told_s = kind, now
            say(str(cause))


class WaitingCause:
    """What jobs of a campaign that make no progress wait for, as the server and the newest allocation show it: call it.
    It speaks of the first job that has not ended: of one that a site has, where there is one."""

    def __init__(self, client: Client, jobs: Collection[int] = ()) -> None:
        """`jobs`: of these; empty = of all that the campaign has."""
        self._client, self._jobs = client, jobs
        self._sees_allocations = True  #: submitters with a credential of their own do not

    def __call__(self, row: CampaignRow) -> str | None:
        """The cause and what ends it; None if the job waits for nothing."""
        job = self._open_job(row)
        if job is None:
            return None
        detail = self._client.job(job)
        for allocation in self._allocations(detail.row.site):
            if allocation.state == "FAILED":
                return f"site `{allocation.site}` cannot start its pilots: {allocation.reason}"
        return waiting_text(detail.waits_for, detail.waits_hint)

    def _open_job(self, row: CampaignRow) -> int | None:
        if len(self._jobs) == 1:
            return next(iter(self._jobs))
        for state in ("RUNNING", "WAITING"):
            if row.states.get(state):
                jobs = self._client.jobs(campaign=row.reference, state=state, limit=JOBS_SEEN)
                found = [each.id for each in jobs if not self._jobs or each.id in self._jobs]
                if found:
                    return min(found)
        return None

    def _allocations(self, site: str | None) -> list[AllocationRow]:
        from tidemill.wire.server_connection import NotAllowedError

        try:
            return self._client.allocations(site=site, limit=1) if self._sees_allocations else []
        except NotAllowedError:
            self._sees_allocations = False  # not asked again: the server logs each such request
            return []


def waiting_text(cause: str | None, hint: str | None) -> str | None:
    """What a job waits for, as a sentence; None of one that is at work, or has ended. `cause`: the word for scripts,
    which is shown where the server gives no sentence."""
    from tidemill.wire.api import AT_WORK

    if cause is None or cause == AT_WORK:
        return None
    return hint or cause.replace("_", " ")


def site_waits_text(site: SiteRow) -> str:
    """What the work of a site waits for, as the server shows it; empty = no work waits for nodes there."""
    from tidemill.harvest.plan.sentences import capacity_text

    return capacity_text(site.capacity, clock.now_us())


def _bar(what: str) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} events"),
        TextColumn("[red]{task.fields[failed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=False,
    )
    return bar, bar.add_task(printable_line(what), total=1, failed="")
