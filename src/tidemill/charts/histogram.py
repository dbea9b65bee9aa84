"""Figures as papers of the field have them: step histograms, stacked or upon each other, points with errors, two
panels.

Colours come by class (`s0`, `s1`, ... for strokes, `f0`, ... for areas) from the style sheet of the page around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.charts.axes import Axis, axes
from tidemill.charts.svg import Frame, drawing, label, rect

WIDTH, NARROW = 720, 520  #: of a figure alone, and of one of a pair
LEFT, RIGHT = 86, 14
FOOT = 54  #: room below a figure's panels for the axis
GAP = 15  #: between panels: numbers at their edges do not touch
KEY = 17
COLOURS = 8
MARKS = (
    "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",  # a circle
    "m-3.3 -3.3h6.6v6.6h-6.6z",  # a square
    "m0 -4.4l4.2 7.2h-8.4z",  # triangles: up
    "m0 -4.8l4.2 4.8l-4.2 4.8l-4.2 -4.8z",  # a diamond
    "m0 4.4l4.2 -7.2h-8.4z",  # down
    "m-1.4 -4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",  # a cross
    "m-4.4 0l7.2 -4.2v8.4z",  # left
    "m4.4 0l-7.2 -4.2v8.4z",  # right
)
"""Marks of points, by colour, around their place."""
CHAR, THIN, BROAD = 8.4, 5.2, 13.0  #: widths of letters of the key, about


class Steps(NamedTuple):
    """A histogram: values of bins between `edges`. `kind`: `line`, `fill` (with a line), `stack` (upon those
    before)."""

    name: str
    colour: int
    edges: Sequence[float]
    values: Sequence[float]
    errors: Sequence[float] = ()
    kind: str = "line"


class Points(NamedTuple):
    """Points with errors. `None`: no point there."""

    name: str
    colour: int
    xs: Sequence[float]
    ys: Sequence[float | None]
    errors: Sequence[float] = ()


class Panel(NamedTuple):
    """One pair of axes and what is drawn between them. `level`: a dashed line at this height."""

    x: Axis
    y: Axis
    series: Sequence[Steps | Points]
    high: int = 260
    level: float | None = None


def histogram(panels: Sequence[Panel], *, head: str, title: str, note: str = "", width: int = WIDTH) -> str:
    """A figure of panels one below the other, which share the horizontal axis; the lowest has its numbers.

    `head` stands above it in bold, `note` to its right; `title` is for screen readers.
    """
    keys = _key(panels, width - LEFT - RIGHT)
    above = 26.0 + KEY * len(keys) + (8 if keys else 2)
    parts = [label(LEFT, 16, head, kind="head")]
    if note:
        parts.append(label(width - RIGHT, 16, note, kind="note", anchor="end"))
    for k, line in enumerate(keys):
        parts += _draw_key(line, 34 + KEY * k)
    for k, panel in enumerate(panels):
        place = Frame(LEFT, above, width - LEFT - RIGHT, panel.high)
        parts += _draw(panel, place)
        parts += axes(place, panel.x, panel.y, with_x=k == len(panels) - 1)
        above = place.below + GAP
    return drawing(width, round(above - GAP + FOOT), parts, title=title, kind="figure")


def _draw(panel: Panel, place: Frame) -> list[str]:
    floor: list[float] = []
    areas: list[str] = []
    lines: list[str] = []
    for each in panel.series:
        if isinstance(each, Points):
            lines += _points(each, panel, place)
            continue
        values, low = list(each.values), []
        if each.kind == "stack":
            low = floor or [0.0] * len(values)
            values = [a + b for a, b in zip(low, values, strict=True)]
            floor = values
        outline = _outline(each.edges, values, panel, place)
        if each.kind != "line":
            base = (
                _outline(each.edges, low, panel, place, is_back=True)
                if low
                else _base(each.edges, panel, place)
            )
            areas.append(f'<path class="shaded f{each.colour % COLOURS}" d="{outline}{base}z"/>')
        lines.append(
            f'<path class="step s{each.colour % COLOURS}" d="{_line(each, outline, panel, place)}"/>'
        )
        lines += _errors(each, values, panel, place)
    if panel.level is not None:
        areas.append(f'<path class="level" d="M{place.left} {_y(panel.level, panel, place)}h{place.wide}"/>')
    return [*areas, *lines]


def _line(each: Steps, outline: str, panel: Panel, place: Frame) -> str:
    """The outline with its ends down to the floor, except in a stack, and where the frame is the end."""
    if each.kind == "stack":
        return outline
    floor = _y(panel.y.low, panel, place)
    if panel.x.share(each.edges[0]) > 0:
        outline = f"M{_x(each.edges[0], panel, place)} {floor}{outline.replace('M', 'L', 1)}"
    return outline + (f"V{floor}" if panel.x.share(each.edges[-1]) < 1 else "")


def _outline(
    edges: Sequence[float], values: Sequence[float], panel: Panel, place: Frame, *, is_back: bool = False
) -> str:
    """The steps from the left; `is_back`: from the right, to close an area."""
    xs = [_x(each, panel, place) for each in edges]
    ys = [_y(each, panel, place) for each in values]
    order = range(len(ys) - 1, -1, -1) if is_back else range(len(ys))
    first = order[0]
    parts = [f"{'L' if is_back else 'M'}{xs[first + is_back]} {ys[first]}"]
    for k in order:
        parts.append(f"V{ys[k]}H{xs[k + (not is_back)]}")
    return "".join(parts)


def _base(edges: Sequence[float], panel: Panel, place: Frame) -> str:
    return f"V{_y(panel.y.low, panel, place)}H{_x(edges[0], panel, place)}"


def _errors(each: Steps, values: Sequence[float], panel: Panel, place: Frame) -> list[str]:
    path = []
    for k, error in enumerate(each.errors):
        if error > 0:
            middle = (_at(each.edges[k], panel, place) + _at(each.edges[k + 1], panel, place)) / 2
            path.append(
                f"M{middle:.1f} {_y(values[k] - error, panel, place)}V{_y(values[k] + error, panel, place)}"
            )
    return [f'<path class="error s{each.colour % COLOURS}" d="{"".join(path)}"/>'] if path else []


def _points(each: Points, panel: Panel, place: Frame) -> list[str]:
    found, path = [], []
    for k, (x, y) in enumerate(zip(each.xs, each.ys, strict=True)):
        if y is None:
            continue
        at = _x(x, panel, place)
        error = each.errors[k] if each.errors else 0.0
        if error:
            path.append(f"M{at} {_y(y - error, panel, place)}V{_y(y + error, panel, place)}")
        found.append(_mark(each.colour, float(at), float(_y(y, panel, place))))
    errors = [f'<path class="error s{each.colour % COLOURS}" d="{"".join(path)}"/>'] if path else []
    return errors + found


def _mark(colour: int, x: float, y: float) -> str:
    """The mark of a series: each has a shape of its own, so that no colour has to tell them apart."""
    colour %= COLOURS
    shape = MARKS[colour]
    return f'<path class="dot f{colour}" d="M{x:.1f} {y:.1f}{shape}"/>'


def _key(panels: Sequence[Panel], room: float) -> list[list[Steps | Points]]:
    """The entries of the key in lines; each name once."""
    lines: list[list[Steps | Points]] = []
    wide, seen = 0.0, set[str]()
    for each in (one for panel in panels for one in panel.series):
        if not each.name or each.name in seen:
            continue
        seen.add(each.name)
        need = _room(each.name)
        if not lines or wide + need > room:
            lines.append([])
            wide = 0.0
        lines[-1].append(each)
        wide += need
    return lines


def _draw_key(line: Sequence[Steps | Points], y: float) -> list[str]:
    parts, x = [], float(LEFT)
    for each in line:
        colour = each.colour % COLOURS
        if isinstance(each, Points):
            parts.append(f'<path class="error s{colour}" d="M{x + 9:.1f} {y - 7}v14"/>')
            parts.append(_mark(colour, x + 9, y))
        elif each.kind == "line":
            parts.append(f'<path class="step s{colour}" d="M{x:.1f} {y}h18"/>')
        else:
            parts.append(rect(Frame(x, y - 5.5, 18, 11), kind=f"shaded f{colour}"))
            parts.append(f'<path class="step s{colour}" d="M{x:.1f} {y - 5.5}h18v11h-18z"/>')
        parts.append(label(x + 24, y + 4.5, each.name, kind="key"))
        x += _room(each.name)
    return parts


def _room(name: str) -> float:
    """What an entry of the key takes."""
    return 38 + sum(
        THIN if char in " .,:;'|!fijlrt1I()[]" else BROAD if char in "mwMW%" else CHAR for char in name
    )


def _at(value: float, panel: Panel, place: Frame) -> float:
    return place.left + place.wide * panel.x.share(value)


def _x(value: float, panel: Panel, place: Frame) -> str:
    return f"{_at(value, panel, place):.1f}"


def _y(value: float, panel: Panel, place: Frame) -> str:
    return f"{place.below - place.high * panel.y.share(value):.1f}"
