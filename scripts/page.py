"""What the scripts that draw pages of the documentation share: write a page, or with `--check` compare it."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def settle(name: str, text: str) -> int:
    """Write docs/`name`, or with `--check` on the command line say whether it is as drawn. Returns the exit status."""
    page = DOCS / name
    if sys.argv[1:] != ["--check"]:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"docs/{name} is not what the source says\nhint: make gen", file=sys.stderr)
    return 1


def cell(text: str | None) -> str:
    """A text as it may stand in a table."""
    return (text or "").replace("|", "\\|").replace("\n", " ")


def entry(keys: str, kind: str, default: str | None, text: str) -> str:
    """A key in a list of keys: its type, its default, and what it is for; `default`: `none`, or None = required."""
    value = "; required" if default is None else "" if default in ("", "none") else f"; default `{default}`"
    return f"- {keys} ({kind}{value}): {text}".replace("\n", " ")
