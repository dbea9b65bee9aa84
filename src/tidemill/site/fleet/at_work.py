"""Which of the jobs here no payload runs: by FLEET/at_work.json, in which leads say which jobs pilots run, and by the
agent's own book of a fleet without a lead.

For people: nothing depends on it. While a lead has not written the file, all jobs count as at work where pilots are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import read_bounded
from tidemill.model.intervals import IntervalSet
from tidemill.site.state.site_state import STEP_BASE, SiteState
from tidemill.wire.capacity import unstarted_text
from tidemill.wire.node import AtWork, job_of

NAME = "at_work.json"
BYTES_MAX = 1 << 18
JOBS_MAX = 1 << 20
READ_S = 2.0
"""Pause between two readings: an open of one file for each fleet."""


def read_at_work(fleet: Path) -> set[int] | None:
    """The jobs that pilots of a fleet run; None = its lead does not say."""
    try:
        content = read_bounded(fleet / NAME, BYTES_MAX)
        if content is None:
            return None
        jobs = IntervalSet.parse(msgspec.json.decode(content, type=AtWork).jobs)
    except (SiteError, ValueError, *UNDECODABLE):
        return None
    numbers = (number for first, end in jobs for number in range(first, end))
    found = {job_of(number) for number in islice(numbers, JOBS_MAX + 1)}
    return None if len(found) > JOBS_MAX else found


def unstarted_jobs(state: SiteState, running: set[int]) -> IntervalSet:
    """The jobs with events that are leased here, and that no pilot runs. Pure."""
    result = IntervalSet()
    for number, job in state.jobs.items():
        if number < STEP_BASE and job.open and number not in running:
            result.add(number, number + 1)
    return result


class UnstartedJobs:
    """Asks what pilots of each fleet run, every READ_S at most, and keeps that."""

    def __init__(self, running: Callable[[str], set[int] | None]) -> None:
        """`running`: the jobs that pilots of the fleet of a name run; None = it is not known."""
        self._running = running
        self._next_s = 0.0
        self._running_now: set[int] | None = None
        self._have = -1
        self._text = ""

    def text(self, state: SiteState, at_work: Iterable[str]) -> str:
        """The jobs here that no pilot runs, as interval text. `at_work`: the fleets that have pilots at work: others
        have left what they said last. Cost: one pass over the jobs here, if orders have come or leads are asked."""
        now_s = clock.monotonic_s()
        is_due = now_s >= self._next_s
        if is_due:
            self._next_s = now_s + READ_S
            self._running_now = self._read(at_work)
        if is_due or state.have != self._have:  # what has come with an order since then runs nowhere yet
            self._have = state.have
            running = self._running_now
            self._text = "" if running is None else unstarted_text(unstarted_jobs(state, running))
        return self._text

    def _read(self, fleets: Iterable[str]) -> set[int] | None:
        """The jobs that pilots of these fleets run; None = of one it is not known."""
        running: set[int] = set()
        for name in set(fleets):
            jobs = self._running(name)
            if jobs is None:
                return None
            running |= jobs
        return running
