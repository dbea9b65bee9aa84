"""`tidemill site reset-epoch`: an operator readmits a site's agent after another process has taken its epoch."""

from __future__ import annotations

from argparse import Namespace

from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import hint, say, show_json


def define(parser: Parser) -> None:
    """Options of `site reset-epoch`."""
    parser.add_argument(
        "name", metavar="NAME", help="the site's name, as `tidemill audit` and the pages show it"
    )
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why, for the log of changes (required)"
    )


def reset_epoch(args: Namespace) -> int:
    """Have the server forget which agent has served the site."""
    reply = client_of(args).reset_epoch(args.name, reason=args.reason)
    if args.json:
        show_json(reply)
        return 0
    say(
        f"site `{args.name}` is reset: the next agent that speaks for it serves it, other sites get what it had"
    )
    hint("revoke a credential that others have, or they lock the site out again: `tidemill certs revoke`")
    return 0


COMMANDS = {
    "site reset-epoch": Command(
        define, reset_epoch, "tidemill site reset-epoch lrz --reason 'key was stolen'"
    )
}
