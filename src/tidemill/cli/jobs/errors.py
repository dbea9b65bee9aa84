"""`tidemill errors`: failures grouped by class and cause, with what to do next."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, client_of, count
from tidemill.cli.jobs.named import named
from tidemill.cli.terminal import say, show, show_json
from tidemill.model.quantities import count_text, counted_text, times_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import FailureRow

LIMIT = 10_000
EXAMPLES = 3
JOBS_ASKED = 1_000  #: jobs whose state is asked for: one request
REPAIRED = "nothing: their jobs are COMPLETED by now"


def define(parser: Parser) -> None:
    """Options of `errors`."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME|JOB", help="only failures of this campaign or job (default: all)"
    )
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
    from tidemill.client.causes import group_failures
    from tidemill.model.failure import POLICY

    words = [each for each in (args.name, None if args.job is None else str(args.job)) if each is not None]
    what = named(words, args.campaign, verb="errors", several=False)
    client = client_of(args)
    rows = list(client.failures(campaign=what.campaign, job=what.job, limit=args.limit))
    groups = group_failures(rows)
    if args.json:
        show_json(groups)
        return 0
    if not groups:
        say("no failures")
        return 0
    repaired = _complete(client, rows)
    open_causes = {
        (each.failure, each.cause) for each in group_failures(r for r in rows if r.job not in repaired)
    }
    for group in groups:
        policy = POLICY[group.failure]
        show(f"{group.failure}: {group.cause}")
        show(f"    {amount_text(group.count, group.final)}; {policy.meaning}")
        for line in example_lines(group.examples[:EXAMPLES]):
            show(f"    {line}")
        for line in group.examples[0].evidence.stderr_tail.strip().splitlines()[-3:]:
            show(f"      | {line}")
        step = group.next_step if (group.failure, group.cause) in open_causes else REPAIRED
        show(f"    next: {step}")
    return 0


def example_lines(examples: Sequence[FailureRow]) -> list[str]:
    """Failures of a group, equal ones on one line with their number. Pure."""
    lines: Counter[str] = Counter()
    for each in examples:
        event = "" if each.event is None else f" event {each.event} seed {each.seed}"
        node = f" on {each.evidence.node}" if each.evidence.node else ""
        lines[f"job {each.job}{event} at {each.site}{node}: {each.evidence.message}"] += 1
    return [line + (f" ({times_text(number)})" if number > 1 else "") for line, number in lines.items()]


def _complete(client: Client, rows: Sequence[FailureRow]) -> set[int]:
    """Jobs of these failures whose events are all done by now; of the newest JOBS_ASKED jobs."""
    jobs = sorted({each.job for each in rows}, reverse=True)[:JOBS_ASKED]
    return {row.id for row in client.rows(jobs) if row.state == "COMPLETED"}


def amount_text(failures: int, final: int) -> str:
    """`3 failures, 1 final`. One that is not final was followed by a retry."""
    text = counted_text(failures, "failure")
    if final:
        return f"{text}, {count_text(final)} final"
    return f"{text}, none final: {'it' if failures == 1 else 'they'} ran again"


COMMANDS = {"errors": Command(define, run, "tidemill errors --campaign zmumu")}
