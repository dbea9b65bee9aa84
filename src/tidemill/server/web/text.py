"""How numbers, times and states read on a page. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup, escape

from tidemill.model.state import told_reason
from tidemill.wire.api import JobRow

STATE_LETTERS_MAX = 20  #: of a state that a site made up
LAST_S = 253_402_300_799  #: the last second of the year 9999
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
#: State -> (class of its colour, sign): no meaning in colour alone.
STATES = {
    "WAITING": ("idle", "…"), "RUNNING": ("main", "▶"), "COMPLETED": ("good", "✓"), "PARTIAL": ("warn", "◐"),
    "FAILED": ("bad", "✗"), "CANCELED": ("soft", "⊘"),
    "UP": ("good", "✓"), "SILENT": ("warn", "?"), "LOST": ("bad", "✗"), "DRAINED": ("warn", "‖"),
    "INTENDED": ("idle", "…"), "QUEUED": ("idle", "…"), "ACTIVE": ("main", "▶"), "SETTLED": ("good", "✓"),
    "RELEASED": ("soft", "↩"),
}  # fmt: skip


def count(value: float) -> str:
    """`1,234,567`."""
    return f"{value:,.0f}"


def figure(value: float) -> str:
    """`12.5`, `1,234`: one decimal where it tells something."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def size(value: float) -> str:
    """`1.5 GB`."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f} B"


def span(seconds: float) -> str:
    """`2 d 3 h`, `5 min 2 s`, `0.4 s`: the two largest units."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    left = int(seconds)
    parts: list[str] = []
    for length, unit in _SPANS:
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length} {unit}")
            left %= length
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def utc(at_us: int) -> str:
    """`2026-11-20 23:05:01`."""
    bounded = min(max(at_us // 1_000_000, 0), LAST_S)  # what a site tells may be any number
    return datetime.fromtimestamp(bounded, UTC).strftime("%Y-%m-%d %H:%M:%S")


def ago(at_us: int | None, now_us: int) -> Markup:
    """An element with the time that has passed, or is to come; the moment itself is its title."""
    if not at_us:
        return Markup("<span>-</span>")
    moment = utc(at_us)
    gap_s = (now_us - at_us) / 1e6
    words = f"{coarse(gap_s)} ago" if gap_s >= 0 else f"in {coarse(-gap_s)}"
    return Markup('<time datetime="{}Z" title="{} UTC">{}</time>').format(
        moment.replace(" ", "T"), moment, words
    )


def coarse(seconds: float) -> str:
    """`5 s`, `3 min`, `2 h`, `4 d`: one unit."""
    for length, unit in _SPANS:
        if seconds >= length * (2 if unit == "d" else 1):
            return f"{int(seconds // length)} {unit}"
    return "0 s"


def share(part: float, whole: float) -> str:
    """`42 %`; never `100 %` before it is all."""
    if whole <= 0:
        return "0 %"
    value = 100 * part / whole
    return "> 99 %" if 99.5 <= value < 100 else f"{value:.0f} %"


def state(name: str) -> Markup:
    """A state as a badge: sign, word and colour."""
    kind, sign = STATES.get(name, ("idle", "·"))
    if len(name) > STATE_LETTERS_MAX:
        name = name[:STATE_LETTERS_MAX] + "…"
    return Markup('<span class="state {}"><span aria-hidden="true">{}</span> {}</span>').format(
        kind, sign, name
    )


def code(text: str) -> Markup:
    """Our own texts with their backticks as code; everything in them is escaped."""
    pieces = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if k % 2 else escape(piece) for k, piece in enumerate(pieces)
    )


def reason(row: JobRow) -> str:
    """`last failure: exit status 3` of a job that goes on; of one that has ended, why."""
    return told_reason(row.state, row.reason)


FILTERS = {
    "count": count, "figure": figure, "size": size, "span": span, "utc": utc, "share": share, "state": state,
    "code": code, "reason": reason,
}  # fmt: skip
