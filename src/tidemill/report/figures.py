"""Figures as inline SVG: an area over time, horizontal bars. Pure; colours come from the page's style sheet.

Every figure is drawn in its own units and scaled by the browser, so it is readable on a phone; texts are SVG texts,
and each figure names itself to screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

WIDTH = 720
HEIGHT = 240
LEFT = 62
RIGHT = 14
TOP = 14
BOTTOM = 30
BARS_WIDTH = 520
BAR = 20
GAP = 10


class Bar(NamedTuple):
    """One bar: its name, its value, the text beside it, and the class that colours it."""

    name: str
    value: float
    text: str
    kind: str = "main"


def area(
    values: Sequence[float],
    *,
    start_us: int,
    bin_s: float,
    title: str,
    text: Callable[[float], str],
) -> str:
    """An area of one value per time bin; the highest bin carries its value."""
    top = nice_ceiling(max(values, default=0.0))
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = inner_w / max(1, len(values))
    points: list[tuple[float, float]] = [(LEFT, TOP + inner_h)]
    for k, value in enumerate(values):
        y = TOP + inner_h * (1 - value / top)
        points += [(LEFT + k * step, y), (LEFT + (k + 1) * step, y)]
    points.append((LEFT + inner_w, TOP + inner_h))
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [_open(WIDTH, HEIGHT, title)]
    for k in range(5):
        y = TOP + inner_h * k / 4
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + inner_w}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text(top * (4 - k) / 4)}</text>'
        )
    parts.append(f'<polygon class="area" points="{outline}"/>')
    parts.append(f'<polyline class="line" points="{outline}"/>')
    parts += _time_axis(start_us, bin_s * len(values), inner_w, TOP + inner_h)
    for k, value in enumerate(values):  # what a pointer rests on, tells its numbers
        when = _clock(start_us / 1e6 + k * bin_s, bin_s * len(values))
        parts.append(
            f'<rect class="hover" x="{LEFT + k * step:.1f}" y="{TOP}" width="{step:.1f}" height="{inner_h}">'
            f"<title>{when} UTC: {text(value)}</title></rect>"
        )
    parts.append("</svg>")
    return "".join(parts)


def bars(rows: Sequence[Bar], *, title: str, top: float | None = None) -> str:
    """Horizontal bars, one below the other, each with its name above and its value beside it."""
    highest = top or max((row.value for row in rows), default=0.0) or 1.0
    line = BAR + GAP + 16
    height = len(rows) * line + 4
    parts = [_open(BARS_WIDTH, height, title, kind="bars")]
    room = BARS_WIDTH - 130
    for k, row in enumerate(rows):
        y = k * line
        width = max(2.0, room * min(1.0, row.value / highest)) if row.value > 0 else 0.0
        parts.append(f'<text class="name" x="0" y="{y + 13}">{escape(row.name)}</text>')
        parts.append(f'<rect class="track" x="0" y="{y + 18}" width="{room}" height="{BAR}" rx="3"/>')
        parts.append(
            f'<rect class="bar {escape(row.kind)}" x="0" y="{y + 18}" width="{width:.1f}" height="{BAR}" rx="3"/>'
        )
        parts.append(f'<text class="value" x="{room + 10}" y="{y + 33}">{escape(row.text)}</text>')
    parts.append("</svg>")
    return "".join(parts)


def shares(parts_: Sequence[Bar], *, title: str) -> str:
    """One bar cut into shares, for states; the page shows the legend."""
    whole = sum(part.value for part in parts_) or 1.0
    parts = [_open(WIDTH, 28, title)]
    x = 0.0
    for part in parts_:
        width = WIDTH * part.value / whole
        if width > 0:
            parts.append(
                f'<rect class="bar {escape(part.kind)}" x="{x:.1f}" y="0" width="{max(width - 1.5, 1):.1f}" '
                f'height="26"><title>{escape(part.name)}: {escape(part.text)}</title></rect>'
            )
        x += width
    parts.append("</svg>")
    return "".join(parts)


def nice_ceiling(value: float) -> float:
    """The next 1, 2, 3, 4, 5, 6 or 8 times a power of ten: quarters of it are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.9999)


def _open(width: int, height: int, title: str, *, kind: str = "wide") -> str:
    name = escape(title, quote=True)
    box = f'class="{kind}" viewBox="0 0 {width} {height}"'
    return f'<svg {box} role="img" aria-label="{name}"><title>{name}</title>'


def _time_axis(start_us: int, span_s: float, inner_w: float, y: float) -> list[str]:
    parts = []
    for k in range(5):
        x = LEFT + inner_w * k / 4
        anchor = "start" if k == 0 else "end" if k == 4 else "middle"
        label = _clock(start_us / 1e6 + span_s * k / 4, span_s)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y + 20:.1f}" text-anchor="{anchor}">{label}</text>')
    return parts


def _clock(at_s: float, span_s: float) -> str:
    at = datetime.fromtimestamp(at_s, UTC)
    if span_s < 1800:
        return at.strftime("%H:%M:%S")
    return at.strftime("%H:%M") if span_s < 86400 else at.strftime("%d %b %H:%M")
