"""`tidemill report accounting`: does Tidemill's account of a month agree with the batch system's?"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import ConfigError
from tidemill.files import write_whole

if TYPE_CHECKING:
    from tidemill_study.accounting.past_jobs import PastJob, Remarks
    from tidemill_study.report.forms import ApelFacts
    from tidemill_study.report.reconcile import OwnAllocation, Reconciliation

SHOWN_MAX = 50


def month(text: str) -> str:
    """A month: `2026-10`."""
    from tidemill_study.report.reconcile import month_span

    try:
        month_span(text)
    except ValueError as error:
        raise ArgumentTypeError(f"`{text}` is not a month, such as `2026-10`") from error
    return text


def benchmark(text: str) -> float:
    """A benchmark value: more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(f"`{text}` is not a benchmark value")
    return value


def define(parser: Parser) -> None:
    """Options of `report accounting`."""
    parser.add_argument(
        "--month", type=month, required=True, metavar="MONTH", help="month in UTC, such as `2026-10`"
    )
    parser.add_argument("--site", metavar="NAME", help="site to reconcile (default: the only one there is)")
    parser.add_argument(
        "--sacct",
        type=Path,
        metavar="FILE",
        help="dump of `sacct -P`, or a PBS accounting log (default: run sacct)",
    )
    parser.add_argument(
        "--user",
        metavar="NAME",
        help="count all of this user's jobs as Tidemill's (default: by batch id and name of allocation)",
    )
    parser.add_argument(
        "--granted",
        action="append",
        default=[],
        metavar="ACCOUNT",
        help="an account that is a grant; may be repeated (default: those in --dir)",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="the site's directory, whose accounts are grants (default: none)",
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write one row for each allocation (default: not)"
    )
    parser.add_argument(
        "--apel",
        type=Path,
        metavar="FILE",
        help="write APEL summary records; needs --vo and --benchmark (default: not)",
    )
    parser.add_argument("--vo", metavar="NAME", help="with --apel: the virtual organisation (default: none)")
    parser.add_argument(
        "--apel-site", metavar="NAME", help="with --apel: the site's name in GOCDB (default: --site)"
    )
    parser.add_argument(
        "--benchmark",
        type=benchmark,
        metavar="X",
        help="with --apel: HEPSPEC06 or HEPscore23 of one core (default: none)",
    )
    parser.add_argument(
        "--timezone", metavar="ZONE", help="zone of the times in FILE, such as `Europe/Berlin` (default: UTC)"
    )


