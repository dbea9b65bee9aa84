"""The archive's files: one set of Parquet tables for each batch of campaigns, in a directory for each month.

    ARCHIVE/2026-07/00000012-jobs.parquet       also -campaigns, -leases, -failures, -outputs, -stays, -activity
    ARCHIVE/2026-07/operation-hours.parquet     also -allocations, -grants, -caches, -quarantine, -staging, -traces

A set is written beside, synced and renamed; the database says which sets are complete (`archive_batches`). What sites
reported about themselves is kept by month, and rewritten while the month lasts (`operation`). Knows no database.
"""

from __future__ import annotations

import errno
import importlib.util
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tidemill.errors import SiteError, install_hint
from tidemill.files import TEMPORARY, replaced, sync_directory

_USAGE = "payloads wall_us setup_us user_us system_us rss_kb read_bytes write_bytes"
COLUMNS: dict[str, str] = {
    "campaigns": "id name:text owner:text shares:float created_us jobs events events_done events_failed "
    f"{_USAGE} first_started_us last_ended_us states:text failures:text events_canceled",
    "jobs": "id campaign:word owner:word name:text app:word state:word site:word events events_done events_failed "
    "done:text failed:text priority seed_base created_us started_us ended_us reason:text attempts cores memory_mb "
    f"devices:word nodes ranks {_USAGE} spec:json remark:word events_canceled canceled:text",
    "leases": "job lease site:word first count state:word leased_us ended_us reason:text cores event_s:float",
    "failures": "job campaign:word event seed site:word final evidence:json",
    "outputs": "job campaign:word number name:text url:text size_bytes sha256:text events:text",
    "stays": "job number ward:word cure:word why:word admitted_us outcome:word site:word ended_us",
    "activity": "campaign:word job step_s at done failed busy_us cpu_us longest_us",
}
"""Columns of each table and their types; a number without. `word`: text that repeats; `json`: bytes of it."""
OPERATION: dict[str, str] = {
    "hours": "site:word hour minutes regular:float ours:float idle:float away:float",
    "allocations": "site:word name:text batch_id:text state:word nodes cores at_us reason:text busy_us slot_us "
    "started_us ended_us",
    "grants": "site:word account:word at_us granted:float used:float open:float left:float",
    "caches": "site:word name:word at_us since_us opens served hit known fetched bypass again wire_origin restarts",
    "quarantine": "site:word node:word since_us until_us why:text",
    "staging": "site:word nodes way:word since_us at_us files bytes ms square_ms max_ms",
    "staging_times": "site:word nodes way:word since_us edge_ms at_us files",
    "traces": "site:word app:word version:word at_us runs ops failed files opens opens_failed closes",
}
"""The same for what sites reported about themselves in a month. `hours`: mean nodes over the minutes that are known."""
OPERATION_KEYS = {
    "hours": 2,
    "allocations": 2,
    "grants": 2,
    "caches": 2,
    "quarantine": 3,
    "staging": 4,
    "staging_times": 5,
    "traces": 3,
}
"""The first columns of such a table that name a record: a later one of the same name replaces it."""
VERSION = 4  #: of the tables; in the metadata of each file since version 2; 4 counts canceled events
_VERSION_KEY = b"tidemill.archive"
_SINCE = {"stays": 2, "activity": 3}  #: version that brought a table
_UNREADABLE = (OSError, ValueError, TypeError, NotImplementedError)
"""What pyarrow's own errors are: the last two of a column of another type."""
_LOCK = threading.Lock()  #: one reader at a time: a page of the archive is rare, and takes some memory


def is_installed() -> bool:
    """Whether the extra `archive` is there."""
    return importlib.util.find_spec("pyarrow") is not None


