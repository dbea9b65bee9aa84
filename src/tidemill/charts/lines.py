"""Thin lines over time, one for each member of a group, and their mean: a small chart of many that share an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from tidemill.charts.svg import stretched

WIDTH, HEIGHT = 600, 200
GAPS = 3.0  #: a line breaks where points are missing for more than this multiple of their median distance


class TimeLine(NamedTuple):
    """Times and values, by time."""

    name: str
    points: Sequence[tuple[float, float]]


def lines(
    members: Sequence[TimeLine], mean: TimeLine | None, *, span: tuple[float, float], top: float, title: str
) -> str:
    """A drawing that fills its place. `span`: first and last time; `top`: the value of its upper edge."""
    rows = [f'<path class="grid" d="M0 {HEIGHT * k // 4}H{WIDTH}"/>' for k in range(5)]
    for each in members:
        if d := _path(each.points, span, top):
            rows.append(f'<path class="member" d="{d}"><title>{escape(each.name)}</title></path>')
    if mean is not None and (d := _path(mean.points, span, top)):
        rows.append(f'<path class="mean" d="{d}"><title>{escape(mean.name)}</title></path>')
    return stretched(WIDTH, HEIGHT, rows, title=title, kind="lines")


def _path(points: Sequence[tuple[float, float]], span: tuple[float, float], top: float) -> str:
    begin, end = span
    scale = WIDTH / max(end - begin, 1e-9)
    steps = sorted(b - a for (a, _), (b, _) in pairwise(points))
    usual = steps[len(steps) // 2] if steps else 0.0

    def pieces() -> Iterator[str]:
        last = None
        for at, value in points:
            x = round((min(max(at, begin), end) - begin) * scale)
            y = round(HEIGHT * (1 - min(1.0, max(0.0, value) / top)))
            if last is None or at - last > GAPS * usual:
                yield f"M{x} {y}h1"  # a point alone is seen too
            else:
                yield f"L{x} {y}"
            last = at

    return "".join(pieces())