def run(args: Namespace) -> int:
    """Compare, print, write; 1 if the totals differ by more than 1 %."""
    from tidemill import clock
    from tidemill_study.accounting.past_jobs import Remarks
    from tidemill_study.report.forms import apel_text, csv_text
    from tidemill_study.report.reconcile import AccountMonth, month_span, own_jobs, plain_id, reconcile

    check(args)
    span = month_span(args.month)
    site, ours = own_allocations(args, span)
    remarks = Remarks()
    ids = {plain_id(each.batch_id) for each in ours if each.batch_id}
    theirs = own_jobs(past_jobs(args, span, remarks), ids, user=args.user, span=span)
    asked = AccountMonth(site=site, month=args.month, grants=grants_of(args))
    data = reconcile(asked, ours, theirs, now_s=clock.now_us() // 1_000_000)
    for remark in remarks.sentences():
        say(remark)
    if args.csv is not None:
        write_whole(args.csv, csv_text(data).encode(), mode=0o644, failure=ConfigError)
        say(f"wrote `{args.csv}`")
    if args.apel is not None:
        text = apel_text(theirs, args.month, facts_of(args, site))
        write_whole(args.apel, text.encode(), mode=0o644, failure=ConfigError)
        say(f"wrote `{args.apel}`")
    if args.json:
        show_json(data)
    else:
        print_tables(data)
    return 0 if data.is_agreed else 1


def check(args: Namespace) -> None:
    """Raises ConfigError for options that do not go together."""
    if args.apel is not None and (args.vo is None or args.benchmark is None):
        raise ConfigError(
            "--apel needs --vo and --benchmark",
            hint="such as `--vo atlas --benchmark 14.2` (HEPscore23 of a core)",
        )


def own_allocations(args: Namespace, span: tuple[int, int]) -> tuple[str, list[OwnAllocation]]:
    """The site, and its allocations that held nodes in the month, as the server knows them."""
    from tidemill_study.report.reconcile import OwnAllocation

    client = client_of(args)
    site = args.site
    if site is None:
        names = [each.name for each in client.sites()]
        if len(names) != 1:
            known = ", ".join(f"`{each}`" for each in names) or "none"
            raise ConfigError("--site NAME says which site to reconcile", hint=f"known: {known}")
        site = names[0]
    rows = client.placements(site, since_us=span[0] * 1_000_000, until_us=span[1] * 1_000_000)
    return site, [
        OwnAllocation(
            batch_id=each.batch_id,
            name=each.name,
            nodes=each.nodes,
            cores=each.cores,
            start_s=round(each.started_us / 1e6),
            end_s=None if each.ended_us is None else round(each.ended_us / 1e6),
        )
        for each in rows
    ]


def past_jobs(args: Namespace, span: tuple[int, int], remarks: Remarks) -> Iterable[PastJob]:
    """The accounting's jobs: of the file, or of sacct. Raises ConfigError, SiteError."""
    from tidemill import clock
    from tidemill.cli.arguments import zone_of
    from tidemill_study.accounting import slurmdbd
    from tidemill_study.accounting.log import jobs_of, kind_of_file

    if args.sacct is not None:
        kind = kind_of_file(args.sacct)
        return jobs_of(args.sacct, remarks, kind=kind, zone=zone_of(args.timezone), header={})
    filters = ("-a",) if args.user is None else ("-u", args.user)
    until_s = min(span[1], clock.now_us() // 1_000_000)
    return slurmdbd.jobs(span[0], max(until_s, span[0]), remarks, filters=filters)


def grants_of(args: Namespace) -> frozenset[str]:
    """Accounts that are grants: those named, and those of the site's configuration."""
    found = set(args.granted)
    if args.dir is not None:
        from tidemill.config import load
        from tidemill.config.site import SiteConfig

        found |= {each.name for each in load(args.dir / "site.toml", SiteConfig).accounts}
    return frozenset(found)


def facts_of(args: Namespace, site: str) -> ApelFacts:
    """What APEL wants to know besides."""
    from tidemill_study.report.forms import ApelFacts

    return ApelFacts(site=args.apel_site or site, vo=args.vo, benchmark=args.benchmark)


def print_tables(data: Reconciliation) -> None:
    """Totals, whether they agree, and what differs."""
    show_table(
        [
            "HOURS",
            "ALLOCATIONS",
            "NODE-H TIDEMILL",
            "NODE-H ACCOUNTING",
            "CORE-H TIDEMILL",
            "CORE-H ACCOUNTING",
        ],
        [
            [
                each.kind,
                f"{each.allocations:,}",
                number(each.node_h_here),
                number(each.node_h_there),
                number(each.core_h_here),
                number(each.core_h_there),
            ]
            for each in data.totals
        ],
        right=(1, 2, 3, 4, 5),
    )
    show("")
    off = "" if data.difference is None else f" by {100 * data.difference:.2f} %"
    if data.is_agreed:
        show(f"{data.site}, {data.month}: the totals agree within 1 %{f' (they differ{off})' if off else ''}")
    else:
        show(f"{data.site}, {data.month}: the totals differ{off}, which is more than 1 %")
    if not data.differing:
        return
    show("")
    show_table(
        ["BATCH ID", "NAME", "ACCOUNT", "NODE-H TIDEMILL", "NODE-H ACCOUNTING", "REASON"],
        [
            [
                each.batch_id or "-",
                each.name or "-",
                each.account or "-",
                number(each.here.node_h if each.here else None),
                number(each.there.node_h if each.there else None),
                each.reason.value if each.reason else "",
            ]
            for each in data.differing[:SHOWN_MAX]
        ],
        right=(3, 4),
    )
    if len(data.differing) > SHOWN_MAX:
        say(f"and {len(data.differing) - SHOWN_MAX:,} more: --csv FILE has all of them")


def number(value: float | None) -> str:
    """Hours for people."""
    return "-" if value is None else f"{value:,.2f}"


COMMANDS = {
    "report accounting": Command(
        define,
        run,
        "tidemill report accounting --month 2026-10 --site lrz --sacct sacct.txt --csv october.csv",
    )
}
