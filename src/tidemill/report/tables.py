"""Tables as text for people. Pure; imports nothing heavy, for every verb uses it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


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


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
