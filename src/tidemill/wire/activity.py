"""What payloads did over time, from sites to the server: counts for nothing, and is shown to people."""

from __future__ import annotations

import msgspec

ACTIVITY_LINES_MAX = 1_000  #: intervals of one report


class ActivityLine(msgspec.Struct, frozen=True, array_like=True):
    """What is added to an interval of one second. `busy_us` and `cpu_us`: changes of payload time and CPU time from the
    interval before; see `model.figures.activity`."""

    at_s: int
    done: int
    failed: int
    busy_us: int
    cpu_us: int
    longest_us: int


class ActivityReport(msgspec.Struct, kw_only=True, tag_field="t", tag="activity"):
    """What payloads did, by interval: of the campaign of `job`, or of the job itself. Counts for nothing else."""

    n: int
    job: int
    of_job: bool
    lines: list[ActivityLine]


class RanRange(msgspec.Struct, array_like=True):
    """Events of a job that ran, as interval text; or a merge step of it. `wall_us`: payload time since the last
    report."""

    job: int
    events: str
    step: int = -1
    wall_us: int = 0


class RanReport(msgspec.Struct, kw_only=True, tag_field="t", tag="ran"):
    """What the pilots of an allocation have recorded since the last report on it: done or failed. For the audit and for
    core-hours; counts for nothing else."""

    n: int
    allocation: str
    ran: list[RanRange]
