"""Findings, as `doctor`, `site init` and `site check` print them."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterable

from tidemill.site.setup.finding import Finding

WIDTH_MIN, WIDTH_MAX = 60, 100
INDENT = 20


def tell_findings(findings: Iterable[Finding], tell: Callable[[str], None]) -> None:
    """One paragraph each: state, what was examined, what was found; then what to do about it."""
    for each in findings:
        head = f"{each.state:<5} {each.check:<13} "
        for line in each.found.splitlines() or [""]:
            tell(wrapped(head, line))
            head = " " * len(head)
        if each.hint:
            tell(wrapped(" " * 6 + "hint: ", each.hint))


def wrapped(head: str, text: str) -> str:
    """Text behind a head, its further lines indented, as wide as the terminal."""
    width = min(max(shutil.get_terminal_size().columns, WIDTH_MIN), WIDTH_MAX)
    indent = " " * min(len(head), INDENT)
    return textwrap.fill(
        head + text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
