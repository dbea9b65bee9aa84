"""`tidemill downtimes list`: when sites are out of service."""

from __future__ import annotations

from argparse import Namespace

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import hint, say, show_json, show_table


def define(parser: Parser) -> None:
    """`downtimes list` has no options of its own."""


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


COMMANDS = {"downtimes list": Command(define, list_downtimes, "tidemill downtimes list")}
