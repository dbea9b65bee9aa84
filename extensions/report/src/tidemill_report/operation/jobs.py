"""One pass over the jobs of a report: sums by month, site, application and state; distributions of times and of I/O.

Streams Arrow tables; keeps sums only. Estimates from traces are those of `Traces`, and stay apart from what was
counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidemill import clock
from tidemill_report.operation.moments import BINS_PER_DECADE, PieceSums, Spread
from tidemill_report.operation.source import ReportFiles, pieces_of

COLUMNS = (
    "id", "campaign", "owner", "app", "state", "site", "events", "events_done", "events_failed", "events_canceled",
    "created_us", "started_us", "ended_us", "cores", "nodes", "ranks", "payloads", "wall_us", "setup_us", "user_us",
    "system_us", "read_bytes", "write_bytes",
)  # fmt: skip
SUMS = (
    "jobs", "events", "events_done", "events_failed", "events_canceled", "payloads", "wall_us", "setup_us", "cpu_us",
    "core_us", "read_bytes", "write_bytes",
)  # fmt: skip
COUNTED = {
    "nodes": "nodes", "duration": "s", "read": "GB", "written": "GB", "read_per_node": "GB", "written_per_node": "GB",
}  # fmt: skip
"""Quantities of a job that were counted, and their units."""
ESTIMATED = {
    "opens": "", "closes": "", "metadata_ok": "", "metadata_failed": "",
}  # fmt: skip
"""Quantities of a job that are estimated: its payloads times what traced payloads of its application did."""
OF_DAY = ("jobs", "completed", "failed", "events_done")
DAY_US = 86_400_000_000
SETUP, EVENT = "setup", "event"


class JobKey(NamedTuple):
    """A line of the sums. `month`: `2026-07`, in which the job ended (or, still running, started)."""

    month: str
    site: str
    app: str
    state: str


class TraceFigures(NamedTuple):
    """What a payload of an application does at a site, on average over traced ones; None = not counted."""

    runs: int
    opens: int
    closes: int | None
    ok: int
    failed: int


class JobSums:
    """What the pass adds up."""

    def __init__(self, traces: dict[tuple[str, str], TraceFigures]) -> None:
        self.traces = traces  #: by site and application
        self.sums: dict[JobKey, list[int]] = defaultdict(lambda: [0] * len(SUMS))
        self.days: dict[tuple[str, str], list[int]] = defaultdict(
            lambda: [0] * len(OF_DAY)
        )  #: by day and site
        self.times: dict[tuple[str, str, str], Spread] = defaultdict(
            Spread
        )  #: by quantity, application, site
        self.io: dict[tuple[str, str], Spread] = defaultdict(Spread)  #: by quantity and application

    def read(self, source: ReportFiles) -> None:
        """Add all jobs of a source."""
        cores: dict[Path, Any] = {}
        for path, piece in source.pieces("jobs", COLUMNS):
            table = _within(piece, source)
            if table.num_rows:
                self.add(_with_cores(table, path, cores))

    def add(self, table: Any) -> None:
        """Add a table of jobs with the columns of COLUMNS."""
        import pyarrow.compute as pc

        table = _prepared(table)
        self._add_sums(table)
        self._add_days(table)
        ran = table.filter(pc.and_(pc.greater(table["payloads"], 0), pc.is_valid(table["started_us"])))
        if not ran.num_rows:
            return
        events = _ratio(pc.subtract(ran["wall_us"], ran["setup_us"]), ran["events_done"], 1e6)
        setup = _ratio(ran["setup_us"], ran["payloads"], 1e6)
        for name, values in ((SETUP, setup), (EVENT, events)):
            for key, spread in spreads(ran, ("app", "site"), values).items():
                _merge(self.times[name, key[0], key[1]], spread)
        for name, values in self._io(ran).items():
            for key, spread in spreads(ran, ("app",), values).items():
                _merge(self.io[name, key[0]], spread)

    def _add_sums(self, table: Any) -> None:
        keys = ["month", "site", "app", "state"]
        found = table.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in SUMS])
        months, *rest = (found[key].to_pylist() for key in keys)
        columns = [found[f"{name}_sum"].to_pylist() for name in SUMS]
        for month, site, app, state, *values in zip(months, *rest, *columns, strict=True):
            line = self.sums[JobKey(f"{month // 12:04d}-{month % 12 + 1:02d}", site or "", app, state)]
            for k, value in enumerate(values):
                line[k] += int(value or 0)

    def _add_days(self, table: Any) -> None:
        import pyarrow.compute as pc

        table = _with(table, {
            "day": pc.divide(table["at_us"], DAY_US),
            "completed": pc.equal(table["state"], "COMPLETED").cast("int64"),
            "failed": pc.equal(table["state"], "FAILED").cast("int64"),
        })  # fmt: skip
        found = table.group_by(["day", "site"], use_threads=False).aggregate(
            [(name, "sum") for name in OF_DAY]
        )
        columns = [found[f"{name}_sum"].to_pylist() for name in OF_DAY]
        for at, site, *values in zip(
            found["day"].to_pylist(), found["site"].to_pylist(), *columns, strict=True
        ):
            line = self.days[clock.utc_text(at * DAY_US)[:10], site or ""]
            for k, value in enumerate(values):
                line[k] += int(value or 0)

    def _io(self, ran: Any) -> dict[str, Any]:
        """The quantities of each job, as columns."""
        import pyarrow.compute as pc

        nodes = ran["width"]
        ended = pc.subtract(ran["ended_us"], ran["started_us"])
        result = {
            "nodes": nodes.cast("double"),
            "duration": pc.divide(ended.cast("double"), 1e6),
            "read": pc.divide(ran["read_bytes"].cast("double"), 1e9),
            "written": pc.divide(ran["write_bytes"].cast("double"), 1e9),
            "read_per_node": _ratio(ran["read_bytes"], nodes, 1e9),
            "written_per_node": _ratio(ran["write_bytes"], nodes, 1e9),
        }
        if self.traces:
            keys = [f"{site}\0{app}" for site, app in self.traces]
            at = pc.index_in(
                pc.binary_join_element_wise(ran["site"], ran["app"], "\0"), value_set=_texts(keys)
            )
            figures = self.traces.values()
            for name, values in (
                ("opens", [each.opens for each in figures]),
                ("closes", [each.closes for each in figures]),
                ("metadata_ok", [each.ok for each in figures]),
                ("metadata_failed", [each.failed for each in figures]),
            ):
                per_run = _numbers(values).take(at.combine_chunks() if hasattr(at, "combine_chunks") else at)
                result[name] = pc.multiply(ran["payloads"].combine_chunks().cast("double"), per_run)
        return result


def spreads(table: Any, keys: Sequence[str], values: Any) -> dict[tuple[str, ...], Spread]:
    """The distribution of some values of a table's rows, by keys; rows without a value are left out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    log = pc.multiply(pc.log10(pc.if_else(pc.greater(values, 0.0), values, None)), float(BINS_PER_DECADE))
    both = pa.table({
        **{key: table[key] for key in keys},
        "v": values, "bin": pc.floor(log).cast("int32"),
    })  # fmt: skip
    both = both.filter(pc.is_valid(both["v"]))
    found: dict[tuple[str, ...], Spread] = defaultdict(Spread)
    grouped = both.group_by(list(keys), use_threads=False).aggregate(
        [("v", "count"), ("v", "sum"), ("v", "variance"), ("v", "min"), ("v", "max")]
    )
    for row in grouped.to_pylist():
        sums = PieceSums(
            row["v_count"], row["v_sum"], row["v_variance"] * row["v_count"], row["v_min"], row["v_max"]
        )
        found[tuple(row[key] or "" for key in keys)].add(sums)
    for row in both.group_by([*keys, "bin"], use_threads=False).aggregate([("v", "count")]).to_pylist():
        found[tuple(row[key] or "" for key in keys)].put(row["bin"], row["v_count"])
    return found


