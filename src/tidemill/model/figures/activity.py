"""What ran when: events done, failures, payload time and CPU time by interval. Cost grows with intervals, not events.

`Changes` adds up: payload time and CPU time are kept as changes from one interval to the next, so that a payload of a
day touches four intervals and not 86,400. `coarser` halves the number of intervals and loses nothing of the sums.
Times are whole microseconds. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

REPORTED_S = (
    15.0  #: the server knows what payloads did within this time of their end, unless a site is unreachable
)
STEP_S = 1  #: the finest interval; coarser ones are twice, four times, ... as long

Changes = dict[int, list[int]]
"""By number of the interval since 1970: events done, failures, changes of payload time and of CPU time in us, and the
longest payload that ended there in us."""


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """What happened in an interval. `busy_us` and `cpu_us` are the same in each interval from `at_s` to the next one
    listed; the other figures are of this one only. `longest_us`: of payloads that ended in it."""

    at_s: int
    done: int
    failed: int
    busy_us: int
    cpu_us: int
    longest_us: int


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign or a job over time: intervals of `step_s` seconds, by time. Nothing is known of what is not listed."""

    step_s: int = STEP_S
    intervals: list[Interval] = []


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Payloads of a slot that ran from `started_us` to `ended_us`: `busy_us` of payload time, `cpu_us` of CPU time."""

    started_us: int
    ended_us: int
    busy_us: int
    cpu_us: int


def add(into: Changes, span: Span, *, done: int = 0, failed: int = 0) -> None:
    """Add payloads that have ended. Events count where they ended; time is spread evenly over the span."""
    last, step_us = span.ended_us // 1_000_000, 1_000_000
    at = into.get(last)
    if at is None:
        at = into[last] = [0, 0, 0, 0, 0]
    at[0] += done
    at[1] += failed
    length = span.ended_us - span.started_us
    if length > at[4]:
        at[4] = length
    first = span.started_us // step_us
    if length <= 0 or first == last:
        at[2] += span.busy_us
        at[3] += span.cpu_us
        _change(into, last + 1, -span.busy_us, -span.cpu_us)
        return
    begins, middle, whole = (first + 1) * step_us - span.started_us, last - first - 1, []
    for total in (span.busy_us, span.cpu_us):
        one = total * step_us // length
        before = total * begins // length
        whole.append((before, one, total - before - one * middle))
    (busy, busy_each, busy_rest), (cpu, cpu_each, cpu_rest) = whole
    _change(into, first, busy, cpu)
    if middle:
        _change(into, first + 1, busy_each - busy, cpu_each - cpu)
        _change(into, last, busy_rest - busy_each, cpu_rest - cpu_each)
    else:
        _change(into, last, busy_rest - busy, cpu_rest - cpu)
    _change(into, last + 1, -busy_rest, -cpu_rest)


def _change(into: Changes, at: int, busy_us: int, cpu_us: int) -> None:
    found = into.get(at)
    if found is None:
        into[at] = [0, 0, busy_us, cpu_us, 0]
    else:
        found[2] += busy_us
        found[3] += cpu_us


def merge(into: Changes, more: Mapping[int, Sequence[int]]) -> None:
    """Add changes of the same step."""
    for at, (done, failed, busy, cpu, longest) in more.items():
        found = into.get(at)
        if found is None:
            into[at] = [done, failed, busy, cpu, longest]
        else:
            found[0] += done
            found[1] += failed
            found[2] += busy
            found[3] += cpu
            found[4] = max(found[4], longest)


def coarser(changes: Mapping[int, Sequence[int]]) -> Changes:
    """The changes with intervals of twice the length.

    An interval's value is the sum f(2j) + f(2j+1) of two; its change is therefore g(2j-1) + 2 g(2j) + g(2j+1).
    """
    found: Changes = {}
    for at, (done, failed, busy, cpu, longest) in changes.items():
        times = 1 if at & 1 else 2
        merge(found, {at >> 1: (done, failed, times * busy, times * cpu, longest)})
        if at & 1 and (busy or cpu):
            _change(found, (at >> 1) + 1, busy, cpu)
    return {at: line for at, line in found.items() if any(line)}


def activity(changes: Mapping[int, Sequence[int]], step_s: int) -> Activity:
    """Changes of a step as intervals with their values."""
    intervals, busy, cpu = [], 0, 0
    for at in sorted(changes):
        done, failed, more_busy, more_cpu, longest = changes[at]
        busy, cpu = busy + more_busy, cpu + more_cpu
        intervals.append(Interval(at * step_s, done, failed, busy, cpu, longest))
    return Activity(step_s=step_s, intervals=intervals)


# ---- reading ---------------------------------------------------------------------------------------------------------


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of equal bins of `bin_s` seconds from `start_s` on. `busy`: payloads that ran on average; `cpu`: CPUs
    that they kept busy. Of `busy_until` bins both are complete: payloads that run have not reported."""

    start_s: int
    bin_s: int
    done: list[int]
    failed: list[int]
    busy: list[float]
    cpu: list[float]
    busy_until: int

    @property
    def end_s(self) -> int:
        """The end of the last bin."""
        return self.start_s + self.bin_s * len(self.done)


