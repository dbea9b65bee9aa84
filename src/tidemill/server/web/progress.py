"""How far a campaign or job is: rate, forecast, CPU efficiency, and charts of what its payloads did over time. Pure.

Payloads report when they end. So a page that is read while some run ends where all that ended is known, and the number
that ran is known up to the longest payload before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from tidemill.charts.svg import Frame, stepped, steps, stretched
from tidemill.charts.time import clock_marks, clock_text, nice_ceiling, whole_ceiling
from tidemill.model.figures.activity import REPORTED_S, Activity, Course, counted, course, pace
from tidemill.model.quantities import coarse_text, count_text, duration_text, figure_text, percent_text, ratio
from tidemill.wire.api import PayloadUsage

BINS_MAX = 120
WIDTH, HEIGHT = 600, 200


class ProgressCounts(NamedTuple):
    """Where a campaign or job is. `ended_us` None: some of it still waits or runs; `is_idle`: no node is at work for
    it now."""

    events: int
    done: int
    failed: int
    started_us: int | None
    ended_us: int | None
    usage: PayloadUsage
    is_idle: bool = False


class ProgressChart(NamedTuple):
    """A chart with its texts."""

    title: str
    about: str
    drawing: Markup
    top: str
    now: str
    marks: list[str]


class ProgressView(NamedTuple):
    """What a page shows. `rate`, `forecast`, `cpu`: value and explanation."""

    rate: tuple[str, str]
    forecast: tuple[str, str] | None
    cpu: tuple[str, str]
    charts: list[ProgressChart]
    remark: str


def view(activity: Activity, counts: ProgressCounts, now_us: int) -> ProgressView:
    """The view; without charts where nothing is known of when."""
    now_s = now_us / 1e6
    is_open = counts.ended_us is None
    drawn = course([activity], bins_max=BINS_MAX, open_at_s=now_s - REPORTED_S if is_open else None)
    known = counted([activity])
    remark = ""
    if drawn is not None and known < counts.done:
        remark = (
            f"The times of {count_text(counts.done - known)} of {count_text(counts.done)} events are not known: "
            "they were done in a part that ran again."
        )
    return ProgressView(
        rate=_rate(activity, counts, now_s), forecast=_forecast(activity, counts, now_s), cpu=_cpu(counts.usage),
        charts=[] if drawn is None or not known else _charts(drawn), remark=remark,
    )  # fmt: skip


def _rate(activity: Activity, counts: ProgressCounts, now_s: float) -> tuple[str, str]:
    """Events per second: of the last minutes while the job runs, of the whole time after it."""
    if counts.started_us is None or not counts.done:
        return "-", "no event is done yet"
    if counts.ended_us is None:
        now = pace(activity, now_s - REPORTED_S)
        if now is not None:
            return figure_text(now.per_s), f"in the last {coarse_text(now.over_s)}"
    took_s = ((counts.ended_us or int(now_s * 1e6)) - counts.started_us) / 1e6
    return figure_text(
        counts.done / max(took_s, 1e-6)
    ), "from start to end" if counts.ended_us else "since the start"


def _forecast(activity: Activity, counts: ProgressCounts, now_s: float) -> tuple[str, str] | None:
    left = counts.events - counts.done - counts.failed
    if counts.ended_us is not None or counts.started_us is None or left <= 0:
        return None
    if counts.is_idle:
        return "not known", "no node is at work for it now"
    now = pace(activity, now_s - REPORTED_S)
    per_s = now.per_s if now is not None else counts.done / max(1e-6, now_s - counts.started_us / 1e6)
    if not per_s:
        return "not known", "no event has ended lately"
    return f"in {coarse_text(left / per_s)}", f"{count_text(left)} events at that rate"


def _cpu(usage: PayloadUsage) -> tuple[str, str]:
    share = ratio(usage.user_us + usage.system_us, usage.wall_us)
    if share is None:
        return "-", "no payload has ended"
    return percent_text(share), "of payloads' wall time"


def _charts(course: Course) -> list[ProgressChart]:
    total, sums = 0, []
    for each in course.done:
        total += each
        sums.append(float(total))
    every = every_text(course.bin_s)
    rates = [each / course.bin_s for each in course.done]
    running = course.busy[: course.busy_until]
    charts = [
        _chart("Events done", "", sums, course, is_count=True),
        _chart("Events per second", f"Mean over {every}", rates, course),
        _chart("Payloads running", _until(course, f"Mean over {every}"), running, course),
        _chart("CPUs kept busy", f"Mean over {every}", course.cpu[: course.busy_until], course),
    ]
    if any(course.failed):
        charts.append(
            _chart("Failures", f"In {every}", [float(x) for x in course.failed], course, is_count=True)
        )
    return [each for each in charts if each is not None]


def every_text(bin_s: float) -> str:
    """`5 s`, `2 m 00 s`: the length of a bin."""
    return f"{bin_s:g} s" if bin_s < 60 else duration_text(bin_s)


def _until(course: Course, about: str) -> str:
    if course.busy_until == len(course.done):
        return about
    return f"{about}. Payloads that run now are not in it yet: each reports when it ends"


def _chart(
    title: str, about: str, values: Sequence[float], course: Course, *, is_count: bool = False
) -> ProgressChart | None:
    if not values:
        return None
    highest = max(values)
    top = whole_ceiling(nice_ceiling(highest)) if is_count else nice_ceiling(highest)
    text = (lambda value: count_text(round(value))) if is_count else figure_text
    place = Frame(0, 0, WIDTH * len(values) / len(course.done), HEIGHT)
    grid = [f'<path class="grid" d="M0 {HEIGHT * k // 4}H{WIDTH}"/>' for k in range(5)]
    outline = stepped([0.0] * len(values), values, place=place, top=top)
    edge = steps(values, place=place, top=top)
    label = f"{title}: highest {text(highest)}, last {text(values[-1])}"
    drawn = stretched(
        WIDTH, HEIGHT, [*grid, f'<path class="area" d="{outline}"/><path class="edge" d="{edge}"/>'], title=label,
        kind="lines",
    )  # fmt: skip
    span_s = course.end_s - course.start_s
    marks = [*clock_marks(course.start_s, span_s)[:4], clock_text(course.end_s, span_s)]
    return ProgressChart(title, about, Markup(drawn), text(top), text(values[-1]), marks)
