"""Data frames of reports, for those who want to plot themselves: Arrow tables, or pandas or polars by your choice.

    from tidemill import frames

    year = frames.from_archive("archive")          # of a server on this machine, or a copy of its archive
    year["months"].to_pandas()                     # the tables of `tidemill report`: `list(year)` names them
    year["io"].to_polars()
    year.jobs(["app", "site", "wall_us"]).arrow    # single jobs; so `failures`, `allocations`
    live = frames.from_client(Client())            # what the server's API returns: newest jobs, failures, allocations
    frames.samples(Client(), "tm-titan-7")         # what the nodes of an allocation did, over time

`from_archive` needs `tidemill[archive]`; `to_pandas` and `to_polars` need `tidemill[pandas]` and `tidemill[polars]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidemill.client.client import Client
from tidemill.errors import ConfigError, install_hint
from tidemill.server.archive.operation import month_of
from tidemill_report.operation.gather import gather
from tidemill_report.operation.sheet import Column, Sheet, arrow, count, need_pyarrow, text
from tidemill_report.operation.source import ReportFiles, Window
from tidemill_report.query import ALLOCATIONS_MAX, FAILURES_MAX, JOBS_MAX

JOB_COLUMNS = (
    "id", "campaign", "owner", "name", "app", "state", "site", "events", "events_done", "events_failed",
    "events_canceled", "created_us", "started_us", "ended_us", "cores", "memory_mb", "nodes", "ranks", "payloads",
    "wall_us", "setup_us", "user_us", "system_us", "rss_kb", "read_bytes", "write_bytes",
)  # fmt: skip


class ReportFrame:
    """A table of a report: `arrow` is a pyarrow.Table, whose schema says title, definition and units."""

    def __init__(self, table: Any) -> None:
        self.arrow = table

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. Raises ConfigError where pandas is not installed."""
        _need("pandas")
        return self.arrow.to_pandas()

    def to_polars(self) -> Any:
        """A polars.DataFrame. Raises ConfigError where polars is not installed."""
        polars = _need("polars")
        return polars.from_arrow(self.arrow)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.arrow.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __repr__(self) -> str:
        return f"ReportFrame({self.arrow.num_rows} rows: {', '.join(self.arrow.column_names)})"


class Frames(Mapping[str, ReportFrame]):
    """The tables of a report by name, as `--csv` and `--parquet` name them. Without those of which nothing is known."""

    def __init__(self, sheets: Sequence[Sheet], source: ReportFiles | None = None) -> None:
        self._frames = {each.name: ReportFrame(arrow(each)) for each in sheets}
        self._source = source

    def __getitem__(self, name: str) -> ReportFrame:
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)

    def jobs(self, columns: Sequence[str] = JOB_COLUMNS) -> ReportFrame:
        """Single jobs, with some columns of the archive. Memory: all of them. Raises ConfigError for a client's
        frames."""
        return self._stored("jobs", columns)

    def failures(self) -> ReportFrame:
        """Single failures; `evidence` is JSON."""
        return self._stored("failures", ("job", "campaign", "event", "seed", "site", "final", "evidence"))

    def allocations(self) -> ReportFrame:
        """Single allocations that have ended."""
        import pyarrow

        rows = self._files().rows("allocations")
        return ReportFrame(pyarrow.Table.from_pylist(rows))

    def _stored(self, table: str, columns: Sequence[str]) -> ReportFrame:
        import pyarrow

        source = self._files()
        asked = list(dict.fromkeys(columns))
        pieces = [
            within(piece, source, path, table) for path, piece in source.pieces(table, _needed(asked, table))
        ]
        if not pieces:
            return ReportFrame(pyarrow.table({name: [] for name in asked}))
        return ReportFrame(pyarrow.concat_tables(pieces).select(asked))

    def _files(self) -> ReportFiles:
        if self._source is None:
            raise ConfigError(
                "single rows of these frames are among them already",
                hint='`frames["jobs"]`; all that there ever was: `from_archive` on the server\'s machine',
            )
        return self._source


def from_archive(
    *directories: str | Path,
    campaign: str | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    harvest: Sequence[str | Path] = (),
) -> Frames:
    """The tables of a report on archives, as `tidemill report --archive` makes it. Raises ConfigError, SiteError."""
    need_pyarrow("an archive cannot be read")
    source = ReportFiles([Path(each) for each in directories], Window(campaign, since_us, until_us))
    operation = gather(source, harvest=[Path(each) for each in harvest])
    return Frames(list(operation.sheets.values()), source)


