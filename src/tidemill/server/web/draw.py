"""Drawings as SVG, made by the server: a machine's tide, a job's life line and its events, bars. Pure.

Colours come from the style sheet by class; every drawing names itself to screen readers, and a table or sentence of the
page says the same in words. No style attributes: the pages' security policy forbids them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup, escape

from tidemill.model.intervals import IntervalSet
from tidemill.server.core.site_views import TideSeries
from tidemill.wire.api import Attempt, FailureRow, JobRow

WIDTH = 1_000
SEEN_MIN = 4  #: a single failed event among millions is still seen
ROWS_MAX = 16  #: attempts that a life line shows, the newest
TICKS_MAX = 60
LAYERS = ("regular", "ours", "idle", "away")
_ATTEMPT = {"ACTIVE": "main", "SETTLED": "good", "RELEASED": "soft", "LOST": "bad"}


def tide(found: TideSeries, title: str) -> Markup:
    """Nodes over time in four layers, with axes."""
    top = _top(found)
    ticks = "".join(f"<span>{top * (4 - k) / 4:,.4g}</span>" for k in range(5))
    lines = "".join(f'<path class="grid" d="M0 {25 * k}H{WIDTH}"/>' for k in range(5))
    drawn = "".join(_layers(found, top, box=(0, 0, WIDTH, 100)))
    axis = _axis(found.start * 60.0, found.step * 60 * len(found.points))
    return Markup(
        f'<div class="tide" role="img" aria-label="{escape(title)}"><div class="up" aria-hidden="true">{ticks}</div>'
        f"{_open(WIDTH, 100)}{drawn}{lines}</svg>{axis}</div>"
    )


def spark(found: TideSeries, title: str) -> Markup:
    """The same, small and without axes."""
    drawn = "".join(_layers(found, _top(found), box=(0, 0, 240, 44)))
    return Markup(f"{_open(240, 44, title, 'spark')}{drawn}</svg>")


def _top(found: TideSeries) -> float:
    return max((sum(point) for point in found.points if point), default=1.0) or 1.0


def _layers(found: TideSeries, top: float, *, box: tuple[float, float, float, float]) -> Iterator[str]:
    left, above, wide, high = box
    step = wide / max(1, len(found.points))
    yield f'<rect class="track" x="{left}" y="{above}" width="{wide}" height="{high}"/>'
    for first, run in _runs(found.points):
        floor = [0.0] * len(run)
        for k, name in enumerate(LAYERS):
            roof = [low + point[k] for low, point in zip(floor, run, strict=True)]
            if roof != floor:
                d = _band(floor, roof, (left + first * step, step), (above, high, top))
                yield f'<path class="layer {name}" d="{d}"/>'
            floor = roof


def _band(
    floor: Sequence[float], roof: Sequence[float], across: tuple[float, float], up: tuple[float, float, float]
) -> str:
    """A stepped area between two lines: along the roof, and back along the floor."""
    left, step = across
    above, high, top = up
    parts = [f"M{left:.1f} {above + high * (1 - floor[0] / top):.1f}"]
    for line, order in ((roof, range(len(roof))), (floor, range(len(floor) - 1, -1, -1))):
        last = None
        for k in order:
            y = f"{above + high * (1 - line[k] / top):.1f}"
            x = f"{left + (k + (line is roof)) * step:.1f}"
            if y == last:
                parts[-1] = f"H{x}"  # as high as the step before: one line
            else:
                parts += [f"V{y}", f"H{x}"]
            last = y
    return "".join(parts) + "Z"


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
    bars = [
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
    for bar in bars:
        x = min(max(0, bar.begin - row.created_us) * scale, WIDTH - 3)
        width = min(max(3.0, (bar.end - bar.begin) * scale), WIDTH - x)
        parts.append(
            f'<span>{escape(bar.name)}</span>{_open(WIDTH, 10)}<rect class="track" width="{WIDTH}" height="10"/>'
            f'<rect class="{bar.kind}" x="{x:.1f}" width="{width:.1f}" height="10">'
            f"<title>{escape(bar.words)}</title></rect></svg>"
        )
    ticks = "".join(
        f'<rect class="bad" x="{min((each.evidence.at_us - row.created_us) * scale, WIDTH - 3):.1f}" width="3" '
        f'height="10"><title>{escape(each.evidence.failure)}: {escape(each.evidence.message[:120])}</title></rect>'
        for each in failures[:TICKS_MAX]
        if row.created_us <= each.evidence.at_us <= end
    )
    if ticks:
        parts.append(f"<span>failures</span>{_open(WIDTH, 10)}{ticks}</svg>")
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
    )
    parts = [_open(width, 18, title, "strip"), f'<rect class="track" width="{width}" height="18"/>']
    begin = 0
    for k in range(1, width + 1):
        if k == width or cells[k] != cells[begin]:
            if cells[begin]:
                parts.append(f'<rect class="{cells[begin]}" x="{begin}" width="{k - begin}" height="18"/>')
            begin = k
    parts.append("</svg>")
    return Markup("".join(parts))


def progress(done: float, failed: float, leased: float, whole: float) -> Markup:
    """A small bar; the figures beside it say the same."""
    parts = ['<svg class="progress" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">']
    parts.append('<rect class="track" width="100" height="8"/>')
    x = 0.0
    for kind, value in (("good", done), ("bad", failed), ("main", leased)):
        width = 100 * value / whole if whole > 0 else 0.0
        if width > 0:
            parts.append(f'<rect class="{kind}" x="{x:.2f}" width="{min(width, 100 - x):.2f}" height="8"/>')
            x += width
    parts.append("</svg>")
    return Markup("".join(parts))


def shares(parts_: Sequence[tuple[str, float, str]], title: str) -> Markup:
    """A bar cut into shares: (name, value, class)."""
    whole = sum(value for _, value, _ in parts_) or 1.0
    parts = [_open(WIDTH, 22, title, "shares"), f'<rect class="track" width="{WIDTH}" height="22"/>']
    x = 0.0
    for name, value, kind in parts_:
        width = WIDTH * value / whole
        if width > 0:
            parts.append(
                f'<rect class="{escape(kind)}" x="{x:.1f}" width="{max(width - 1, 1):.1f}" height="22">'
                f"<title>{escape(name)}: {value:,.0f}</title></rect>"
            )
        x += width
    parts.append("</svg>")
    return Markup("".join(parts))


def _open(width: int, height: int, title: str = "", kind: str = "") -> str:
    """A drawing that fills its place, however wide that is: texts stand beside it."""
    name = f'role="img" aria-label="{escape(title)}"' if title else 'aria-hidden="true"'
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" {name}>'


def _axis(start_s: float, span_s: float) -> str:
    marks = []
    for k in range(5):
        at = datetime.fromtimestamp(start_s + span_s * k / 4, UTC)
        words = at.strftime("%H:%M:%S" if span_s < 1800 else "%H:%M" if span_s < 86_400 else "%d %b %H:%M")
        kind = "more" if k % 2 else "mark"
        marks.append(f'<span class="{kind}">{words}</span>')
    return f'<div class="axis" aria-hidden="true">{"".join(marks)}</div>'
