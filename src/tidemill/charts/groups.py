"""Groups of bars on a logarithmic scale, in panels one below the other: for values that lie powers of ten apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidemill.charts.svg import Frame, file, label, rect

WIDTH = 860
LEFT, ROOM = 130, 600
BAR, BETWEEN, HEAD, KEY = 14, 12, 34, 190
COLOURS = ("#5b6770", "#b8d4e8", "#1f77b4", "#f6c99b", "#e07b00", "#c3e0bd", "#2c8c3c", "#d9c4e6", "#7b3f9d")


class GroupedBar(NamedTuple):
    """A bar: its name in the key, which gives its colour too, and its value."""

    name: str
    value: float


class BarGroup(NamedTuple):
    """Bars that belong together, with the name to their left."""

    name: str
    bars: Sequence[GroupedBar]


class BarPanel(NamedTuple):
    """Groups under one head."""

    name: str
    groups: Sequence[BarGroup]


def panels(found: Sequence[BarPanel], *, title: str, text: Callable[[float], str]) -> str:
    """A drawing that is a file. All panels share the scale, from the power of ten below the least value."""
    each_bar = [bar for panel in found for group in panel.groups for bar in group.bars]
    names = list(dict.fromkeys(bar.name for bar in each_bar))
    values = [bar.value for bar in each_bar if bar.value > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    parts = [label(20, 24, title, kind="title")]
    y = 44.0
    for k, name in enumerate(names):
        x = 20 + KEY * (k % 4)
        y += 20 if k and k % 4 == 0 else 0
        parts += [rect(Frame(x, y, 12, 12), fill=_colour(k)), label(x + 17, y + 10, name)]
    y += 20
    for panel in found:
        y += HEAD
        parts.append(label(20, y - 8, panel.name, kind="title"))
        top, drawn = y, []
        for group in panel.groups:
            drawn.append(label(LEFT - 8, y + BAR * len(group.bars) / 2 + 4, group.name, anchor="end"))
            for bar in group.bars:
                share = (math.log10(max(bar.value, 10.0**low)) - low) / (high - low)
                wide = max(2.0, ROOM * share)
                drawn.append(rect(Frame(LEFT, y, wide, BAR - 2), fill=_colour(names.index(bar.name))))
                drawn.append(label(LEFT + wide + 6, y + 10, text(bar.value)))
                y += BAR
            y += BETWEEN
        for power in range(low, high + 1):
            at = LEFT + ROOM * (power - low) / (high - low)
            parts.append(rect(Frame(at, top, 1, y - top), fill="#ddd"))
            parts.append(label(at, y + 12, text(10.0**power), anchor="middle"))
        parts += drawn  # above the lines of the scale
        y += 12
    return file(WIDTH, math.ceil(y) + 16, parts, title=title)


def _colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]
