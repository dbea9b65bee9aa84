"""Text of payloads, sites and jobs as a terminal or a spreadsheet may show it. Pure; imports nothing heavy.

A terminal obeys control characters wherever they come from: they move the cursor, retitle the window, fill the
clipboard (ECMA-48, `OSC 52`), and bidirectional overrides show text in another order than it has (Unicode TR 36).
Every such character is written as its JSON escape, so that nothing is lost and JSON keeps its meaning.
"""

from __future__ import annotations

import re

# C0, DEL and C1 but the tab; then the format characters of Unicode that reorder, join or hide text: soft hyphen, marks,
# embeddings, overrides and isolates of direction, separators of lines, invisible operators, byte order mark,
# interlinear annotations, tags; and lone surrogates, which no terminal gets encoded. Joiners (U+200C, U+200D) stay:
# scripts and emoji need them.
_UNSAFE = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e007f"
)
_IN_LINES = re.compile(f"[{_UNSAFE}]")
_IN_LINE = re.compile(f"[\\n{_UNSAFE}]")
_NOT_ASCII = re.compile("[^\\x00-\\x7f]")
_SHORT = {"\n": "\\n", "\r": "\\r"}


def printable_line(text: str) -> str:
    """The text as one line without control characters: each is shown as `\\u001b`, a line's end as `\\n`."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """A text of several lines, whose ends stay; other control characters are shown as `printable_line` shows them."""
    return _IN_LINES.sub(_escape, text)


def escaped(text: str) -> str:
    """The text in ASCII, with all other characters as JSON escapes."""
    return text if text.isascii() else _NOT_ASCII.sub(_escape, text)


def harmless(text: str) -> str:
    """The text for a cell of CSV: spreadsheets run what begins like a formula, unless an apostrophe is before it."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT:
        return _SHORT[char]
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[k]:02x}{units[k + 1]:02x}" for k in range(0, len(units), 2))