def from_client(client: Client, *, campaign: str | None = None) -> Frames:
    """What a server reports: campaigns, the newest jobs, failures and allocations, and the jobs and events of these by
    month."""
    need_pyarrow("data frames cannot be made")
    jobs = list(client.jobs(campaign=campaign, limit=JOBS_MAX))
    failures = client.failures(campaign=campaign, limit=FAILURES_MAX)
    about = (
        f"The newest {JOBS_MAX:,} jobs that the server knows; a job that still runs counts where it started."
    )
    months: dict[tuple[str, str], list[int]] = {}
    for job in jobs:
        key = (month_of(job.ended_us or job.started_us or job.created_us), job.site or "-")
        line = months.setdefault(key, [0, 0, 0, 0])
        for k, value in enumerate((1, job.events_done, job.events_failed, job.events_canceled)):
            line[k] += value
    columns = (
        text("month"), text("site"), count("jobs"), count("events_done"), count("events_failed"),
        count("events_canceled"),
    )  # fmt: skip
    flat = [
        {"job": each.job, "event": each.event, "seed": each.seed, "site": each.site, "final": each.final,
         **msgspec.to_builtins(each.evidence)}
        for each in failures
    ]  # fmt: skip
    result = Frames([Sheet("months", "Jobs and events per month", about, columns,
                          [(*key, *line) for key, line in sorted(months.items())])])  # fmt: skip
    tables: dict[str, Sequence[Any]] = {
        "campaigns": [client.campaign(campaign)] if campaign else client.campaigns(),
        "jobs": jobs,
        "failures": flat,
        "allocations": client.allocations(limit=ALLOCATIONS_MAX),
    }
    for name, rows in tables.items():
        result._frames[name] = _frame(rows)
    return result


def samples(client: Client, allocation: str, *, site: str | None = None) -> ReportFrame:
    """What the nodes of an allocation did over time: a row for each sample that the server holds, of the last two
    hours at most. `node` is null in the rows of means. Units stand in the schema, what is not known is null."""
    need_pyarrow("data frames cannot be made")
    reply = client.node_samples(allocation, site=site)
    about = (
        f"Samples of nodes of {reply.allocation} at {reply.site}, and means of all its nodes (null); "
        f"{reply.nodes_total} nodes sent samples in the end. A mean x nodes is what the batch job did."
    )
    columns = (
        text("node"), count("at_us", "us"), Column("over_s", "s"),
        *(Column(name, unit) for name, unit in zip(reply.quantities, reply.units, strict=True)),
    )  # fmt: skip
    series = [*((each.node, each.points) for each in reply.nodes), (None, reply.mean)]
    rows = [
        (
            node,
            point.at_us,
            point.over_us / 1e6,
            *point.values,
            *[None] * (len(columns) - 3 - len(point.values)),
        )
        for node, points in series
        for point in points
    ]
    return ReportFrame(arrow(Sheet("samples", "Samples of nodes", about, columns, rows)))


def within(table: Any, source: ReportFiles, path: Path, name: str) -> Any:
    """The rows of a stored table that are in a window; failures by their campaign only."""
    import pyarrow.compute as pc

    window = source.window
    table = source.of_campaign(table, None if name == "jobs" else path)
    if name == "jobs" and (window.since_us, window.until_us) != (None, None):
        at = pc.coalesce(table["ended_us"], table["started_us"], table["created_us"])
        low, high = window.since_us or 0, window.until_us if window.until_us is not None else 1 << 62
        table = table.filter(pc.and_(pc.greater_equal(at, low), pc.less(at, high)))
    return table


def _needed(columns: list[str], table: str) -> list[str]:
    more = ["campaign", "owner", "created_us", "started_us", "ended_us"] if table == "jobs" else []
    return list(dict.fromkeys([*columns, *more]))


def _frame(rows: Sequence[Any]) -> ReportFrame:
    import pyarrow

    return ReportFrame(pyarrow.Table.from_pylist([msgspec.to_builtins(each) for each in rows]))


def _need(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"there is no data frame of {package}: {error}", hint=install_hint(package)
        ) from error
