"""Values over time: one area with its axes for a page, or layers upon each other in a file of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tidemill.charts.svg import Frame, drawing, file, label, rect, stepped, steps

WIDTH, HEIGHT = 720, 240
PLACE = Frame(62, 14, 644, 196)
FILE_WIDTH, FILE_HEIGHT = 960, 320
FILE_PLACE = Frame(70, 44, 874, 242)
TITLE_CHARS_MAX = 110


class Layer(NamedTuple):
    """A layer of a file: its name in the legend, its colour, one value per step; without values only a name."""

    name: str
    colour: str
    values: Sequence[float] = ()


def area(
    values: Sequence[float],
    *,
    start_us: int,
    bin_s: float,
    title: str,
    text: Callable[[float], str],
) -> str:
    """An area of one value per time bin; what a pointer rests on shows its value. The axis of counts (`int`) has whole
    numbers."""
    top = nice_ceiling(max(values, default=0.0))
    if all(isinstance(each, int) for each in values):
        top = whole_ceiling(top)
    start_s, span_s = start_us / 1e6, bin_s * len(values)
    step = PLACE.wide / max(1, len(values))
    parts = [
        f'<path class="grid" d="M{PLACE.left} {PLACE.above + PLACE.high * k / 4:.1f}h{PLACE.wide}"/>'
        for k in range(5)
    ]
    parts += ticks(PLACE, across=clock_marks(start_s, span_s), up=[text(top * k / 4) for k in range(5)])
    if values:
        outline = stepped([0.0] * len(values), values, place=PLACE, top=top)
        parts.append(f'<path class="area" d="{outline}"/>')
        parts.append(f'<path class="edge" d="{steps(values, place=PLACE, top=top)}"/>')
    for k, value in enumerate(values):
        when = clock_text(start_s + k * bin_s, span_s)
        place = Frame(PLACE.left + k * step, PLACE.above, step, PLACE.high)
        parts.append(rect(place, kind="hover", title=f"{when} UTC: {text(value)}"))
    return drawing(WIDTH, HEIGHT, parts, title=title, kind="wide")


def layers(
    found: Sequence[Layer],
    *,
    top: float,
    title: str,
    across: Sequence[str],
    ground: Iterable[str] = (),
) -> str:
    """Layers upon each other, the first at the bottom, as a file; `ground` is drawn below them, in `FILE_PLACE`."""
    left, above, *_ = FILE_PLACE
    name = title if len(title) < TITLE_CHARS_MAX else title[: TITLE_CHARS_MAX - 1] + "…"
    parts = [label(left, 18, name, kind="title"), *ground]
    floor = [0.0] * max(len(each.values) for each in found)
    roof, drawn = floor, []
    for k, each in enumerate(found):
        key = Frame(left + 130 * k, above - 18, 12, 12)
        parts += [rect(key, fill=each.colour), label(key.left + 17, key.above + 10, each.name)]
        if each.values:
            roof = [low + value for low, value in zip(roof, each.values, strict=True)]
            d = stepped(floor, roof, place=FILE_PLACE, top=top)
            drawn.append(f'<path fill="{each.colour}" d="{d}"/>')
    parts += reversed(drawn)  # each down to the bottom: no seams
    parts += ticks(FILE_PLACE, across=across, up=[f"{top * k / 4:,.0f}" for k in range(5)])
    return file(FILE_WIDTH, FILE_HEIGHT, parts, title=title)


def ticks(place: Frame, *, across: Sequence[str], up: Sequence[str]) -> list[str]:
    """Five texts below a frame, and five to its left, the lowest first."""
    result = []
    for k in range(5):
        y, x = place.below - place.high * k / 4, place.left + place.wide * k / 4
        anchor = "start" if k == 0 else "end" if k == 4 else "middle"
        result.append(label(place.left - 8, y + 4, up[k], kind="tick", anchor="end"))
        result.append(label(x, place.below + 20, across[k], kind="tick", anchor=anchor))
    return result


def nice_ceiling(value: float) -> float:
    """The next 1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6 or 8 times a power of ten: quarters of it are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.9999
    )


def whole_ceiling(top: float) -> float:
    """The next number of which quarters are whole."""
    return 4.0 * math.ceil(top / 4) if top < 100 or top % 4 else top


def clock_marks(start_s: float, span_s: float) -> list[str]:
    """The five times of an axis."""
    return [clock_text(start_s + span_s * k / 4, span_s) for k in range(5)]


def clock_text(at_s: float, span_s: float) -> str:
    """A time (UTC) as exact as it needs to be on an axis of `span_s`."""
    at = datetime.fromtimestamp(at_s, UTC)
    if span_s < 1800:
        return at.strftime("%H:%M:%S")
    return at.strftime("%H:%M") if span_s < 86400 else at.strftime("%d %b %H:%M")
