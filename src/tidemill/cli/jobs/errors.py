"""`tidemill errors`: failures grouped by class and cause, with what to do next."""

from __future__ import annotations

from argparse import Namespace

from tidemill.cli.arguments import Command, Parser, client_of, count
from tidemill.cli.terminal import say, show, show_json
from tidemill.model.quantities import count_text, counted_text

LIMIT = 10_000
EXAMPLES = 3


def define(parser: Parser) -> None:
    """Options of `errors`."""
    parser.add_argument("--campaign", metavar="NAME", help="only failures of this campaign (default: all)")
    parser.add_argument("--job", type=count, metavar="JOB", help="only failures of this job (default: all)")
    parser.add_argument(
        "--limit",
        type=count,
        default=LIMIT,
        metavar="N",
        help=f"examine the newest N failures (default: {LIMIT})",
    )


def run(args: Namespace) -> int:
    """Print groups of failures, the most frequent first."""
    from tidemill.model.failure import POLICY
    from tidemill.report.query import group_failures

    rows = list(client_of(args).failures(campaign=args.campaign, job=args.job, limit=args.limit))
    groups = group_failures(rows)
    if args.json:
        show_json(groups)
        return 0
    if not groups:
        say("no failures")
        return 0
    for group in groups:
        policy = POLICY[group.failure]
        show(f"{group.failure}: {group.cause}")
        show(f"    {amount_text(group.count, group.final)}; {policy.meaning}")
        for each in group.examples[:EXAMPLES]:
            event = "" if each.event is None else f" event {each.event} seed {each.seed}"
            node = f" on {each.evidence.node}" if each.evidence.node else ""
            show(f"    job {each.job}{event} at {each.site}{node}: {each.evidence.message}")
        for line in group.examples[0].evidence.stderr_tail.strip().splitlines()[-3:]:
            show(f"      | {line}")
        show(f"    next: {group.next_step}")
    return 0


def amount_text(failures: int, final: int) -> str:
    """`3 failures, 1 final`. One that is not final was followed by a retry."""
    text = counted_text(failures, "failure")
    if final:
        return f"{text}, {count_text(final)} final"
    return f"{text}, none final: {'it' if failures == 1 else 'they'} ran again"


COMMANDS = {"errors": Command(define, run, "tidemill errors --campaign zmumu")}
