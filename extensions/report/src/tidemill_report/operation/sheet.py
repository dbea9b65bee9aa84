"""A table of a report: named columns with units, rows of plain values. Written as CSV, Parquet, Arrow. Knows no
HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidemill.errors import ConfigError, install_hint
from tidemill.files import make_readable, write_whole
from tidemill.printable import harmless

Value = str | int | float | None


class Column(NamedTuple):
    """A column. `kind`: `text`, `count` (whole numbers), `number`, or `share` (0 to 1)."""

    name: str
    unit: str = ""
    kind: str = "number"


class Sheet(NamedTuple):
    """A table with its definition in words. `name` is the name of its files and frames."""

    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Value, ...]]

    def column(self, name: str) -> list[Any]:
        """The values of a column."""
        k = [each.name for each in self.columns].index(name)
        return [row[k] for row in self.rows]


def text(name: str) -> Column:
    """A column of texts."""
    return Column(name, "", "text")


def count(name: str, unit: str = "") -> Column:
    """A column of whole numbers."""
    return Column(name, unit, "count")


def share(name: str) -> Column:
    """A column of shares of one."""
    return Column(name, "", "share")


def csv_text(sheet: Sheet) -> str:
    """The sheet as CSV (RFC 4180): a line of names, then rows; what is not known is empty, texts are `harmless`."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([each.name for each in sheet.columns])
    writer.writerows([[_cell(value) for value in row] for row in sheet.rows])
    return out.getvalue()


def _cell(value: Value) -> Value:
    return "" if value is None else harmless(value) if isinstance(value, str) else value


def write_csv(directory: Path, sheets: Sequence[Sheet]) -> list[Path]:
    """Write `NAME.csv` of each sheet; their paths. Raises ConfigError."""
    result = []
    for sheet in sheets:
        path = _directory(directory) / f"{sheet.name}.csv"
        write_whole(path, csv_text(sheet).encode(), mode=0o644, failure=ConfigError)
        result.append(path)
    return result


def write_parquet(directory: Path, sheets: Sequence[Sheet]) -> list[Path]:
    """Write `NAME.parquet` of each sheet; their paths. Raises ConfigError, also without pyarrow."""
    need_pyarrow("Parquet files cannot be written")
    import pyarrow.parquet

    result = []
    for sheet in sheets:
        path, out = _directory(directory) / f"{sheet.name}.parquet", io.BytesIO()
        pyarrow.parquet.write_table(arrow(sheet), out, compression="zstd")
        write_whole(path, out.getvalue(), mode=0o644, failure=ConfigError)
        result.append(path)
    return result


def need_pyarrow(what: str) -> None:
    """Raises ConfigError that says `what` cannot be done, where pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{what}: {error}", hint=install_hint("archive")) from error


def arrow(sheet: Sheet) -> Any:
    """The sheet as an Arrow table; units and definition stand in its metadata."""
    import pyarrow

    types = {"text": pyarrow.string(), "count": pyarrow.int64()}
    columns = list(zip(*sheet.rows, strict=True)) or [()] * len(sheet.columns)
    fields = [
        pyarrow.field(each.name, types.get(each.kind, pyarrow.float64()), metadata={"unit": each.unit})
        for each in sheet.columns
    ]
    arrays = [pyarrow.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    schema = pyarrow.schema(fields, {"title": sheet.title, "definition": sheet.about})
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _directory(path: Path) -> Path:
    try:
        make_readable(path)
    except OSError as error:
        raise ConfigError(f"failed to make directory `{path}`: {error.strerror}") from error
    return path