class Archive:
    """The archive in a directory; None = there is none, and nothing is in it."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.trouble = ""  #: why campaigns that should be here are not, as far as is known

    def path(self, month: str, batch: int, table: str) -> Path:
        """Where a table of a batch is."""
        if self.directory is None:
            raise SiteError("this server has no archive directory", hint="ask the server that wrote it")
        return self.directory / month / f"{batch:08d}-{table}.parquet"

    def rows(
        self,
        month: str,
        batch: int,
        table: str,
        *,
        key: str,
        values: Sequence[int | str],
    ) -> list[dict[str, Any]]:
        """The rows of a table whose `key` is one of the values, in the file's order. Raises SiteError."""
        return self.matching(month, batch, table, [(key, "in", list(values))])

    def matching(
        self, month: str, batch: int, table: str, wanted: list[tuple[str, str, Any]]
    ) -> list[dict[str, Any]]:
        """The rows for which all of some conditions hold, as pyarrow's `filters` has them. Raises SiteError."""
        path = self.path(month, batch, table)
        try:
            with _LOCK:
                import pyarrow.parquet

                _refuse_special(path)
                found = pyarrow.parquet.read_table(path, filters=wanted, use_threads=False, pre_buffer=False)
                rows: list[dict[str, Any]] = found.to_pylist()
                return rows
        except ImportError as error:
            raise SiteError(
                f"the archive cannot be read: {error}", hint=f"at the server: {install_hint('archive')}"
            ) from error
        except _UNREADABLE as error:
            raise SiteError(
                f"file `{path.name}` of the archive cannot be read: {str(error)[:200]}",
                hint="is the archive's directory there? restore the file from a copy",
            ) from error

    def check(self, month: str, batch: int, jobs: int) -> None:
        """Raises SiteError unless all tables of a batch are there, and hold `jobs` jobs. Reads their footers only."""
        try:
            jobs_file = self._footer(month, batch, "jobs")
            version = int((jobs_file.metadata or {}).get(_VERSION_KEY, 1))
            found = {
                table: self._footer(month, batch, table).num_rows
                for table in COLUMNS
                if _SINCE.get(table, 1) <= version
            }
        except _UNREADABLE as error:
            raise SiteError(
                f"the files of batch {batch} in `{month}` of the archive cannot be read: {str(error)[:200]}",
                hint="is the archive's directory there? until it is, nothing of the batch leaves the database",
            ) from error
        if found["jobs"] != jobs:
            raise SiteError(
                f"the files of batch {batch} in `{month}` of the archive hold {found['jobs']} jobs, not {jobs}",
                hint="nothing of the batch leaves the database; report this with the server's log",
            )

    def _footer(self, month: str, batch: int, table: str) -> Any:
        import pyarrow.parquet

        path = self.path(month, batch, table)
        _refuse_special(path)
        return pyarrow.parquet.read_metadata(path)

    @contextmanager
    def batch(self, month: str, batch: int) -> Iterator[BatchWriter]:
        """Tables to write; when the block ends they are complete and durable, after an error there are none."""
        folder = self.path(month, batch, "jobs").parent
        make_durable(folder)
        for torn in folder.glob(f".{batch:08d}-*{TEMPORARY}"):  # of a server that was killed
            torn.unlink(missing_ok=True)
        with ExitStack() as files:
            opened = {
                table: files.enter_context(replaced(self.path(month, batch, table))) for table in COLUMNS
            }
            with BatchWriter(opened) as writer:
                yield writer


def _refuse_special(path: Path) -> None:
    """Raises OSError for what is there and no file: to open a pipe takes for ever."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def operation_path(directory: Path, month: str, table: str) -> Path:
    """The path of a table of what sites reported in a month."""
    return directory / month / f"operation-{table}.parquet"


def make_durable(folder: Path) -> None:
    """Make a directory and those above it; on return all of them survive a crash. Raises OSError.

    A link to a directory is one; what a broken link leads to is not made: a file system may not be mounted there.
    """
    if not folder.is_dir():
        if folder.is_symlink():
            raise FileNotFoundError(errno.ENOENT, "the link leads to no directory", str(folder))
        make_durable(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    sync_directory(folder.parent)


class BatchWriter:
    """Writes rows of tables as row groups. Memory: those of one call."""

    def __init__(self, files: dict[str, Any]) -> None:
        import pyarrow.parquet

        self._schemas = {table: schema_of(text) for table, text in COLUMNS.items()}
        self._writers = {
            table: pyarrow.parquet.ParquetWriter(file, self._schemas[table], compression="zstd")
            for table, file in files.items()
        }

    def write(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Append rows, in the order of COLUMNS."""
        import pyarrow

        schema, columns = self._schemas[table], list(zip(*rows, strict=True))
        if columns:
            arrays = [
                pyarrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)
            ]
            self._writers[table].write_table(pyarrow.Table.from_arrays(arrays, schema=schema))

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()


def schema_of(text: str) -> Any:
    """The Arrow schema of columns as COLUMNS has them."""
    import pyarrow

    types = {
        "": pyarrow.int64(), "float": pyarrow.float64(), "text": pyarrow.string(), "json": pyarrow.binary(),
        "word": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    }  # fmt: skip
    pairs = [column.partition(":") for column in text.split()]
    return pyarrow.schema(
        [(name, types[kind]) for name, _, kind in pairs], {_VERSION_KEY: str(VERSION).encode()}
    )
