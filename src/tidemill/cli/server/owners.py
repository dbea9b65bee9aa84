"""`tidemill owner list|shares`: the fair share between submitters, and the weights that operators give."""

from __future__ import annotations

from argparse import Namespace

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import say, show, show_json
from tidemill.errors import ConfigError
from tidemill.model.quantities import bytes_text


def define_list(parser: Parser) -> None:
    """`owner list` has no options of its own."""


def define_shares(parser: Parser) -> None:
    """Options of `owner shares`."""
    parser.add_argument(
        "owner", metavar="OWNER", help="the submitter's name, as `tidemill owner list` shows it"
    )
    parser.add_argument(
        "shares", type=_weight, metavar="SHARES", help="weight next to other submitters, who have 1"
    )
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="why, for the log of changes (default: none)"
    )


def list_owners(args: Namespace) -> int:
    """Print the accounts."""
    rows = list(client_of(args).owners())
    if args.json:
        show_json(rows)
        return 0
    for row in rows:
        at = clock.utc_text(row.at_us) if row.at_us else "never"
        show(
            f"{row.owner or '(none)'}: {_shares_text(row.shares)}, had {row.used_core_s / 3600:.1f} core-hours ({at}), "
            f"stores {bytes_text(row.stored_bytes)}"
        )
    if not rows:
        say("no jobs have been submitted yet")
    return 0


def set_shares(args: Namespace) -> int:
    """Give a submitter a weight."""
    reply = client_of(args).set_shares(args.owner, args.shares, reason=args.reason)
    if args.json:
        show_json(reply)
        return 0
    say(f"`{args.owner}` has {_shares_text(args.shares)}{'' if reply.changed else ' already'}")
    return 0


def _shares_text(shares: float) -> str:
    return f"{shares:g} share{'' if shares == 1 else 's'}"


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"`{text}` is not a weight", hint="a number such as 0.5 or 2") from None


COMMANDS = {
    "owner list": Command(define_list, list_owners, "tidemill owner list"),
    "owner shares": Command(
        define_shares, set_shares, "tidemill owner shares ada 2 --reason 'pays for half of it'"
    ),
}
