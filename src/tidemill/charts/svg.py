"""The elements of a chart: a drawing that names itself to screen readers, rectangles, texts, stepped areas.

Colours come by class from the style sheet of the page around it; a drawing that is a file of its own brings its own.
There are no style attributes: the pages' security policy forbids them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

ALONE = "text{font:12px system-ui,sans-serif;fill:#444}.title{font-size:14px;font-weight:600}"


class Frame(NamedTuple):
    """A rectangle of a drawing, in its units."""

    left: float
    above: float
    wide: float
    high: float

    @property
    def below(self) -> float:
        """The frame's lower edge."""
        return self.above + self.high


def drawing(width: int, height: int, parts: Iterable[str], *, title: str = "", kind: str = "") -> str:
    """A drawing that keeps its shape at any width. Without a title it is decoration."""
    named = f"<title>{escape(title)}</title>" if title else ""
    return _svg(f'class="{kind}" viewBox="0 0 {width} {height}"', title, [named, *parts])


def stretched(width: int, height: int, parts: Iterable[str], *, title: str = "", kind: str = "") -> str:
    """A drawing that fills its place, however wide that is: texts stand beside it. Without a title it is decoration."""
    box = f'class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none"'
    return _svg(box, title, parts)


def file(width: int, height: int, parts: Iterable[str], *, title: str) -> str:
    """A drawing that is a file of its own, on white."""
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    head = f"<title>{escape(title)}</title><style>{ALONE}</style>"
    ground = rect(Frame(0, 0, width, height), fill="#fff")
    return _svg(box, title, [head, ground, *parts], between="\n") + "\n"


def rect(place: Frame, *, kind: str = "", fill: str = "", title: str = "", rounded: int = 0) -> str:
    """A rectangle coloured by class or `fill`; `title` is what a pointer that rests on it shows."""
    look = f'class="{escape(kind)}"' if kind else f'fill="{fill}"'
    at = f' x="{_number(place.left)}"' if place.left else ""
    at += f' y="{_number(place.above)}"' if place.above else ""
    at += f' width="{_number(place.wide)}" height="{_number(place.high)}"' + (
        f' rx="{rounded}"' if rounded else ""
    )
    return f"<rect {look}{at}><title>{escape(title)}</title></rect>" if title else f"<rect {look}{at}/>"


def label(x: float, y: float, words: str, *, kind: str = "", anchor: str = "") -> str:
    """A text."""
    look = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text{look} x="{_number(x)}" y="{_number(y)}">{escape(words)}</text>'


def stepped(floor: Sequence[float], roof: Sequence[float], *, place: Frame, top: float) -> str:
    """The path of a stepped area between two lines of one value per step, across `place`, whose height is `top`."""
    step = place.wide / max(1, len(roof))

    def height(value: float) -> str:
        return f"{place.above + place.high * (1 - min(1.0, value / top)):.1f}"

    parts = [f"M{place.left:.1f} {height(floor[0])}"]
    for line, order in ((roof, range(len(roof))), (floor, range(len(floor) - 1, -1, -1))):
        last = None
        for k in order:
            x, y = f"{place.left + (k + (line is roof)) * step:.1f}", height(line[k])
            if y == last:
                parts[-1] = f"H{x}"  # as high as the step before: one line
            else:
                parts += [f"V{y}", f"H{x}"]
            last = y
    return "".join(parts) + "Z"


def steps(values: Sequence[float], *, place: Frame, top: float) -> str:
    """The path along the upper edge of such an area: it ends at its last value, and falls to nothing nowhere else."""
    step = place.wide / max(1, len(values))
    parts: list[str] = []
    for k, value in enumerate(values):
        y = f"{place.above + place.high * (1 - min(1.0, value / top)):.1f}"
        parts.append(f"{'V' if parts else f'M{place.left:.1f} '}{y}H{place.left + (k + 1) * step:.1f}")
    return "".join(parts)


def _svg(box: str, title: str, parts: Iterable[str], *, between: str = "") -> str:
    named = f'role="img" aria-label="{escape(title)}"' if title else 'aria-hidden="true"'
    return between.join([f"<svg {box} {named}>", *parts, "</svg>"])


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
