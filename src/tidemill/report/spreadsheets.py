"""Texts of others in CSV files, which people open in spreadsheets. Pure."""

from __future__ import annotations


def harmless(text: str) -> str:
    """The text for a cell: spreadsheets run what begins like a formula, unless an apostrophe is before it."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text
