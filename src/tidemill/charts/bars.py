"""Bars: one below the other, or one that is cut into shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.charts.svg import Frame, drawing, label, rect, stretched

WIDTH = 520
ROOM = 390  #: of the longest bar; its value stands beside it
BAR = 20
LINE = 46
SHARES_WIDTH = 1_000


class Bar(NamedTuple):
    """One bar: its name, its value, the text beside it, and the class that colours it."""

    name: str
    value: float
    text: str
    kind: str = "main"


def bars(rows: Sequence[Bar], *, title: str, top: float | None = None) -> str:
    """Horizontal bars, one below the other, each with its name above and its value beside it."""
    highest = top or max((row.value for row in rows), default=0.0) or 1.0
    parts = []
    for k, row in enumerate(rows):
        y = k * LINE
        width = max(2.0, ROOM * min(1.0, row.value / highest)) if row.value > 0 else 0.0
        parts += [
            label(0, y + 13, row.name, kind="name"),
            rect(Frame(0, y + 18, ROOM, BAR), kind="track", rounded=3),
            rect(Frame(0, y + 18, width, BAR), kind=f"bar {row.kind}", rounded=3),
            label(ROOM + 10, y + 33, row.text, kind="value"),
        ]
    return drawing(WIDTH, len(rows) * LINE + 4, parts, title=title, kind="bars")


def shares(parts: Sequence[Bar], *, title: str = "", whole: float = 0.0, kind: str = "shares") -> str:
    """One bar cut into shares of `whole` (0 = their sum). Without a title it is decoration: figures beside it speak."""
    whole = whole or sum(part.value for part in parts) or 1.0
    gap = 1.0 if title else 0.0
    drawn = [rect(Frame(0, 0, SHARES_WIDTH, 22), kind="track")]
    x = 0.0
    for part in parts:
        width = SHARES_WIDTH * part.value / whole
        if width > 0:
            place = Frame(x, 0, max(min(width, SHARES_WIDTH - x) - gap, 1), 22)
            drawn.append(rect(place, kind=part.kind, title=f"{part.name}: {part.text}" if title else ""))
        x += width
    return stretched(SHARES_WIDTH, 22, drawn, title=title, kind=kind)
