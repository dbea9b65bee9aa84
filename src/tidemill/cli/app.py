"""`tidemill app list|show|check`: applications that sites offer, and files that are to become some."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import ConfigError, did_you_mean


def define_list(parser: Parser) -> None:
    """Options of `app list`."""
    parser.add_argument("--site", metavar="NAME", help="only what this site offers (default: all sites)")


def define_show(parser: Parser) -> None:
    """Options of `app show`."""
    parser.add_argument("name", metavar="NAME", help="the application")
    define_list(parser)


def _offers(args: Namespace) -> list[Any]:
    return [each for each in client_of(args).applications() if args.site in (None, each.site)]


def list_apps(args: Namespace) -> int:
    """List applications."""
    offers = _offers(args)
    if args.json:
        show_json(offers)
        return 0
    if not offers:
        say("no site offers an application")
        return 0
    show_table(
        ["APP", "VERSION", "SITE", "MODE", "CORES", "MEMORY MB", "OUTPUTS", "ABOUT"],
        [
            [
                each.app.name,
                each.app.version,
                each.site,
                each.app.mode,
                each.app.cores,
                each.app.memory_mb,
                ", ".join(each.app.outputs) or "-",
                each.app.help,
            ]
            for each in offers
        ],
        right=(4, 5),
    )
    return 0


def show_app(args: Namespace) -> int:
    """Show one application."""
    offers = _offers(args)
    chosen = [each for each in offers if each.app.name == args.name]
    if not chosen:
        raise ConfigError(
            f"no site offers `{args.name}`", hint=did_you_mean(args.name, {each.app.name for each in offers})
        )
    if args.json:
        show_json(chosen)
        return 0
    for offer in chosen:
        app = offer.app
        show(f"{app.name} {app.version} at {offer.site}: {app.help or 'no description'}")
        show(f"    {app.mode} mode, {app.cores} cores, {app.memory_mb} MB, about {app.event_s:g} s per event")
        show(f"    {app.digest}")
        show(f"    outputs: {', '.join(app.outputs) or 'none'}")
        for name, parameter in sorted(app.parameters.items()):
            show(f"    -p {name}={_legal(parameter)}{_default(parameter)}  {parameter.help}".rstrip())
    return 0


def _legal(parameter: Any) -> str:
    if parameter.choices:
        return "|".join(parameter.choices)
    low = "" if parameter.min is None else f"{parameter.min:g}"
    high = "" if parameter.max is None else f"{parameter.max:g}"
    return str(parameter.type).upper() + (f" ({low}..{high})" if low or high else "")


def _default(parameter: Any) -> str:
    return "  (required)" if parameter.default is None else f"  (default: {parameter.default})"
