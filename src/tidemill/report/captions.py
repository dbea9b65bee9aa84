"""Figures of a page with captions and numbers, as a paper has them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_NUMBER = "<b>@figure@</b>"  #: stands for a figure's number until all are there


def captioned(words: str, drawn: str) -> str:
    """A figure with its caption, whose number `numbered` writes."""
    return f"<figure>{drawn}<figcaption>{_NUMBER}{escape(words)}</figcaption></figure>"


def pair(figures: Sequence[str]) -> str:
    """Figures side by side; below each other on a phone."""
    return f'<div class="pair">{"".join(figures)}</div>' if figures else ""


def numbered(html: str) -> str:
    """A page with the number of each figure in its caption."""
    first, *rest = html.split(_NUMBER)
    return first + "".join(f"<b>Figure {k}.</b> {part}" for k, part in enumerate(rest, start=1))
