"""Whole numbers and checksums in texts of other programs. Pure."""

from __future__ import annotations

import re

DIGITS_MAX = 18
"""What fits into 64 bits with a sign, as databases and Rust have it."""

CHECKSUM_DIGITS = {"adler32": 8, "md5": 32, "sha256": 64}


def whole(text: str) -> int | None:
    """The number that up to 18 ASCII digits stand for; None for any other text.

    `str.isdigit` knows digits that `int` refuses (`²`), and `int` refuses more than 4,300 of them.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def canonical_checksum(algorithm: str, text: str) -> str | None:
    """A checksum in canonical form: hexadecimal, lower case, with leading zeros; None if the text is not a checksum.

    Servers and catalogues drop the leading zeros of adler32.
    """
    digits = CHECKSUM_DIGITS.get(algorithm)
    if digits is None or not re.fullmatch(r"[0-9a-fA-F]{1,128}", text):
        return None
    value = text.lower().rjust(digits, "0") if algorithm == "adler32" else text.lower()
    return value if len(value) == digits else None
