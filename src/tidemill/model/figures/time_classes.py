"""Classes of durations from 1 ms to hours, four to each doubling, and the median of a histogram in them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

PER_DOUBLING = 4
"""A median is off by at most a tenth: half a class."""
CLASS_MAX = 26 * PER_DOUBLING
"""The last class ends after 18 hours, and holds what took longer."""


def upper_edge_ms(ms: int) -> int:
    """The upper edge of the class of a duration, in ms: the class holds what took up to this time."""
    number = min(max(0, math.ceil(PER_DOUBLING * math.log2(max(1, ms)))), CLASS_MAX)
    return math.floor(2 ** (number / PER_DOUBLING))


def median_ms(files: Mapping[int, int]) -> float | None:
    """The median of a histogram (number by upper edge in ms), interpolated within its class; None if it is empty."""
    total = sum(files.values())
    if total <= 0:
        return None
    below = 0
    for edge in sorted(files):
        if below + files[edge] >= total / 2:
            part = (total / 2 - below) / files[edge]
            return float(edge * 2 ** ((part - 1) / PER_DOUBLING))
        below += files[edge]
    raise AssertionError("half of the files lie below the last edge")
