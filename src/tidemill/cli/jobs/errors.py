"""`tidemill errors`: failures grouped by class and cause, with what to do next."""

from __future__ import annotations

from argparse import Namespace

from tidemill.cli.arguments import Command, Parser, client_of, count
from tidemill.cli.terminal import say, show, show_json
from tidemill.model.quantities import count_text, times_text

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
        final = f", {count_text(group.final)} for good" if group.final else ", none for good: they ran again"
        show(f"{group.failure}: {group.cause}")
        show(f"    {times_text(group.count)}{final}; {policy.meaning}")
        for each in group.examples[:EXAMPLES]:
            event = "" if each.event is None else f" event {each.event} seed {each.seed}"
            node = f" on {each.evidence.node}" if each.evidence.node else ""
            show(f"    job {each.job}{event} at {each.site}{node}: {each.evidence.message}")
        for line in group.examples[0].evidence.stderr_tail.strip().splitlines()[-3:]:
            show(f"      | {line}")
        show(f"    next: {group.next_step}")
    return 0


COMMANDS = {"errors": Command(define, run, "tidemill errors --campaign zmumu")}
