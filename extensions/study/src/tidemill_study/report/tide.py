"""The tide of a simulated machine: nodes over time, of regular jobs, of Tidemill, and idle ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.charts.svg import Frame, rect
from tidemill.charts.time import FILE_PLACE, Layer, layers

BINS = 360
DAY_S = 86400.0
REGULAR, OURS, IDLE, OUT = "#7d8ca3", "#1f8a70", "#f2d7a0", "#d9dde3"


def tide(
    changes: Sequence[tuple[float, int, int]],
    *,
    nodes: int,
    until_s: float,
    title: str,
    outages: Sequence[tuple[float, float]] = (),
) -> str:
    """A file of (time, nodes of regular jobs, nodes of Tidemill), averaged over equal bins from 0 to `until_s`."""
    regular, ours = averaged(changes, until_s)
    found = [Layer("regular jobs", REGULAR, regular), Layer("harvested", OURS, ours), Layer("idle", IDLE)]
    if outages:
        found.append(Layer("out of service", OUT))
    days = [f"day {until_s * k / 4 / DAY_S:.3g}" for k in range(5)]
    ground = [rect(FILE_PLACE, fill=IDLE), *bands(outages, until_s)]
    return layers(found, top=max(nodes, 1), title=title, across=days, ground=ground)


def bands(outages: Sequence[tuple[float, float]], until_s: float) -> list[str]:
    """Spans of time over the whole height."""
    left, above, wide, high = FILE_PLACE
    scale = wide / max(until_s, 1.0)
    return [
        rect(Frame(left + start * scale, above, max(1.0, (end - start) * scale), high), fill=OUT)
        for start, end in outages
        if start < until_s
    ]


def averaged(changes: Sequence[tuple[float, int, int]], until_s: float) -> tuple[list[float], list[float]]:
    """Mean nodes of regular jobs and of Tidemill in each bin."""
    bin_s = max(until_s, 1.0) / BINS
    regular, ours = [0.0] * BINS, [0.0] * BINS
    ends = [at for at, _, _ in changes[1:]] + [until_s]
    for (at, busy, held), end in zip(changes, ends, strict=True):
        begin, end = at, min(end, until_s)
        while begin < end:
            k = min(BINS - 1, int(begin / bin_s))
            stop = end if k == BINS - 1 else min(end, (k + 1) * bin_s)
            if stop <= begin:
                stop = end if k + 1 >= BINS else (k + 1) * bin_s + 1e-6
            regular[k] += busy * (stop - begin) / bin_s
            ours[k] += held * (stop - begin) / bin_s
            begin = stop
    return regular, ours
