"""Sizes, durations, counts and shares as text: one wording for terminals, pages, reports and mails. Pure.

Imports nothing heavy, for every verb uses it.
"""

from __future__ import annotations

DIGITS_SHOWN = 12
"""Hexadecimal digits of a digest that messages show: 48 bits, as container tools show of theirs."""

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def digest_text(digest: str) -> str:
    """`sha256:00c3b1de2118`: what a person recognises a digest by. For one that is to be copied, write it whole."""
    algorithm, _, digits = digest.rpartition(":")
    return f"{algorithm or 'sha256'}:{digits[:DIGITS_SHOWN]}"


def duration_text(seconds: float | None) -> str:
    """`3 ms`, `0.4 s`, `12 s`, `3 m 05 s`, `2 h 07 m`, `3 d 04 h`; `-` for None.

    For columns: units of one kind stand below each other.
    """
    if seconds is None:
        return "-"
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def span_text(seconds: float) -> str:
    """`2 d 3 h`, `5 min 2 s`, `0.4 s`: the two largest units, for sentences."""
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


def coarse_text(seconds: float) -> str:
    """`5 s`, `3 min`, `2 h`, `4 d`: one unit."""
    for length, unit in _SPANS:
        if seconds >= length * (2 if unit == "d" else 1):
            return f"{int(seconds // length)} {unit}"
    return "0 s"


def bytes_text(size: float) -> str:
    """`512 B`, `1.5 kB`, `20 MB` (powers of 1000)."""
    for unit in _BYTES[:-1]:
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} {_BYTES[-1]}"


def count_text(count: float) -> str:
    """`1,234`."""
    return f"{count:,.0f}"


def counted_text(count: int, what: str) -> str:
    """`1 outage`, `1,200 outages`."""
    return f"{count_text(count)} {what}{'' if count == 1 else 's'}"


def times_text(count: int) -> str:
    """`once`, `1,234 times`."""
    return "once" if count == 1 else f"{count_text(count)} times"


def rate_text(rate: float | None) -> str:
    """Three digits: `0.123`, `12.3`, `1,230`; `-` for None."""
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def percent_text(share: float | None) -> str:
    """`97 %` (`99.4 %` above 99); `-` for None."""
    if share is None:
        return "-"
    return f"{100 * share:.1f} %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None where the whole is 0."""
    return part / whole if whole > 0 else None


def figure_text(value: float) -> str:
    """`12.5`, `1,234`: one decimal where it is significant."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def short_text(value: float) -> str:
    """`1,234`, `12 k`, `1.5 M`: for the ticks of an axis."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g} {unit}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def share_text(part: float, whole: float) -> str:
    """`42 %`; never `100 %` before it is all."""
    if whole <= 0:
        return "0 %"
    value = 100 * part / whole
    return "> 99 %" if 99.5 <= value < 100 else f"{value:.0f} %"
