"""The jobs of a PBS in figures: `qstat -B`, whose reply does not grow with the queue."""

from __future__ import annotations

import re

from tidemill.batch.polite import Budget
from tidemill.model.machine import JobCounts

_COUNTS = re.compile(r"state_count\W+(Transit:[\w: ]*)")
_EACH = re.compile(r"(\w+):(\d{1,18})\b")
_RUNNING = ("Running", "Exiting", "Begun")


def ask_counts(budget: Budget) -> JobCounts | None:
    """What waits and what runs. Raises SiteError."""
    return read_counts(budget.glance(["qstat", "-B", "-f", "-F", "json"]))


def read_counts(output: bytes) -> JobCounts | None:
    """The counts of `qstat -B -f`, JSON or text (`state_count = Transit:0 Queued:1 Held:0 Waiting:0 Running:4 Exiting:0
    Begun:1`); None where there are none. Arrays count once. Held jobs do not count: they could not start."""
    match = _COUNTS.search(output.decode(errors="replace"))
    if match is None:
        return None
    counts = {name: int(value) for name, value in _EACH.findall(match.group(1))}
    if "Queued" not in counts:
        return None
    return JobCounts(waiting=counts["Queued"], running=sum(counts.get(name, 0) for name in _RUNNING))
