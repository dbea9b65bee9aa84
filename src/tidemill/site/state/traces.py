"""What ran in which allocation, for the audit: from records to reports. Pure; counts for nothing else."""

from __future__ import annotations

from collections import defaultdict

from tidemill.model.intervals import IntervalSet
from tidemill.node.journal import allocation_of
from tidemill.site.state import state as s
from tidemill.wire.api import RanRange, RanReport
from tidemill.wire.node import Done, Failed

RANGES_MAX = 2_000  #: in one report


class Ran:
    """Gathers the records of one read."""

    def __init__(self) -> None:
        self._events: dict[str, dict[int, IntervalSet]] = defaultdict(lambda: defaultdict(IntervalSet))

    def add(self, record: Done | Failed) -> None:
        """Events that are done or failed: their payload ran there."""
        allocation = allocation_of(record.p)
        if allocation and record.count:
            self._events[allocation][record.job].add(record.first, record.first + record.count)

    def reports(self) -> list[RanReport]:
        """One report for each allocation, several if there are many jobs."""
        found: list[RanReport] = []
        for allocation, jobs in self._events.items():
            ranges = [_range(job, str(events)) for job, events in jobs.items()]
            for at in range(0, len(ranges), RANGES_MAX):
                found.append(RanReport(n=0, allocation=allocation, ran=ranges[at : at + RANGES_MAX]))
        return found


def _range(job: int, events: str) -> RanRange:
    if job < s.STEP_BASE:
        return RanRange(job, events)
    source, step = divmod(job - s.STEP_BASE, s.STEPS_MAX)
    return RanRange(source, "", step)
