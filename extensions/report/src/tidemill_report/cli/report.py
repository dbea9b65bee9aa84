"""`tidemill report`: core-hours and what was done, as tables, or as one HTML page to keep and to send; asked from the
server, or read from its files (`from_files`)."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, client_of, moment
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import ConfigError
from tidemill.files import read_bounded, write_whole
from tidemill.model.campaign import shown_names
from tidemill.model.quantities import count_text, duration_text, percent_text, rate_text, ratio
from tidemill_report.cli import from_files
from tidemill_report.cli.core_hours import print_core_hours

if TYPE_CHECKING:
    from tidemill.wire.api import CampaignRow
    from tidemill.wire.hospital import WardRow
    from tidemill_report.query import ReportData

PART_BYTES_MAX = 50_000_000


def define(parser: Parser) -> None:
    """Options of `report`."""
    parser.add_argument("--campaign", metavar="NAME", help="only this campaign (default: all)")
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="only what ran after: `2026-11-20`, or an age, `2d` (default: all)",
    )
    parser.add_argument("--until", type=moment, metavar="TIME", help="only what ran before (default: now)")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one self-contained page (default: tables)"
    )
    parser.add_argument(
        "--part",
        type=Path,
        metavar="FILE",
        help="with --html: a part of your own, as HTML, that the page shows behind the first figures (default: none)",
    )
    from_files.define(parser)


def run(args: Namespace) -> int:
    """Print or write a report."""
    reads_files = from_files.is_wanted(args)
    if args.part is not None and (reads_files or args.html is None):
        raise ConfigError("--part needs the page of a report from the server", hint="add --html FILE")
    if reads_files:
        return from_files.run(args)
    from tidemill_report.core_hours import sheets
    from tidemill_report.query import gather

    data = gather(client_of(args), campaign=args.campaign, since_us=args.since, until_us=args.until)
    if args.html is not None:
        write_html(args.html, data, more="" if args.part is None else read_part(args.part))
        say(f"wrote `{args.html}`")
    if args.csv is not None and data.core_hours is not None:
        from_files.write_tables(args.csv, sheets(data.core_hours))
    if args.json:
        show_json(data)
    elif args.html is None and args.csv is None:
        print_tables(data)
    return 0


def read_part(path: Path) -> str:
    """A part of a page that the user wrote, as HTML. Raises ConfigError, SiteError."""
    found = read_bounded(path, PART_BYTES_MAX)
    if found is None:
        raise ConfigError(f"there is no file `{path}`")
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not valid UTF-8") from error


def write_html(path: Path, data: ReportData, *, more: str = "") -> None:
    """Write the page, with a part of the user's own (HTML); under its name it is only ever seen whole."""
    from tidemill_report.page import page

    write_whole(path, page(data, more=more).encode(), mode=0o644, failure=ConfigError)


def print_tables(data: ReportData) -> None:
    """The report as tables on stdout: core-hours first."""
    print_core_hours(data.core_hours)
    names = shown_names([(row.owner, row.name) for row in data.campaigns])
    show_table(
        ["CAMPAIGN", "JOBS", "EVENTS", "DONE", "FAILED", "CANCELED", "TIME", "EVENTS/S", "CPU/WALL"],
        [campaign_cells(name, row) for name, row in zip(names, data.campaigns, strict=True)],
        right=(1, 2, 3, 4, 5, 6, 7, 8),
    )
    show("")
    if data.wards:
        show_table(
            ["WARD", "CURE", "CURED", "FAILED", "CANCELED", "WENT HOME", "THERE", "SHARE CURED"],
            [ward_cells(row) for row in data.wards],
            right=(2, 3, 4, 5, 6, 7),
        )
        show("")
    if not data.failures:
        show("no failures")
        return
    show_table(
        ["FAILURE", "TIMES", "FOR GOOD", "CAUSE"],
        [
            [each.failure, count_text(each.count), count_text(each.final), each.cause]
            for each in data.failures
        ],
        right=(1, 2),
    )


def campaign_cells(name: str, row: CampaignRow) -> list[object]:
    """A campaign as cells of a table, under a name."""
    seconds = None
    if row.first_started_us is not None and row.last_ended_us is not None:
        seconds = max(0, row.last_ended_us - row.first_started_us) / 1e6
    return [
        name,
        count_text(row.jobs),
        count_text(row.events),
        count_text(row.events_done),
        count_text(row.events_failed),
        count_text(row.events_canceled),
        duration_text(seconds),
        rate_text(ratio(row.events_done, seconds or 0)),
        percent_text(ratio(row.usage.user_us + row.usage.system_us, row.usage.wall_us)),
    ]


def ward_cells(row: WardRow) -> list[object]:
    """A ward of the hospital as cells of a table."""
    counts = (row.cured, row.failed, row.canceled, row.home, row.there)
    return [row.ward, row.cure, *map(count_text, counts), percent_text(row.share)]


COMMANDS = {"report": Command(define, run, "tidemill report --since 2d --html report.html")}
