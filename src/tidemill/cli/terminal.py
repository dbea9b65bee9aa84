"""What verbs print with: data on stdout, everything else on stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

from tidemill.report.tables import text_table


def say(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def hint(text: str) -> None:
    """What to do next, on stderr."""
    say(f"hint: {text}")


def show(text: str) -> None:
    """A line of data, on stdout."""
    print(text)


def show_json(value: Any) -> None:
    """A value (structs included) as indented JSON, on stdout."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def show_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()
) -> None:
    """A table on stdout, cut at the width of a terminal if it is one."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    print(text_table(headers, rows, right=right, width=width))
