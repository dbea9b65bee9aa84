"""Whole numbers in texts that others wrote. Pure."""

from __future__ import annotations

DIGITS_MAX = 18
"""What fits into 64 bits with a sign, as databases and Rust have it."""


def whole(text: str) -> int | None:
    """The number that up to 18 ASCII digits stand for; None for any other text.

    `str.isdigit` knows digits that `int` refuses (`²`), and `int` refuses more than 4,300 of them.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None
