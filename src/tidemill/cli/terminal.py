"""The only place that prints: data on stdout, everything else on stderr, and no control character from outside.

What a payload, a site or a job wrote is cleaned as it is printed (`tidemill.printable`), so that no verb can forget it.
Only the output of payloads is passed on byte by byte, into a file or a pipe, or where `--raw` asks for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tidemill.printable import printable_line, printable_lines

CLEANED = "control characters of the output are shown as \\uXXXX; `--raw` passes them to the terminal"


def say(text: str) -> None:
    """A line for people, on stderr."""
    _show_first()
    print(printable_line(text), file=sys.stderr, flush=True)


def say_lines(text: str) -> None:
    """Several lines for people, on stderr."""
    _show_first()
    print(printable_lines(text), file=sys.stderr, flush=True)


def _show_first() -> None:
    """Write the data that was shown before: where both streams go into one pipe or file, they keep their order."""
    with contextlib.suppress(
        OSError
    ):  # the reader has left, or the disk is full: the flush at the end reports it
        sys.stdout.flush()


def hint(text: str) -> None:
    """What to do next, on stderr."""
    say(f"hint: {text}")


def ask(question: str) -> str:
    """What a person at the terminal answers to a question on stderr."""
    _show_first()
    print(printable_line(question), end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def show(text: str) -> None:
    """A line of data, on stdout."""
    print(printable_line(text))


def show_lines(text: str) -> None:
    """Several lines of data, on stdout."""
    print(printable_lines(text))


def show_json(value: Any) -> None:
    """A value (structs included) as indented JSON, on stdout."""
    import msgspec

    show_lines(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def show_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()
) -> None:
    """A table on stdout, cut at the width of a terminal if it is one."""
    width = shutil.get_terminal_size().columns if stdout_is_terminal() else 0
    show_lines(plain_table(headers, rows, right=right, width=width))


def plain_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = (), width: int = 0
) -> str:
    """A table as lines of text; what a cell holds starts no line of its own."""
    from tidemill.report.tables import text_table

    cells = [[printable_line(str(cell).replace("\n", " ")) for cell in row] for row in rows]
    return text_table(headers, cells, right=right, width=width)


def pass_on(output: Iterable[bytes | str], *, to_stderr: bool = False, raw: bool = False) -> None:
    """Write a payload's output to stdout or stderr: byte by byte, but cleaned on a terminal unless `raw`."""
    stream = sys.stderr if to_stderr else sys.stdout
    is_exact = raw or not stream.isatty()
    was_cleaned = False
    for piece in output:
        if is_exact:
            _write_exact(stream, piece)
            continue
        text = piece if isinstance(piece, str) else piece.decode("utf-8", "backslashreplace")
        text = text.replace("\r\n", "\n")
        cleaned = printable_lines(text)
        was_cleaned = was_cleaned or cleaned != text
        stream.write(cleaned)
    stream.flush()
    if was_cleaned:
        hint(CLEANED)


def _write_exact(stream: Any, piece: bytes | str) -> None:
    if isinstance(piece, str):
        stream.write(piece)
    else:
        stream.flush()
        stream.buffer.write(piece)


def live_tables(
    pages: Iterable[tuple[str, Sequence[str], Sequence[Sequence[object]]]], *, right: Sequence[int] = ()
) -> None:
    """Show pages one after another on the whole terminal, until it is gone: each a headline, headers and rows."""
    from rich.live import Live

    try:
        with Live(auto_refresh=False, screen=True) as live:
            for page in pages:
                if not stdout_is_terminal():  # it was closed; rich would go on, and write nothing
                    discard_stdout()
                    return
                live.update(_page(*page, right=right), refresh=True)
    except OSError as error:
        if error.errno != errno.EIO:  # of a terminal that was closed as it was written to
            raise
        discard_stdout()


def _page(
    headline: str, headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int]
) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for k, head in enumerate(headers):
        table.add_column(head, justify="right" if k in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable_line(str(cell))) for cell in row))
    return Group(Text(printable_line(headline), style="bold"), Text(""), table)


def stdout_is_terminal() -> bool:
    """Whether a person sees what is printed as data."""
    return sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


def flush() -> None:
    """Hand over what was printed so far: who reads a pipe follows as well. BrokenPipeError if its reader has left."""
    sys.stdout.flush()


def discard_stdout() -> None:
    """Send what is still to be printed nowhere, for the reader of a pipe has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
