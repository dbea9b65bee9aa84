"""One event for each row: of a text file, a CSV or TSV file, stdin, or the product of lists of values.

Rows with columns reach the payloads as lines whose fields are set apart by tabs, the first one empty, so that no line
looks like the path of an input; `{NAME}` of a command becomes `{column.K}` of that line.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.cli.command.words import PLACE, names_in
from tidemill.errors import ConfigError, did_you_mean
from tidemill.model.quantities import counted_text
from tidemill.octets import is_utf8, shown

ROWS_MAX = 1_000_000
"""Limit for tables with columns, which are held in memory; lists of plain lines may be longer (`lines.LINES_MAX`)."""

COLUMNS_MAX = 1_000
RESERVED = frozenset({"event", "first_event", "last_event", "events", "seed", "line", "cores"})
DELIMITERS = {".csv": ",", ".tsv": "\t"}
_NAME = re.compile(r"[^\W\d][^{}\x00-\x1f\x7f]{0,254}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


class EventTable(NamedTuple):
    """Values of columns, a row for each event."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def text(self) -> str:
        """The lines that payloads read. Raises ConfigError for a value that no line can hold."""
        lines = []
        for number, row in enumerate(self.rows):
            for name, value in zip(self.columns, row, strict=True):
                if any(each in value for each in "\t\n\r\0"):
                    raise ConfigError(
                        f"row {number + 1}, column `{name}`: the value holds a tab, a line break or NUL",
                        hint="write such values into files, and their paths into the column",
                    )
            lines.append("\t".join(("", *row)))
        return "\n".join(lines) + "\n"

    def filled(self, word: str) -> str:
        """Replace `{NAME}` in a word by the placeholder of that column; `{{NAME}}` becomes the text `{NAME}`."""
        places = {name: f"{{column.{k}}}" for k, name in enumerate(self.columns, 1)}

        def filled(match: re.Match[str]) -> str:
            if match[1] in places:
                return f"{{{match[1]}}}"
            return places.get(match[2], match[0])

        return PLACE.sub(filled, word)

    def check_used(self, words: Iterable[str], *, every: Sequence[str]) -> None:
        """Raises ConfigError unless the words use a column, and all of these."""
        used = {name for word in words for name in names_in(word)}
        unused = [name for name in every if name not in used]
        if unused:
            near = [name for name in used if did_you_mean(name, [unused[0]]).startswith("did")]
            wrote = f"it has `{{{near[0]}}}`" if near else f"write `{{{unused[0]}}}` where its value goes"
            raise ConfigError(f"the command does not use `{{{unused[0]}}}`", hint=wrote)
        if not used & set(self.columns):
            known = ", ".join(f"`{{{name}}}`" for name in self.columns[:20])
            raise ConfigError("the command uses no column of --each", hint=f"there are: {known}")


def is_table(path: Path) -> bool:
    """Whether the name of a file says that it has columns and a header."""
    return path.suffix.lower() in DELIMITERS


def read_table(text: str, *, source: str, delimiter: str = ",") -> EventTable:
    """The rows of CSV text with a header. Raises ConfigError that names the line."""
    reader = csv.reader(
        io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=delimiter, strict=True
    )
    rows: list[tuple[str, ...]] = []
    header: tuple[str, ...] | None = None
    try:
        for row in reader:
            if not row:
                continue
            if header is None:
                header = _header([name.strip() for name in row], source)
            elif len(row) != len(header):
                raise ConfigError(
                    f"{source}, line {reader.line_num}: {counted_text(len(row), 'value')}, "
                    f"the header names {counted_text(len(header), 'column')}"
                )
            elif len(rows) >= ROWS_MAX:
                raise ConfigError(f"{source}: more than {ROWS_MAX:,} rows")
            else:
                rows.append(tuple(row))
    except csv.Error as error:
        raise ConfigError(f"{source}, line {reader.line_num}: {error}") from error
    if header is None or not rows:
        raise ConfigError(
            f"{source} has no rows", hint="the first line names the columns, each other one is an event"
        )
    return EventTable(header, rows)


def _header(names: list[str], source: str) -> tuple[str, ...]:
    for name in names:
        if not _NAME.fullmatch(name) or name in RESERVED or name.startswith(("input.", "column.")):
            raise ConfigError(
                f"{source}: `{name}` cannot be the name of a column",
                hint="the first line names the columns; a name starts with a letter, has no braces, and is not one of "
                + ", ".join(f"`{each}`" for each in sorted(RESERVED)),
            )
    doubled = [name for name in names if names.count(name) > 1]
    if doubled or len(names) > COLUMNS_MAX:
        raise ConfigError(
            f"{source}: it has two columns `{doubled[0]}`" if doubled else f"{source}: too many columns"
        )
    return tuple(names)


def parse_sweep(text: str) -> tuple[str, list[str]]:
    """Name and values of `mass=100,125,150` or `seed=1..10`. Raises ConfigError."""
    name, equals, listed = text.partition("=")
    if not equals or not listed:
        raise ConfigError(
            f"--sweep {text}: there are no values", hint="write --sweep mass=100,125,150 or seed=1..10"
        )
    _header([name], "--sweep")
    values: list[str] = []
    for part in listed.split(","):
        span = _RANGE.fullmatch(part)
        if span is None:
            values.append(part)
            continue
        first, last = int(span[1]), int(span[2])
        if abs(last - first) >= ROWS_MAX:
            raise ConfigError(f"--sweep {name}: `{part}` has more than {ROWS_MAX:,} values")
        step = 1 if last >= first else -1
        values += [str(each) for each in range(first, last + step, step)]
    for number, value in enumerate(values, 1):
        if not is_utf8(value):
            raise ConfigError(
                f"--sweep {name}: value {number}, `{shown(value)}`, is not valid UTF-8",
                hint="write it in UTF-8",
            )
    return name, values


def swept(sweeps: Sequence[tuple[str, list[str]]], *, together: bool) -> EventTable:
    """All combinations of the values, the last name varying fastest; `together`: the first values, the second ones, ...

    Raises ConfigError where lists of different lengths go together, or there are too many combinations.
    """
    columns = _header([name for name, _ in sweeps], "--sweep")
    lengths = [len(values) for _, values in sweeps]
    if together:
        if len(set(lengths)) > 1:
            listed = ", ".join(f"`{name}` {n}" for (name, _), n in zip(sweeps, lengths, strict=True))
            raise ConfigError(f"--zip needs lists of one length; there are {listed} values")
        return EventTable(columns, list(zip(*(values for _, values in sweeps), strict=True)))
    number = 1
    for length in lengths:
        number *= length
    if number > ROWS_MAX:
        raise ConfigError(f"--sweep: {number:,} combinations, at most {ROWS_MAX:,} are possible")
    return EventTable(columns, list(itertools.product(*(values for _, values in sweeps))))


def crossed(first: EventTable, second: EventTable) -> EventTable:
    """Each row of one table with each of another. Raises ConfigError."""
    columns = _header([*first.columns, *second.columns], "--each and --sweep")
    if len(first.rows) * len(second.rows) > ROWS_MAX:
        raise ConfigError(f"--each and --sweep: more than {ROWS_MAX:,} combinations")
    return EventTable(columns, [(*a, *b) for a in first.rows for b in second.rows])
