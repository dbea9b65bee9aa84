"""`tidemill report --local`, `--archive DIR`: a report on months and years, from the files of a server on this
machine."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Parser
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import ConfigError, install_hint
from tidemill.files import write_whole
from tidemill.model.quantities import counted_text
from tidemill_report.cli.core_hours import print_core_hours

if TYPE_CHECKING:
    from tidemill.config.server import ServerConfig
    from tidemill_report.core_hours import CoreHoursReport
    from tidemill_report.operation.gather import OperationReport
    from tidemill_report.operation.sheet import Sheet

SHOWN = ("sites", "years", "months", "backfill", "failure_rate", "times")  #: sheets that stdout gets
MONTHS_SHOWN = 12  #: the latest ones
PAGE_ROWS = 1_000  #: allocations that are read from the database at a time


def define(parser: Parser) -> None:
    """Options of `report` that make it read files."""
    parser.add_argument(
        "--local",
        action="store_true",
        help="read the database and the archive of the server on this machine: every job there ever was "
        "(default: ask the server, which has the newest 1,000 campaigns)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="with --local: server.toml (default: HOME/server/server.toml)",
    )
    parser.add_argument(
        "--archive",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="read an archive of ended campaigns, or a copy of one; repeatable",
    )
    parser.add_argument(
        "--harvest",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="with --local or --archive: a site's directory `harvest`, for the waits of other users' jobs; repeatable",
    )
    parser.add_argument(
        "--stress",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="with --local or --archive: a directory of stress tests' runs; repeatable",
    )
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="DIR",
        help="write each table as CSV into a directory; without --local or --archive those of core-hours (default: no)",
    )
    parser.add_argument(
        "--parquet",
        type=Path,
        metavar="DIR",
        help="write each table as Parquet into a directory (default: no)",
    )


def is_wanted(args: Namespace) -> bool:
    """Whether these options ask for a report from files. Raises ConfigError where one of them lacks another."""
    reads = bool(args.local or args.archive)
    for option, value in (
        ("--parquet", args.parquet),
        ("--harvest", args.harvest),
        ("--stress", args.stress),
    ):
        if value and not reads:
            raise ConfigError(
                f"{option} needs a report from files",
                hint="add --local on the server's machine, or --archive DIR; in Python: `tidemill.frames`",
            )
    return reads


def run(args: Namespace) -> int:
    """Read the files, then print or write the report."""
    used = _core_hours(args) if args.local else None
    if used is not None and not has_pyarrow() and not (args.archive or args.html or args.parquet):
        _write_core_hours(args, used)
        return 0
    from tidemill_report.operation.gather import gather
    from tidemill_report.operation.sheet import need_pyarrow
    from tidemill_report.operation.source import ReportFiles, Window

    need_pyarrow("the archive cannot be read")
    window = Window(args.campaign, args.since, args.until)
    with tempfile.TemporaryDirectory(prefix="tidemill-report-") as temporary:
        directories = list(args.archive)
        if args.local:
            directories += _local(args, Path(temporary))
        operation = gather(ReportFiles(directories, window), harvest=args.harvest, stressed=args.stress)
    _write(args, operation, used)
    return 0


def _core_hours(args: Namespace) -> CoreHoursReport:
    """Core-hours from the database of this machine's server."""
    from tidemill import clock
    from tidemill.server.archive.live import store_of
    from tidemill.server.read.core_hours import CoreHoursQuestion, every
    from tidemill_report.core_hours import core_hours

    session = store_of(_config(args)).reader()
    try:
        question = CoreHoursQuestion(
            since_us=args.since or 0,
            until_us=args.until or 1 << 62,
            owner=None,
            after="",
            limit=PAGE_ROWS,
            now_us=clock.now_us(),
        )
        return core_hours(every(session, question), campaign=args.campaign)
    finally:
        session.close()


def _write_core_hours(args: Namespace, used: CoreHoursReport) -> None:
    """All that there is without pyarrow."""
    from tidemill_report.core_hours import sheets

    if args.csv is not None:
        write_tables(args.csv, sheets(used))
    if args.json:
        show_json(_as_json(sheets(used), used))
    elif args.csv is None:
        print_core_hours(used)
    say(f"months, failures and figures are not shown: they need pyarrow; {install_hint('archive')}")


