"""`tidemill downtimes list|check`: when sites are out of service, and what a file of downtimes says."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import hint, say, show_json, show_table
from tidemill.errors import ConfigError
from tidemill.model.quantities import counted_text


def define_list(parser: Parser) -> None:
    """`downtimes list` has no options of its own."""


def define_check(parser: Parser) -> None:
    """Options of `downtimes check`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="file with downtimes: a calendar, JSON of CRIC, or TOML"
    )
    parser.add_argument(
        "--site", default="", metavar="NAME", help="site that all entries concern (default: entries name it)"
    )


def list_downtimes(args: Namespace) -> int:
    """Print the downtimes that the server knows, and sources that it cannot read."""
    found = client_of(args).downtimes()
    if args.json:
        show_json(found)
        return 0
    for each in found.sources:
        if each.error:
            at = clock.utc_text(each.read_us) if each.read_us else "never"
            hint(f"{each.source}: {each.error} (last read: {at})")
    if not found.downtimes:
        say("no downtime is announced")
        return 0
    show_table(
        ["SITE", "FROM", "UNTIL", "NOW", "REASON"],
        [
            [
                row.site,
                clock.utc_text(row.start_us),
                clock.utc_text(row.end_us),
                "down" if row.is_now else "-",
                row.reason,
            ]
            for row in found.downtimes
        ],
    )
    return 0


def check(args: Namespace) -> int:
    """Print what a file of downtimes says, and what of it is left out."""
    import msgspec

    from tidemill.config.hospital import DowntimeSource
    from tidemill.server.hospital import downtimes

    source = DowntimeSource(place=str(args.file.absolute()), site=args.site)
    now_us = clock.now_us()
    try:
        text = downtimes.read(source)
        if not args.site and downtimes.format_of(text) == "calendar":
            source = msgspec.structs.replace(source, site="(the site)")
        calendar = downtimes.parse(text, source, now_us=now_us)
    except ConfigError as error:
        raise ConfigError(f"`{args.file}`: {error.message}", hint=error.hint) from error
    rows = downtimes.rows_of(calendar.downtimes, str(args.file), now_us=now_us, lead_s=0)
    if args.json:
        show_json({"downtimes": rows, "problems": calendar.problems})
        return 0
    show_table(
        ["SITE", "FROM", "UNTIL", "NOW", "REASON"],
        [
            [each.site, clock.utc_text(each.start_us), clock.utc_text(each.end_us), "down" if each.is_now else "-",
             each.reason]
            for each in rows
        ],
    )  # fmt: skip
    for problem in calendar.problems:
        hint(problem)
    say(f"{counted_text(len(rows), 'downtime')} to come or now")
    return 0


COMMANDS = {
    "downtimes list": Command(define_list, list_downtimes, "tidemill downtimes list"),
    "downtimes check": Command(define_check, check, "tidemill downtimes check downtimes.toml"),
}
