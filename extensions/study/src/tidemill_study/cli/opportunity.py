"""`tidemill report opportunity`: what a machine's past would have offered a guest, before anything is installed."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, count, moment, zone_of
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import ConfigError
from tidemill.files import write_whole
from tidemill.harvest.plan.policies import Policy
from tidemill_study.cli.simulate import SIMULATED, define_bounds, define_times, seconds, size_text, study_of

if TYPE_CHECKING:
    from datetime import tzinfo

    from tidemill_study.accounting.history import History
    from tidemill_study.report.opportunity import Opportunity

JOBS_SIMULATED = 60_000
KINDS = ("sacct", "pbs", "swf")
CURRENCIES = ("EUR", "USD")


def lengths(text: str) -> list[float]:
    """Lengths of events: `5m,1h`."""
    found = [seconds(each.strip()) for each in text.split(",")]
    if min(found) <= 0:
        raise ArgumentTypeError("an event takes more than 0 s")
    return list(dict.fromkeys(found))


def price(text: str) -> float:
    """A price: a number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(f"`{text}` is not a price")
    return value


def define(parser: Parser) -> None:
    """Options of `report opportunity`."""
    parser.add_argument(
        "log",
        nargs="?",
        metavar="LOG",
        type=Path,
        help="accounting log, plain or gzip, or a directory of daily PBS logs (default: run sacct)",
    )
    parser.add_argument("--kind", choices=KINDS, help="whose accounting LOG is (default: by its first line)")
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="without LOG: ask sacct from then on, such as `90d` (default: 90d)",
    )
    parser.add_argument(
        "--until", type=moment, metavar="TIME", help="without LOG: ask sacct until then (default: now)"
    )
    parser.add_argument(
        "--partition", metavar="NAME", help="only jobs of this partition or queue (default: all)"
    )
    parser.add_argument(
        "--timezone",
        metavar="ZONE",
        help="zone of times without one, and of the hours of the day, such as `Europe/Berlin` (default: as written)",
    )
    parser.add_argument("--nodes", type=count, metavar="N", help="size of the machine (default: by the log)")
    parser.add_argument(
        "--cores-per-node",
        type=count,
        metavar="C",
        help="cores of a node (default: from the log, if it names them)",
    )
    define_simulation(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one self-contained page (default: text)"
    )


def define_simulation(parser: Parser) -> None:
    """Options about what is simulated, and its price."""
    parser.add_argument(
        "--event-length",
        type=lengths,
        default=[300.0, 3600.0],
        metavar="LIST",
        help="lengths of the events that would run (default: 5m,1h)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=[policy.value for policy in SIMULATED],
        help="how the broker behaves; may be repeated (default: yield and preempt)",
    )
    parser.add_argument(
        "--price", type=price, default=0.01, metavar="P", help="what a core-hour is worth (default: 0.01)"
    )
    parser.add_argument(
        "--currency", choices=CURRENCIES, default="EUR", help="currency of the price (default: EUR)"
    )
    parser.add_argument(
        "--jobs-simulated",
        type=count,
        default=JOBS_SIMULATED,
        metavar="N",
        help=f"simulate the latest N jobs at most (default: {JOBS_SIMULATED:,})",
    )
    define_times(parser)
    define_bounds(parser)
    parser.add_argument(
        "--seeds",
        type=count,
        default=4,
        metavar="N",
        help="paired runs with jittered submissions (default: 4)",
    )
    parser.add_argument("--replicas", type=count, default=1, metavar="N", help="pairs in a seed (default: 1)")
    parser.add_argument(
        "--workers", type=count, metavar="N", help="processes, one seed each at a time (default: all cores)"
    )


def run(args: Namespace) -> int:
    """Read, simulate, and print or write the report."""
    from tidemill_study.report.opportunity_page import page

    data = made(args)
    if args.html is not None:
        write_whole(args.html, page(data).encode(), mode=0o644, failure=ConfigError)
        say(f"wrote `{args.html}`")
    if args.json:
        show_json(data)
    else:
        print_answers(data)
    return 0


def made(args: Namespace) -> Opportunity:
    """The report that the command line asks for."""
    from tidemill.batch.log_times import LogClock
    from tidemill_study.accounting.log import LogKind
    from tidemill_study.report.opportunity import Price, cores_per_node, opportunity

    zone = zone_of(args.timezone)
    history = past(args, zone)
    machine = history.machine(args.nodes)
    trace = history.trace(machine, args.jobs_simulated)
    say(f"{history.name}: {size_text(len(history), machine.nodes)} ({machine.nodes_from}); simulating")
    args.policy = args.policy or [Policy.YIELD.value, Policy.PREEMPT.value]
    studies = [
        study_of(Namespace(**{**vars(args), "event_s": each}), trace, is_pbs=history.kind is LogKind.PBS)
        for each in args.event_length
    ]
    return opportunity(
        history,
        machine,
        studies,
        price=Price(
            per_core_h=args.price,
            currency=args.currency,
            cores_per_node=args.cores_per_node or cores_per_node(history),
        ),
        hours=LogClock(zone, origin_s=history.header.get("UnixStartTime", 0)),
    )


def past(args: Namespace, zone: tzinfo | None) -> History:
    """The machine's past, from a log or from sacct. Raises ConfigError, SiteError."""
    from tidemill import clock
    from tidemill_study.accounting import slurmdbd
    from tidemill_study.accounting.history import History
    from tidemill_study.accounting.log import LogKind, history_of
    from tidemill_study.accounting.past_jobs import Remarks

    if args.log is not None:
        kind = None if args.kind is None else LogKind(args.kind)
        return history_of(args.log, kind=kind, zone=zone, partition=args.partition)
    until_s = (args.until or clock.now_us()) // 1_000_000
    since_s = until_s - 90 * 86400 if args.since is None else args.since // 1_000_000
    if since_s >= until_s:
        raise ConfigError("--since is not before --until")
    result = History("sacct", Remarks(), kind=LogKind.SACCT)
    result.add_jobs(slurmdbd.jobs(since_s, until_s, result.remarks), partition=args.partition)
    return result


def print_answers(data: Opportunity) -> None:
    """The answers, the table behind them, and the remarks."""
    from tidemill.model.quantities import count_text
    from tidemill_study.report.opportunity_figures import span
    from tidemill_study.report.opportunity_page import (
        answers,
        hole_name,
        interval,
        money,
        percent,
        signed,
    )

    for question, answer in answers(data):
        show(question)
        show(f"  {answer}")
    show("")
    show_table(
        ["POLICY", "EVENT", "USEFUL", "NODE-H/MONTH", "CORE-H/MONTH", "WORTH/MONTH", "WAIT", "95 %"],
        [
            [
                each.policy,
                span(each.event_s),
                percent(each.useful),
                count_text(each.node_h_month),
                "-" if each.core_h_month is None else count_text(each.core_h_month),
                money(each, data),
                signed(each.wait_change.mean),
                interval(each.wait_change),
            ]
            for each in data.found
        ],
        right=tuple(range(1, 8)),
    )
    show("")
    total = sum(each.node_h for each in data.idle.holes) or 1.0
    show_table(
        ["HOLES OF", "NUMBER", "NODE-HOURS", "SHARE"],
        [
            [hole_name(each), count_text(each.holes), count_text(each.node_h), percent(each.node_h / total)]
            for each in data.idle.holes
        ],
        right=(1, 2, 3),
    )
    for remark in data.remarks:
        say(remark)


COMMANDS = {
    "report opportunity": Command(
        define, run, "tidemill report opportunity sacct.txt --nodes 512 --html idle.html", talks=False
    )
}
