"""`tidemill audit`: who ran what in an allocation or on a node, and whether the log of changes is whole."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, client_of, moment
from tidemill.cli.terminal import say, show, show_json
from tidemill.errors import ConfigError
from tidemill.model.quantities import counted_text
from tidemill.wire.api import AuditRow


def define(parser: Parser) -> None:
    """Options of `audit`."""
    parser.add_argument(
        "--batch-id", metavar="ID", help="an allocation by its id in the batch system (default: any)"
    )
    parser.add_argument(
        "--node", metavar="NAME", help="a node, with --time (default: the nodes of the allocation)"
    )
    parser.add_argument(
        "--time",
        type=moment,
        metavar="TIME",
        help="when: `2026-11-20T12:00Z`, or an age such as `2h` (default: any)",
    )
    parser.add_argument("--site", metavar="NAME", help="of this site only (default: all sites)")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read the whole log of changes and check its chain (default: no)",
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="with --verify: the server's directory (default: HOME/server)"
    )


def audit(args: Namespace) -> int:
    """Print what ran, or check the log."""
    if args.verify:
        return _verify(args)
    if args.batch_id is None and (args.node is None or args.time is None):
        raise ConfigError(
            "it is not said what to look for", hint="give --batch-id ID, or --node NAME with --time TIME"
        )
    rows: list[AuditRow] = client_of(args).audit(
        batch_id=args.batch_id, node=args.node, at_us=args.time, site=args.site
    )
    if args.json:
        show_json(rows)
        return 0
    if not rows:
        say("no allocation is known there and then")
        return 1
    seen = ("", "")
    for row in rows:
        if (row.site, row.allocation) != seen:
            seen = (row.site, row.allocation)
            _show_allocation(row)
        _show_job(row)
    return 0


def _show_allocation(row: AuditRow) -> None:
    end = "now" if row.ended_us is None else clock.utc_text(row.ended_us)
    start = clock.utc_text(row.started_us) if row.started_us else "not started"
    show(f"site {row.site}, batch id {row.batch_id or 'none'}, allocation {row.allocation}: {start} to {end}")
    show(f"  nodes        {', '.join(row.nodes) or 'not known'}")


def _show_job(row: AuditRow) -> None:
    if row.job is None:
        show("  nothing ran there")
        return
    ran = f"merge step {row.step}" if row.step is not None else f"events {row.events}"
    show(f"  job {row.job}  {ran}" + ("  (in the archive)" if row.archived else ""))
    if row.archived and not row.campaign:
        show(f"    not read from the archive: `tidemill job show {row.job}` prints what it was")
        return
    show(f"    subject      {row.subject or 'the own user of the server'}, owner `{row.owner}`")
    if row.credential:
        show(f"    credential   {row.credential}")
    show(f"    campaign     {row.campaign}")
    show(f"    application  {row.app or 'a command of the submitter'} {row.version}")
    show(f"    digest       {row.digest or 'none'}")


def _verify(args: Namespace) -> int:
    from tidemill.client.home import home_dir
    from tidemill.server.audit.audit_log import verify
    from tidemill.server.run import lines_told

    place = (args.dir or home_dir(args.home) / "server").absolute()
    verified = verify(place, at_least=lines_told(place))
    if args.json:
        show_json(verified)
        return 0
    show(
        f"lines {verified.first} to {verified.last} in {counted_text(verified.files, 'file')} follow one another; "
        "nothing was altered"
    )
    show(f"head {verified.head}")
    return 0


COMMANDS = {"audit": Command(define, audit, "tidemill audit --node nid0042 --time 2026-11-20T12:00Z")}