def write_tables(directory: Path, sheets: Sequence[Sheet]) -> None:
    """Write `NAME.csv` of each table. Raises ConfigError."""
    from tidemill_report.operation.sheet import write_csv

    say(f"wrote {counted_text(len(write_csv(directory, sheets)), 'file')} into `{directory}`")


def _as_json(sheets: Sequence[Sheet], used: CoreHoursReport | None) -> dict[str, object]:
    """The rows of each table, and core-hours as the server's report has them: the same with pyarrow and without."""
    tables: dict[str, object] = {
        each.name: [dict(zip([c.name for c in each.columns], row, strict=True)) for row in each.rows]
        for each in sheets
    }
    return tables if used is None else {"core_hours": used, **tables}


def has_pyarrow() -> bool:
    """Whether reports of months can be made here."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def _config(args: Namespace) -> ServerConfig:
    """This machine's server. Raises ConfigError where it has no database."""
    from tidemill.client.home import home_dir
    from tidemill.config.server import ServerConfig, read_config
    from tidemill.server.archive.live import store_of

    path = args.config or home_dir(args.home) / "server" / "server.toml"
    config = read_config(path) if args.config or path.exists() else ServerConfig(dir=path.parent)
    store = store_of(config)
    if store.path is not None and not store.path.exists():
        raise ConfigError(
            f"there is no database `{store.path}`", hint="name the server's file: --config server.toml"
        )
    return config


def _local(args: Namespace, temporary: Path) -> list[Path]:
    """The archive of this machine's server, and its database in the same form."""
    from tidemill import clock
    from tidemill.server.archive.live import archive_of, export, store_of

    config = _config(args)
    session = store_of(config).reader()
    try:
        export(session, temporary, now_us=clock.now_us())
    finally:
        session.close()
    archive = archive_of(config)
    return [*([archive] if archive.is_dir() else []), temporary]


def _write(args: Namespace, operation: OperationReport, used: CoreHoursReport | None) -> None:
    from tidemill_report.core_hours import sheets as sheets_of
    from tidemill_report.operation.gather import nothing
    from tidemill_report.operation.page import page
    from tidemill_report.operation.sheet import write_parquet

    sheets = [*([] if used is None else sheets_of(used)), *operation.sheets.values()]
    if not operation.jobs.sums:
        say(nothing(operation.source))
    if args.html is not None:
        write_whole(args.html, page(operation).encode(), mode=0o644, failure=ConfigError)
        say(f"wrote `{args.html}`")
    if args.csv is not None:
        write_tables(args.csv, sheets)
    if args.parquet is not None:
        say(f"wrote {counted_text(len(write_parquet(args.parquet, sheets)), 'file')} into `{args.parquet}`")
    if args.json:
        show_json(_as_json(sheets, used))
    elif args.html is None and args.csv is None and args.parquet is None:
        if used is not None:
            print_core_hours(used)
        _print(operation)


def _print(operation: OperationReport) -> None:
    from tidemill_report.operation.page import cell_text

    for name in SHOWN:
        sheet = operation.sheets.get(name)
        if sheet is None:
            continue
        sheet, left_out = _latest(sheet)
        show(sheet.title)
        heads = [
            f"{each.name.upper().replace('_', ' ')}{f' ({each.unit})' if each.unit else ''}"
            for each in sheet.columns
        ]
        rows = [
            [cell_text(cell, each) for cell, each in zip(row, sheet.columns, strict=True)]
            for row in sheet.rows
        ]
        show_table(heads, rows, right=[k for k, each in enumerate(sheet.columns) if each.kind != "text"])
        if left_out:
            show(f"{left_out:,} earlier months: --html FILE, --csv DIR")
        show("")


def _latest(sheet: Sheet) -> tuple[Sheet, int]:
    """The sheet with its latest months, and how many are left out."""
    if sheet.columns[0].name != "month":
        return sheet, 0
    months = sorted(set(sheet.column("month")))
    shown = set(months[-MONTHS_SHOWN:])
    latest = [cells for cells, month in zip(sheet.rows, sheet.column("month"), strict=True) if month in shown]
    return sheet._replace(rows=latest), len(months) - len(shown)
