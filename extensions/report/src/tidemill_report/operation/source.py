"""The files that a report reads: archives of servers, and what their databases still hold in the same form.

Streams: a piece of at most `ROWS` rows with the columns that were asked for is in memory at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidemill.errors import SiteError
from tidemill.model.campaign import parse_reference, reference
from tidemill.server.archive.live import MONTH as LIVE
from tidemill.server.archive.parquet import OPERATION, OPERATION_KEYS

ROWS = 65_536
LATER = ("events_canceled",)  #: columns that files of earlier versions lack: 0
MONTH = re.compile(rf"\d{{4}}-\d{{2}}|{LIVE}")  #: a folder of an archive


class Window(NamedTuple):
    """What a report is on: a campaign (`NAME` or `OWNER/NAME`), or what ended from `since_us` on, before `until_us`."""

    campaign: str | None = None
    since_us: int | None = None
    until_us: int | None = None

    def has(self, at_us: int) -> bool:
        """Whether a time is inside."""
        return (self.since_us is None or at_us >= self.since_us) and (
            self.until_us is None or at_us < self.until_us
        )


class ReportFiles:
    """Archive directories, each with folders of months (`2026-07`, or `live` for what a database holds).

    An empty directory is an archive that has received nothing yet. Raises SiteError for any other path that
    is not an archive.
    """

    def __init__(self, directories: Sequence[Path], window: Window = Window()) -> None:  # noqa: B008 - a constant
        self.directories, self.window = tuple(directories), window
        for each in self.directories:
            _check(each)
        # Looked up now: the form of a database is a temporary one, and gone when the report is written
        self.is_empty = not self.files("jobs")  #: no archive has a job
        self._check_campaign()
        self.has_live = any((each / LIVE).is_dir() for each in self.directories)  #: a database is among them

    def _check_campaign(self) -> None:
        """Raise SiteError for a bare name that several owners use."""
        if self.window.campaign is None or "/" in self.window.campaign:
            return
        import pyarrow.compute as pc

        owners: set[str] = set()
        for _, piece in self.pieces("campaigns", ("name", "owner")):
            owners.update(piece.filter(pc.equal(piece["name"], self.window.campaign))["owner"].to_pylist())
        if len(owners) > 1:
            named = ", ".join(f"`{reference(each, self.window.campaign)}`" for each in sorted(owners))
            raise SiteError(
                f"several owners have a campaign `{self.window.campaign}`: {named}",
                hint="name one of them as OWNER/NAME",
                transient=False,
            )

    def of_campaign(self, table: Any, path: Path | None = None) -> Any:
        """The rows of the window's campaign, of a table with `campaign`, and `owner` or, in the file of that path,
        `job`."""
        if self.window.campaign is None:
            return table
        import pyarrow.compute as pc

        owner, name = parse_reference(self.window.campaign)
        table = table.filter(pc.equal(table["campaign"], name))
        if owner is None or not len(table):
            return table
        if path is None:
            return table.filter(pc.equal(table["owner"], owner))
        jobs = path.with_name(path.name.replace("-failures.", "-jobs."))
        own: list[int] = []
        for piece in pieces_of(jobs, ("id", "campaign", "owner")):
            own += self.of_campaign(piece)["id"].to_pylist()
        return table.filter(pc.is_in(table["job"], value_set=_ids(own)))

    def files(self, table: str) -> list[Path]:
        """The files of a table, in the order of months and batches."""
        return sorted(path for each in self.directories for path in each.glob(f"*/[0-9]*-{table}.parquet"))

    def pieces(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Path, Any]]:
        """Pieces of a table's rows with these columns, and the file of each. Raises SiteError that names the file."""
        for path in self.files(table):
            for piece in pieces_of(path, columns):
                yield path, piece

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All records that sites reported, of one of the OPERATION tables; of one reported again, the last version."""
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        names = [each.partition(":")[0] for each in OPERATION[table].split()]
        keys = names[: OPERATION_KEYS[table]]
        if table in ("grants", "caches", "staging", "staging_times"):
            keys.append("month")  # a line of each month
        for path in sorted(p for each in self.directories for p in each.glob(f"*/operation-{table}.parquet")):
            for piece in pieces_of(path, names):
                for row in piece.to_pylist():
                    row["month"] = path.parent.name
                    found[tuple(row[key] for key in keys)] = row
        return list(found.values())


def _check(directory: Path) -> None:
    """Raise SiteError for what is not an archive of a server."""
    hint = "name a server's archive, or a copy of it: `archive` in the server's directory"
    if not directory.is_dir():
        found = "is not a directory" if directory.exists() else "does not exist"
        raise SiteError(f"there is nothing to report on: `{directory}` {found}", hint=hint, transient=False)
    try:
        names = sorted(each.name for each in directory.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise SiteError(
            f"archive `{directory}` cannot be read: {error.strerror}",
            hint="run it as the server's user",
            transient=False,
        ) from error
    strange = [name for name in names if not MONTH.fullmatch(name)]
    if (
        not strange
        or any(directory.glob("*/[0-9]*-jobs.parquet"))
        or any(directory.glob("*/operation-*.parquet"))
    ):
        return
    if MONTH.fullmatch(directory.resolve().name) and any(directory.glob("*.parquet")):
        above = directory.resolve().parent
        hint = f"it is one month of an archive: name `{above}`, and the month by --since and --until"
    raise SiteError(
        f"`{directory}` is not an archive: it has no folders of months with Parquet files of jobs, but `{strange[0]}`",
        hint=hint,
        transient=False,
    )


def pieces_of(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """Pieces of a file's rows with these columns. Raises SiteError that names the file."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(ROWS, columns=list(columns), use_threads=False):
                there = set(batch.schema.names)
                later = [name for name in columns if name in LATER and name not in there]
                yield pyarrow.table(
                    {
                        name: _zeros(batch.num_rows) if name in later else _plain(batch.column(name))
                        for name in columns
                    }
                )
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are the first two
        raise SiteError(
            f"file `{path}` of the archive cannot be read: {str(error)[:200]}",
            hint="restore the file from a copy, or move it away to report on the rest",
            transient=False,
        ) from error


def _ids(numbers: Sequence[int]) -> Any:
    """Numbers of jobs as pyarrow has them."""
    import pyarrow

    return pyarrow.array(numbers, pyarrow.int64())


def _zeros(rows: int) -> Any:
    """A column of a later version, of a file of an earlier one."""
    import pyarrow

    return pyarrow.array([0] * rows, pyarrow.int64())


def _plain(column: Any) -> Any:
    """Words as texts: pieces with different dictionaries could not be put together."""
    import pyarrow

    return column.cast(pyarrow.string()) if pyarrow.types.is_dictionary(column.type) else column