def _merge(into: Spread, more: Spread) -> None:
    into.add(PieceSums(more.count, more.total, more.scatter, more.low, more.high))
    into.put(None, more.zeros)
    for index, count in more.bins.items():
        into.put(index, count)


def _with(table: Any, columns: dict[str, Any]) -> Any:
    """The table with more columns."""
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table


def _within(table: Any, source: ReportFiles) -> Any:
    """The rows that the report is on. A job belongs to the time in which it ended, or else started or was made."""
    import pyarrow.compute as pc

    window = source.window
    at = pc.coalesce(table["ended_us"], table["started_us"], table["created_us"])
    table = table.append_column("at_us", at)
    table = source.of_campaign(table)
    if window.since_us is not None:
        table = table.filter(pc.greater_equal(table["at_us"], window.since_us))
    if window.until_us is not None:
        table = table.filter(pc.less(table["at_us"], window.until_us))
    return table


def _with_cores(table: Any, path: Path, cache: dict[Path, Any]) -> Any:
    """Cores of each payload: what the job asked for; else, of its leases, what its site gave it."""
    import pyarrow.compute as pc

    if pc.min(table["cores"]).as_py() > 0:
        return table
    if path not in cache:
        cache.clear()  # pieces come file by file
        cache[path] = _leased_cores(path.with_name(path.name.replace("-jobs.", "-leases.")))
    jobs, cores = cache[path]
    leased = cores.take(pc.index_in(table["id"].combine_chunks(), value_set=jobs))
    asked = table["cores"].combine_chunks()
    found = pc.if_else(pc.greater(asked, 0), asked, pc.coalesce(leased, asked))
    return table.set_column(table.schema.get_field_index("cores"), "cores", found)


