"""The only place that prints: data on stdout, everything else on stderr, and no control character from outside.

What a payload, a site or a job wrote is cleaned as it is printed (`tidemill.printable`), so that no verb can forget it.
Only the output of payloads is passed on byte by byte, into a file or a pipe, or where `--raw` asks for it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tidemill.errors import SiteError
from tidemill.printable import escaped, printable_line, printable_lines

CLEANED = "control characters of the output are shown as \\uXXXX; `--raw` passes them to the terminal"


class StdoutError(Exception):
    """Stdout cannot be written; all later output is discarded. Not a TidemillError, so that no verb catches it and goes
    on."""

    def __init__(self, cause: OSError, *, campaign: str = "") -> None:
        """`campaign`: that was submitted, which goes on or has ended."""
        self.cause = cause
        hint = "stdout was closed before `tidemill` started" if cause.errno == errno.EBADF else None
        if cause.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free space there, or redirect stdout to another place"
        if campaign:
            print_again = f"`tidemill attach {campaign}` prints how it ends"
            hint = f"{hint}; {print_again}" if hint else print_again
        self.error = SiteError(f"failed to write to stdout: {cause.strerror}", hint=hint, transient=False)
        super().__init__(self.error.message)


def prepare_streams(encoding: str | None = None) -> None:
    """Make stdin, stdout and stderr usable. A closed stdin reads as empty, and a closed stdout refuses writes:
    otherwise the next file that is opened would take its number. A character that `encoding` lacks (None = stdout's
    own) is written as `\\xe9` or `\\u20ac`."""
    closed = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)  # what goes to stderr is lost without harm
    for number, flags in enumerate(closed):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- for the whole life of the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def stdout_encoding() -> str:
    """The encoding in which texts are printed."""
    return sys.stdout.encoding


def say(text: str) -> None:
    """A line for people, on stderr."""
    _show_first()
    with _to_stderr():
        print(printable_line(text), file=sys.stderr, flush=True)


def say_lines(text: str) -> None:
    """Several lines for people, on stderr."""
    _show_first()
    with _to_stderr():
        print(printable_lines(text), file=sys.stderr, flush=True)


def _show_first() -> None:
    """Write the data that was shown before: where both streams go into one pipe or file, they keep their order."""
    with contextlib.suppress(BrokenPipeError):  # the reader has left: the flush at the end reports it
        flush()


@contextlib.contextmanager
def _to_stderr() -> Iterator[None]:
    """Ignore that stderr cannot be written: the exit status still shows how the verb ended."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        return


@contextlib.contextmanager
def _to_stdout() -> Iterator[None]:
    """Raises StdoutError if stdout cannot be written, such as on a full disk: lost output never goes unnoticed."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise StdoutError(error) from error


@contextlib.contextmanager
def about_campaign(campaign: str) -> Iterator[None]:
    """Where stdout cannot be written, the error names the campaign, whose name the user may not know."""
    try:
        yield
        flush()
    except StdoutError as error:
        raise StdoutError(error.cause, campaign=campaign) from error


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
    with _to_stdout():
        print(printable_line(text))


def show_lines(text: str) -> None:
    """Several lines of data, on stdout."""
    with _to_stdout():
        print(printable_lines(text))


def show_json(value: Any) -> None:
    """A value (structs included) as indented JSON, on stdout: in UTF-8, or in ASCII where stdout has another
    encoding."""
    show_lines(_json_text(value))


def _json_text(value: Any) -> str:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    return text if _takes_all() else escaped(text)


def _takes_all() -> bool:
    """Whether stdout's encoding has every character."""
    return (sys.stdout.encoding or "utf-8").lower().replace("-", "") in ("utf8", "utf8sig")


def show_json_parts(head: dict[str, Any], name: str, rows: Iterable[Any]) -> None:
    """An object as `show_json` prints it: `head`, then a list of rows as `name`, one row in memory at a time."""

    def inside(value: Any, depth: int) -> str:
        return _json_text(value).replace("\n", "\n" + "  " * depth)

    show_lines("{")
    for key, value in head.items():
        show_lines(f"  {_json_text(key)}: {inside(value, 1)},")
    before: str | None = None
    for row in rows:
        show_lines(f"  {_json_text(name)}: [" if before is None else f"{before},")
        before = f"    {inside(row, 2)}"
    show_lines(f"  {_json_text(name)}: []" if before is None else f"{before}\n  ]")
    show_lines("}")


def show_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()
) -> None:
    """A table on stdout, cut at the width of a terminal if it is one."""
    width = shutil.get_terminal_size().columns if stdout_is_terminal() else 0
    show_lines(plain_table(headers, rows, right=right, width=width))


def plain_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = (), width: int = 0
) -> str:
    """A table as lines of text: columns apart by two spaces, those in `right` flush right. What a cell holds starts no
    line of its own. With a `width` > 0 the last column is cut where lines would be longer."""
    found = [[printable_line(str(cell).replace("\n", " ")) for cell in row] for row in rows]
    cells = [list(headers), *found]
    widths = [max(_width(row[k]) for row in cells) for k in range(len(headers))]
    lines = []
    for row in cells:
        parts = [
            " " * (widths[k] - _width(cell)) + cell if k in right else cell + " " * (widths[k] - _width(cell))
            for k, cell in enumerate(row)
        ]
        lines.append(_cut("  ".join(parts).rstrip(), width))
    return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    """The text, at most `width` characters wide with an ellipsis at its end; 0 = no limit."""
    if width <= 0 or _width(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def pass_on(output: Iterable[bytes | str], *, to_stderr: bool = False, raw: bool = False) -> None:
    """Write a payload's output to stdout or stderr: byte by byte, but cleaned on a terminal unless `raw`."""
    stream = sys.stderr if to_stderr else sys.stdout
    with _to_stderr() if to_stderr else _to_stdout():
        was_cleaned = _pass_on(output, stream, raw=raw)
    if was_cleaned:
        hint(CLEANED)


def _pass_on(output: Iterable[bytes | str], stream: Any, *, raw: bool) -> bool:
    """Write all pieces; whether some of it was cleaned."""
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
    return was_cleaned


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
    """Flush stdout, so that the reader of a pipe can follow. Raises BrokenPipeError if the reader has left, StdoutError
    if stdout cannot be written."""
    with _to_stdout():
        sys.stdout.flush()


def discard_stdout() -> None:
    """Send what is still to be printed nowhere, for the reader of a pipe has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def discard_unwritten_stderr() -> None:
    """Discard what stderr has refused, at the end of a process."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