RECENT = 64  #: intervals whose longest payload shows how far back running ones may reach


def course(
    activities: Iterable[Activity],
    *,
    bins_max: int,
    since_s: float | None = None,
    until_s: float | None = None,
    open_at_s: float | None = None,
) -> Course | None:
    """The sum of activities in at most `bins_max` bins; None if there is nothing in that time.

    `open_at_s`: payloads may still run, and until this time all that ended have reported; None = everything has ended.
    """  # fmt: skip
    known = [each for each in activities if each.intervals]
    ends = [_last(each) for each in known]
    if not known:
        return None
    begin = min(each.intervals[0].at_s for each in known)
    end = max(ends) if open_at_s is None else max(min(int(open_at_s), 1 << 40), begin + 1)
    begin, end = max(begin, int(since_s or begin)), min(end, int(until_s if until_s is not None else end))
    if end <= begin:
        return None
    step = max(each.step_s for each in known)
    bin_s = step * -(-(end - begin) // (step * bins_max))
    begin -= begin % step
    size = -(-(end - begin) // bin_s)
    if open_at_s is not None:
        size = max(1, (end - begin) // bin_s)  # a bin that is not over yet would look like a fall
    lines: tuple[list[int], list[int], list[float], list[float]] = (
        [0] * size,
        [0] * size,
        [0.0] * size,
        [0.0] * size,
    )
    for each in known:
        _pour(each, lines, begin, bin_s)
    longest_s = 0.0
    if open_at_s is not None:
        longest_s = max(one.longest_us for each in known for one in each.intervals[-RECENT:]) / 1e6
    complete = size if open_at_s is None else max(0, min(size, int((end - longest_s - begin) // bin_s)))
    return Course(
        start_s=begin, bin_s=bin_s, done=lines[0], failed=lines[1], busy=[each / bin_s / 1e6 for each in lines[2]],
        cpu=[each / bin_s / 1e6 for each in lines[3]], busy_until=complete,
    )  # fmt: skip


def _last(activity: Activity) -> int:
    """The end of the last interval in which anything happened: one without anything may follow it."""
    last = activity.intervals[-1]
    return last.at_s + (activity.step_s if last.done or last.failed or last.busy_us or last.cpu_us else 0)


def _pour(
    activity: Activity, lines: tuple[list[int], list[int], list[float], list[float]], begin: int, bin_s: int
) -> None:
    done, failed, busy, cpu = lines
    size, step = len(done), activity.step_s
    for k, each in enumerate(activity.intervals):
        place = (each.at_s - begin) // bin_s
        if 0 <= place < size:
            done[place] += each.done
            failed[place] += each.failed
        if not (each.busy_us or each.cpu_us):
            continue
        until = activity.intervals[k + 1].at_s if k + 1 < len(activity.intervals) else each.at_s + step
        at, stop = max(each.at_s, begin), min(until, begin + size * bin_s)
        while at < stop:
            place = (at - begin) // bin_s
            upto = min(stop, begin + (place + 1) * bin_s)
            busy[place] += each.busy_us * (upto - at) / step
            cpu[place] += each.cpu_us * (upto - at) / step
            at = upto


def counted(activities: Iterable[Activity]) -> int:
    """Events done of which the time is known."""
    return sum(one.done for each in activities for one in each.intervals)


class EventRate(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second of the last `over_s` seconds."""

    per_s: float
    over_s: float


PACE_S_MIN = 60.0
PACE_SHARE = 0.1  #: of the time since the first payload: what ran last says most of what comes
PACE_PAYLOADS = 3  #: its length in units of the longest payload


def pace(activity: Activity, now_s: float) -> EventRate | None:
    """How quickly events are done now; None before one is."""
    done = [each for each in activity.intervals if each.done]
    if not done:
        return None
    first_s = activity.intervals[0].at_s
    longest_s = max(each.longest_us for each in activity.intervals[-RECENT:]) / 1e6
    over_s = max(PACE_S_MIN, PACE_SHARE * (now_s - first_s), PACE_PAYLOADS * longest_s)
    over_s = max(float(activity.step_s), min(over_s, now_s - first_s))
    recent = sum(each.done for each in done if now_s - over_s <= each.at_s < now_s)
    return EventRate(per_s=recent / over_s, over_s=over_s)