def _leased_cores(path: Path) -> tuple[Any, Any]:
    """Jobs of a file of leases, and the most cores that a lease of each had."""
    import pyarrow as pa

    pieces = list(pieces_of(path, ("job", "cores"))) or [pa.table({"job": _whole([]), "cores": _whole([])})]
    found = pa.concat_tables(pieces).group_by("job", use_threads=False).aggregate([("cores", "max")])
    return found["job"].combine_chunks(), found["cores_max"].combine_chunks()


def _prepared(table: Any) -> Any:
    """With what sums are made of: month, width in nodes, CPU time, core time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at = table["at_us"].cast(pa.timestamp("us"))
    month = pc.add(pc.multiply(pc.year(at), 12), pc.subtract(pc.month(at), 1))
    nodes = pc.max_element_wise(table["nodes"], 1)
    ranks = pc.max_element_wise(table["ranks"], nodes)
    cores = pc.multiply(pc.max_element_wise(table["cores"], 1), ranks)
    return pa.table({
        **{name: table[name] for name in table.column_names},
        "month": month, "width": nodes, "jobs": pa.array([1] * table.num_rows, pa.int64()),
        "cpu_us": pc.add(table["user_us"], table["system_us"]),
        "core_us": pc.multiply(table["wall_us"], cores),
    })  # fmt: skip


def _ratio(above: Any, below: Any, unit: float) -> Any:
    """`above / below / unit` as doubles; none where `below` is 0."""
    import pyarrow.compute as pc

    divisor = pc.if_else(pc.greater(below, 0), below, None).cast("double")
    return pc.divide(pc.divide(above.cast("double"), unit), divisor)


def _texts(values: list[str]) -> Any:
    import pyarrow

    return pyarrow.array(values, pyarrow.string())


def _whole(values: list[int]) -> Any:
    import pyarrow

    return pyarrow.array(values, pyarrow.int64())


def _numbers(values: Sequence[int | None]) -> Any:
    import pyarrow

    return pyarrow.array(values, pyarrow.float64())
