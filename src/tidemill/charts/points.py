"""Measured points with their intervals against a number, such as a level: values in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidemill.charts.svg import Frame, drawing, label, rect
from tidemill.charts.time import HEIGHT, PLACE, WIDTH, nice_ceiling

DOT = 4.0
LABEL = 20  #: room below the numbers for the name of the axis


class Point(NamedTuple):
    """A value at `x`, and its interval."""

    x: float
    y: float
    low: float
    high: float


def points(
    found: Sequence[Point],
    *,
    labels: tuple[str, str],
    text: Callable[[float], str],
    band: tuple[float, float] | None = None,
    line: Sequence[tuple[float, float]] = (),
) -> str:
    """Points with intervals on axes that start at 0. `labels`: of the horizontal and the vertical one; `band`: an
    interval of x that is shaded; `line`: a model."""
    title = f"{labels[1]} against {labels[0]}"
    right = nice_ceiling(max((each.x for each in found), default=1.0))
    top = nice_ceiling(max((max(each.high, each.y) for each in found), default=1.0))

    def right_of(x: float) -> float:
        return PLACE.left + PLACE.wide * min(1.0, max(0.0, x / right))

    def up(y: float) -> float:
        return PLACE.below - PLACE.high * min(1.0, max(0.0, y / top))

    parts = [
        f'<path class="grid" d="M{PLACE.left} {PLACE.above + PLACE.high * k / 4:.1f}h{PLACE.wide}"/>'
        for k in range(5)
    ]
    for k in range(5):
        parts.append(label(PLACE.left - 8, up(top * k / 4) + 4, text(top * k / 4), kind="tick", anchor="end"))
        mark = f"{right * k / 4:g}"
        parts.append(label(right_of(right * k / 4), PLACE.below + 20, mark, kind="tick", anchor="middle"))
    parts.append(label(PLACE.left + PLACE.wide, PLACE.below + 42, labels[0], kind="tick", anchor="end"))
    parts.append(label(PLACE.left + 8, PLACE.above + 16, labels[1], kind="tick"))
    if band is not None:
        wide = max(2.0, right_of(band[1]) - right_of(band[0]))
        shown = f"{band[0]:.1f} to {band[1]:.1f}"
        parts.append(rect(Frame(right_of(band[0]), PLACE.above, wide, PLACE.high), kind="band", title=shown))
    if line:
        path = "L".join(f"{right_of(x):.1f} {up(y):.1f}" for x, y in line)
        parts.append(f'<path class="line" d="M{path}"/>')
    for each in found:
        x, shown = (
            right_of(each.x),
            f"{each.x:g}: {text(each.y)} ({text(each.low)} to {text(each.high)})",
        )
        parts.append(
            rect(Frame(x - 1, up(each.high), 2, max(1.0, up(each.low) - up(each.high))), kind="main")
        )
        dot = Frame(x - DOT, up(each.y) - DOT, 2 * DOT, 2 * DOT)
        parts.append(rect(dot, kind="main", title=shown, rounded=int(DOT)))
    return drawing(WIDTH, HEIGHT + LABEL, parts, title=title, kind="wide")
