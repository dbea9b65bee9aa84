"""Axes as papers of the field have them: ticks point inward on all four sides, labels stand at the ends of the axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from tidemill.charts.svg import Frame, label

MAJOR, MINOR = 9.0, 4.5  #: length of ticks
CHAR, OVER = 8.6, 12.0  #: width of a digit, about; how far a number may stand over to the right
TICKS = 6  #: major ones of an axis, about
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Axis(NamedTuple):
    """An axis from `low` to `high`. `marks`: texts (of one line or two) at positions, instead of numbers."""

    low: float
    high: float
    label: str = ""
    is_log: bool = False
    marks: Sequence[tuple[float, str]] = ()
    is_share: bool = False  #: its numbers are percent

    def share(self, value: float) -> float:
        """Where a value lies: 0 at `low`, 1 at `high`; outside it is cut off."""
        if self.is_log:
            value = max(value, self.low)
            found = math.log10(value / self.low) / math.log10(self.high / self.low)
        else:
            found = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, found))


class Tick(NamedTuple):
    """A tick at a value; a minor one has no text."""

    value: float
    text: str = ""
    is_major: bool = True


def ticks_of(axis: Axis) -> list[Tick]:
    """The ticks of an axis, both ends included."""
    if axis.marks:
        return []
    if axis.is_log:
        return _log_ticks(axis)
    step = nice_step((axis.high - axis.low) / TICKS)
    minor = step / (4 if f"{step:.0e}".startswith("2") else 5)
    result = []
    first = math.ceil(axis.low / minor - 1e-9)
    for k in range(first, math.floor(axis.high / minor + 1e-9) + 1):
        value = k * minor
        is_major = abs(value / step - round(value / step)) < 1e-6
        result.append(Tick(value, _text(value, step, is_share=axis.is_share) if is_major else "", is_major))
    return result


def _log_ticks(axis: Axis) -> list[Tick]:
    low, high = math.floor(math.log10(axis.low) + 1e-9), math.ceil(math.log10(axis.high) - 1e-9)
    every = max(1, math.ceil((high - low) / 7))
    result = []
    for power in range(low, high + 1):
        for digit in range(1, 10):
            value = digit * 10.0**power
            if axis.low * 0.999 <= value <= axis.high * 1.001:
                is_major = digit == 1
                text = power_text(power) if is_major and (power - low) % every == 0 else ""
                if is_major or every == 1:
                    result.append(Tick(value, text, is_major))
    span = math.log10(axis.high / axis.low)
    if span < 2.2:  # few powers of ten: others get numbers, too
        told = (1, 2, 3, 4, 5, 6, 8) if span < 0.7 else (1, 2, 3, 5) if span < 1.3 else (1, 2, 5)
        result = [
            Tick(t.value,
            f"{t.value:g}" if round(t.value / 10.0 ** math.floor(math.log10(t.value) + 1e-9)) in told else "",
                 t.is_major)
            for t in result
        ]  # fmt: skip
    return result


def power_text(power: int) -> str:
    """`10³`; small powers as numbers."""
    return {-1: "0.1", 0: "1", 1: "10", 2: "100"}.get(power) or f"10{str(power).translate(_RAISED)}"


def nice_step(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= value * 0.9999)


def ceiling(value: float) -> float:
    """An end of an axis that leaves some room above a value."""
    if value <= 0:
        return 1.0
    step = nice_step(value * 1.08 / 12)
    return math.ceil(value * 1.08 / step) * step


def scale_of(top: float) -> tuple[float, str]:
    """A power of a thousand to divide an axis by, and how its label says that: `10⁶`, or nothing."""
    power = 3 * int(math.log10(top) // 3) if top >= 10_000 else 0
    return 10.0**power, f"10{str(power).translate(_RAISED)}" if power else ""


def axes(place: Frame, x: Axis, y: Axis, *, with_x: bool = True) -> list[str]:
    """Frame, ticks, numbers and labels. Without `with_x` a panel below shares the horizontal axis."""
    path = [f"M{_n(place.left)} {_n(place.above)}h{_n(place.wide)}v{_n(place.high)}h{_n(-place.wide)}z"]
    parts = []
    for tick in ticks_of(x):
        at, long = place.left + place.wide * x.share(tick.value), MAJOR if tick.is_major else MINOR
        path.append(f"M{_n(at)} {_n(place.below)}v{_n(-long)}M{_n(at)} {_n(place.above)}v{_n(long)}")
        if tick.text and with_x:
            room = place.left + place.wide + OVER - CHAR / 2 * len(tick.text)  # it stays within the drawing
            parts.append(label(min(at, room), place.below + 20, tick.text, kind="number", anchor="middle"))
    for value, text in x.marks:
        at = place.left + place.wide * x.share(value)
        path.append(f"M{_n(at)} {_n(place.below)}v{-MINOR}M{_n(at)} {_n(place.above)}v{MINOR}")
        if text and with_x:
            for k, line in enumerate(text.split("\n")):
                parts.append(label(at, place.below + 20 + 17 * k, line, kind="number", anchor="middle"))
    for tick in ticks_of(y):
        at, long = place.below - place.high * y.share(tick.value), MAJOR if tick.is_major else MINOR
        right = place.left + place.wide
        path.append(f"M{_n(place.left)} {_n(at)}h{_n(long)}M{_n(right)} {_n(at)}h{_n(-long)}")
        if tick.text:
            parts.append(label(place.left - 8, at + 5, tick.text, kind="number", anchor="end"))
    parts.insert(0, f'<path class="axis" d="{"".join(path)}"/>')
    if x.label and with_x:
        parts.append(label(place.left + place.wide, place.below + 42, x.label, kind="label", anchor="end"))
    if y.label:
        x_at, y_at = _n(place.left - 66), _n(place.above)
        turned = f'x="{x_at}" y="{y_at}" transform="rotate(-90 {x_at} {y_at})"'
        parts.append(f'<text class="label" text-anchor="end" {turned}>{escape(y.label)}</text>')
    return parts


def _text(value: float, step: float, *, is_share: bool) -> str:
    if is_share:
        digits = max(0, -math.floor(math.log10(step * 100) + 1e-9))
        return f"{value * 100:.{digits}f} %"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{digits}f}"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
