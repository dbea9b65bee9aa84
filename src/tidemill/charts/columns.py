"""Columns side by side: one value for each step of an axis that has no clock, such as the hours of a day."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill.charts.svg import Frame, drawing, rect
from tidemill.charts.time import HEIGHT, PLACE, WIDTH, nice_ceiling, ticks


def columns(
    values: Sequence[float | None],
    *,
    names: Sequence[str],
    across: Sequence[str],
    title: str,
    text: Callable[[float], str],
) -> str:
    """A drawing for a page; None = no value. `names`: of columns, shown by a pointer; `across`: five texts below."""
    top = nice_ceiling(max((each for each in values if each is not None), default=0.0))
    step = PLACE.wide / max(1, len(values))
    gap = min(3.0, step * 0.2)
    parts = [
        f'<path class="grid" d="M{PLACE.left} {PLACE.above + PLACE.high * k / 4:.1f}h{PLACE.wide}"/>'
        for k in range(5)
    ]
    parts += ticks(PLACE, across=across, up=[text(top * k / 4) for k in range(5)])
    for k, value in enumerate(values):
        if value is None:
            continue
        high = PLACE.high * min(1.0, value / top)
        place = Frame(PLACE.left + k * step + gap / 2, PLACE.below - high, step - gap, high)
        parts.append(rect(place, kind="main", title=f"{names[k]}: {text(value)}"))
    return drawing(WIDTH, HEIGHT, parts, title=title, kind="wide")
