"""Numbers and tables as text for people. Pure; imports nothing heavy, for every verb uses it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")


def text_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = (), width: int = 0
) -> str:
    """A table of plain text: columns apart by two spaces, those in `right` flush right.

    With a `width` > 0 the last column is cut where lines would be longer.
    """
    cells = [[str(cell).replace("\n", " ") for cell in row] for row in (headers, *rows)]
    widths = [max(_width(row[k]) for row in cells) for k in range(len(headers))]
    lines = []
    for row in cells:
        parts = [
            " " * (widths[k] - _width(cell)) + cell if k in right else cell + " " * (widths[k] - _width(cell))
            for k, cell in enumerate(row)
        ]
        lines.append(cut("  ".join(parts).rstrip(), width))
    return "\n".join(lines)


def cut(text: str, width: int) -> str:
    """The text, at most `width` characters wide with an ellipsis at its end; 0 = no limit."""
    if width <= 0 or _width(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…"


def duration_text(seconds: float | None) -> str:
    """`3 ms`, `0.4 s`, `12 s`, `3 m 05 s`, `2 h 07 m`, `3 d 04 h`; `-` for None."""
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


def bytes_text(size: float) -> str:
    """`512 B`, `1.5 KB`, `20 MB` (powers of 1000)."""
    for unit in _BYTES[:-1]:
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} {_BYTES[-1]}"


def count_text(count: float) -> str:
    """`1,234`."""
    return f"{count:,.0f}"


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
    """part / whole, None if there is no whole."""
    return part / whole if whole > 0 else None


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
