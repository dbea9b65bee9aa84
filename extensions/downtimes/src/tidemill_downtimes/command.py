"""`tidemill downtimes check`: what a file of downtimes says."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tidemill import clock
from tidemill.cli.arguments import Command, Parser
from tidemill.cli.terminal import hint, say, show_json, show_table
from tidemill.errors import ConfigError
from tidemill.model.quantities import counted_text


def define(parser: Parser) -> None:
    """Options of `downtimes check`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="file with downtimes: a calendar, JSON of CRIC, or TOML"
    )
    parser.add_argument(
        "--site", default="", metavar="NAME", help="site that all entries concern (default: entries name it)"
    )


def check(args: Namespace) -> int:
    """Print what a file of downtimes says, and what of it is left out."""
    import msgspec

    from tidemill.server.hospital.readings import rows_of
    from tidemill_downtimes import sources
    from tidemill_downtimes.settings import DowntimeSource

    source = DowntimeSource(place=str(args.file.absolute()), site=args.site)
    now_us = clock.now_us()
    try:
        text = sources.read(source)
        if not args.site and sources.format_of(text) == "calendar":
            source = msgspec.structs.replace(source, site="(the site)")
        calendar = sources.parse(text, source, now_us=now_us)
    except ConfigError as error:
        raise ConfigError(f"`{args.file}`: {error.message}", hint=error.hint) from error
    rows = rows_of(calendar.downtimes, str(args.file), now_us=now_us, lead_s=0)
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


COMMANDS = {"downtimes check": Command(define, check, "tidemill downtimes check downtimes.toml")}
