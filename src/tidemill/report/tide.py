"""The tide as SVG: nodes over time, those of regular jobs, of ours, and idle ones. Pure; one self-contained file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

BINS = 360
WIDTH = 960
HEIGHT = 320
LEFT = 70
TOP = 44
BOTTOM = 34
DAY_S = 86400.0
REGULAR, OURS, IDLE, OUT = "#7d8ca3", "#1f8a70", "#f2d7a0", "#d9dde3"
STYLE = "text{font:12px system-ui,sans-serif;fill:#444}.title{font-size:14px;font-weight:600}"


def tide(
    changes: Sequence[tuple[float, int, int]],
    *,
    nodes: int,
    until_s: float,
    title: str,
    outages: Sequence[tuple[float, float]] = (),
) -> str:
    """An SVG of (time, nodes of regular jobs, nodes of ours), averaged over equal bins from 0 to `until_s`."""
    regular, ours = averaged(changes, until_s)
    width, height = WIDTH - LEFT - 16, HEIGHT - TOP - BOTTOM
    name = escape(title, quote=True)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">',
        f"<title>{name}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="18">{name}</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{width}" height="{height}" fill="{IDLE}"/>',
        *bands(outages, until_s),
        area([r + o for r, o in zip(regular, ours, strict=True)], nodes, OURS),
        area(regular, nodes, REGULAR),
    ]
    layers = [("regular jobs", REGULAR), ("harvested", OURS), ("idle", IDLE)]
    for k, (text, colour) in enumerate([*layers, ("out of service", OUT)] if outages else layers):
        left = LEFT + 130 * k
        parts.append(f'<rect x="{left}" y="26" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + 17}" y="36">{text}</text>')
    for k in range(5):
        y = TOP + height * k / 4
        label = f"{nodes * (4 - k) / 4:,.0f}"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        x = LEFT + width * k / 4
        anchor = "start" if k == 0 else "end" if k == 4 else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="{anchor}">day {until_s * k / 4 / DAY_S:.3g}</text>'
        )
    parts.append("</svg>\n")
    return "\n".join(parts)


def bands(outages: Sequence[tuple[float, float]], until_s: float) -> list[str]:
    """Spans of time over the whole height."""
    scale = (WIDTH - LEFT - 16) / max(until_s, 1.0)
    return [
        f'<rect x="{LEFT + start * scale:.1f}" y="{TOP}" width="{max(1.0, (end - start) * scale):.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}" fill="{OUT}"/>'
        for start, end in outages
        if start < until_s
    ]


def area(values: Sequence[float], top: float, colour: str) -> str:
    """Steps from the bottom up to each bin's value."""
    width, height = WIDTH - LEFT - 16, HEIGHT - TOP - BOTTOM
    step = width / max(1, len(values))
    points = [f"{LEFT},{TOP + height}"]
    for k, value in enumerate(values):
        y = TOP + height * (1 - min(1.0, value / max(top, 1)))
        points += [f"{LEFT + k * step:.1f},{y:.1f}", f"{LEFT + (k + 1) * step:.1f},{y:.1f}"]
    points.append(f"{LEFT + width},{TOP + height}")
    return f'<polygon fill="{colour}" points="{" ".join(points)}"/>'


def averaged(changes: Sequence[tuple[float, int, int]], until_s: float) -> tuple[list[float], list[float]]:
    """Mean nodes of regular jobs and of ours in each bin."""
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
