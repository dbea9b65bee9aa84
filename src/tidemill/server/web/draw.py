"""The pages' drawings: a machine's tide, a job's life line and its events, bars. Pure.

Every drawing names itself to screen readers, and a table or sentence of the page says the same in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from tidemill.charts import bars
from tidemill.charts.bars import Bar
from tidemill.charts.svg import Frame, rect, stepped, stretched
from tidemill.charts.time import clock_marks
from tidemill.model.intervals import IntervalSet
from tidemill.model.quantities import count_text
from tidemill.server.core.site_views import TideSeries
from tidemill.wire.api import Attempt, FailureRow, JobRow

WIDTH = 1_000
SEEN_MIN = 4  #: a single failed event among millions is still seen
ROWS_MAX = 16  #: attempts that a life line shows, the newest
TICKS_MAX = 60
LAYERS = ("regular", "ours", "idle", "away")
TRACK = rect(Frame(0, 0, WIDTH, 10), kind="track")
_ATTEMPT = {"ACTIVE": "main", "SETTLED": "good", "RELEASED": "soft", "LOST": "bad"}


def tide(series: TideSeries, title: str) -> Markup:
    """Nodes over time in four layers, with axes."""
    top = _top(series)
    ticks = [top * (4 - k) / 4 for k in range(5)]
    up = "".join(f"<span>{each:,.0f}</span>" if each == int(each) else "<span></span>" for each in ticks)
    lines = [f'<path class="grid" d="M0 {25 * k}H{WIDTH}"/>' for k in range(5)]
    drawn = stretched(WIDTH, 100, [*_layers(series, top, Frame(0, 0, WIDTH, 100)), *lines])
    axis = _axis(series.start * 60.0, series.step * 60 * len(series.points))
    return Markup(
        f'<div class="tide" role="img" aria-label="{escape(title)}"><div class="up" aria-hidden="true">{up}</div>'
        f"{drawn}{axis}</div>"
    )


def spark(series: TideSeries, title: str) -> Markup:
    """The tide of a site, small and without axes."""
    drawn = _layers(series, _top(series), Frame(0, 0, 240, 44))
    return Markup(stretched(240, 44, drawn, title=title, kind="spark"))


def _top(series: TideSeries) -> float:
    return max((sum(point) for point in series.points if point), default=1.0) or 1.0


def _layers(series: TideSeries, top: float, place: Frame) -> Iterator[str]:
    step = place.wide / max(1, len(series.points))
    yield rect(place, kind="track")
    for first, run in _runs(series.points):
        stretch = Frame(place.left + first * step, place.above, step * len(run), place.high)
        floor = [0.0] * len(run)
        for k, name in enumerate(LAYERS):
            roof = [low + point[k] for low, point in zip(floor, run, strict=True)]
            if roof != floor:
                yield f'<path class="layer {name}" d="{stepped(floor, roof, place=stretch, top=top)}"/>'
            floor = roof


def _runs(
    points: Sequence[tuple[float, float, float, float] | None],
) -> Iterator[tuple[int, list[tuple[float, float, float, float]]]]:
    run: list[tuple[float, float, float, float]] = []
    for k, point in enumerate([*points, None]):
        if point is not None:
            run.append(point)
        elif run:
            yield k - len(run), run
            run = []


# ---- a job ---------------------------------------------------------------------------------------------------------


class LifeStretch(NamedTuple):
    """A stretch of a life line, in microseconds."""

    name: str
    begin: int
    end: int
    kind: str
    words: str


def life_line(
    row: JobRow, attempts: Sequence[Attempt], failures: Sequence[FailureRow], now_us: int
) -> Markup:
    """A job from its submission to its end: when it waited, each attempt, each failure."""
    end = max(row.ended_us or now_us, row.created_us + 1)
    stretches = [
        LifeStretch("waits", row.created_us, row.started_us or end, "idle", "waited for its first lease"),
        *(
            LifeStretch(
                each.site or "?", each.leased_us, each.ended_us or end, _ATTEMPT.get(each.state, "soft"),
                f"lease {each.lease} at {each.site}: {each.state.lower()} {each.reason}".rstrip(),
            )
            for each in attempts[-ROWS_MAX:]
        ),
    ]  # fmt: skip
    scale = WIDTH / (end - row.created_us)
    ended = f", {row.state.lower()} in the end" if row.ended_us else ", not ended yet"
    title = f"Life of job {row.id}: {len(attempts)} attempts, {len(failures)} failures{ended}"
    parts = [f'<div class="life" role="img" aria-label="{escape(title)}">']
    for bar in stretches:
        x = min(max(0, bar.begin - row.created_us) * scale, WIDTH - 3)
        width = min(max(3.0, (bar.end - bar.begin) * scale), WIDTH - x)
        drawn = [TRACK, rect(Frame(x, 0, width, 10), kind=bar.kind, title=bar.words)]
        parts.append(f"<span>{escape(bar.name)}</span>{stretched(WIDTH, 10, drawn)}")
    ticks = [
        rect(
            Frame(min((each.evidence.at_us - row.created_us) * scale, WIDTH - 3), 0, 3, 10),
            kind="bad",
            title=f"{each.evidence.failure}: {each.evidence.message[:120]}",
        )
        for each in failures[:TICKS_MAX]
        if row.created_us <= each.evidence.at_us <= end
    ]
    if ticks:
        parts.append(f"<span>failures</span>{stretched(WIDTH, 10, ticks)}")
    parts.append(_axis(row.created_us / 1e6, (end - row.created_us) / 1e6))
    return Markup("".join([*parts, "</div>"]))


def strip(row: JobRow, done: str, failed: str, attempts: Sequence[Attempt]) -> Markup:
    """All events of a job in one bar: done, failed, leased, open."""
    width = WIDTH
    cells = [""] * width
    leased = [(each.first, each.first + each.count) for each in attempts if each.state == "ACTIVE"]
    for kind, pieces in (
        ("main", leased),
        ("good", list(IntervalSet.parse(done))),
        ("bad", list(IntervalSet.parse(failed))),
    ):
        for first, end in pieces:
            low = int(first * width / row.events)
            least = SEEN_MIN if kind == "bad" else 1
            low = min(low, width - least)
            high = min(width, max(low + least, int(end * width / row.events)))
            cells[low:high] = [kind] * (high - low)
    title = (
        f"{row.events:,} events: {row.events_done:,} done, {row.events_failed:,} failed, "
        f"{row.events_leased:,} leased"
        + (f", {row.events_canceled:,} canceled" if row.events_canceled else "")
    )
    parts = [rect(Frame(0, 0, width, 18), kind="track")]
    begin = 0
    for k in range(1, width + 1):
        if k == width or cells[k] != cells[begin]:
            if cells[begin]:
                parts.append(rect(Frame(begin, 0, k - begin, 18), kind=cells[begin]))
            begin = k
    return Markup(stretched(width, 18, parts, title=title, kind="strip"))


def progress(done: float, failed: float, leased: float, whole: float) -> Markup:
    """A small bar; the figures beside it say the same."""
    found = [Bar("", done, "", "good"), Bar("", failed, "", "bad"), Bar("", leased, "", "main")]
    return Markup(bars.shares(found, whole=whole, kind="progress"))


def shares(parts_: Sequence[tuple[str, float, str]], title: str) -> Markup:
    """A bar cut into shares: (name, value, class)."""
    found = [Bar(name, value, count_text(value), kind) for name, value, kind in parts_]
    return Markup(bars.shares(found, title=title))


def _axis(start_s: float, span_s: float) -> str:
    marks = [
        f'<span class="{"more" if k % 2 else "mark"}">{words}</span>'
        for k, words in enumerate(clock_marks(start_s, span_s))
    ]
    return f'<div class="axis" aria-hidden="true">{"".join(marks)}</div>'
