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


class PayloadTime(msgspec.Struct, frozen=True, array_like=True):
    """One record of a pilot on events of a job: when they ran, where, and what they cost. `payloads` is more than 1
    where the pilot joined several short ones of a slot, and 0 while a payload goes on to further ranges. Times:
    microseconds, `started_us` and `ended_us` since 1970."""

    first: int
    count: int
    payloads: int
    node: str
    slot: int
    started_us: int
    ended_us: int
    wall_us: int
    setup_us: int
    user_us: int
    system_us: int
    failure: str = ""  #: a FailureClass; empty = the events are done
    site: str = ""  #: set by the server


class TimesReport(msgspec.Struct, kw_only=True, tag_field="t", tag="times"):
    """When payloads of a job ran whose specification says `timed`. Counts for nothing else."""

    n: int
    job: int
    times: list[PayloadTime]


class TimesPage(msgspec.Struct, kw_only=True):
    """Payload times of a job in the order in which they arrived. `next`: ask with `after` for more; always set, so that
    a reader goes on where it was. `full`: the server keeps no more of this job."""

    times: list[PayloadTime]
    next: int
    full: bool = False
