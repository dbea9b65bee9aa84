"""`tidemill stress compare`: whether two runs differ."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tidemill.cli.arguments import Command, Parser
from tidemill.cli.terminal import hint, say, show_json, show_table


def define(parser: Parser) -> None:
    """Options of `stress compare`."""
    parser.add_argument("a", type=Path, metavar="A", help="directory of a run")
    parser.add_argument("b", type=Path, metavar="B", help="directory of another run")


def run(args: Namespace) -> int:
    """Print B over A for every step that both have."""
    from tidemill_stress import analysis, compare, store

    a, b = store.load(args.a), store.load(args.b)
    comparison = compare.compare(analysis.analyse(a), analysis.analyse(b), same_test=a.digest == b.digest)
    if args.json:
        show_json(comparison)
        return 0
    show_table(
        ["STEP", "FIGURE", "A", "B", "B/A", "95 % INTERVAL", "B IS"],
        [
            [each.title, each.quantity, f"{each.a:.4g}", f"{each.b:.4g}", f"{each.ratio.value:.3f}",
             f"{each.ratio.low:.3f} to {each.ratio.high:.3f}", each.verdict]
            for each in comparison.rows
        ],
        right=(2, 3, 4),
    )  # fmt: skip
    for name, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        if only:
            hint(f"measured in {name} only: {', '.join(only)}")
    if not comparison.same_test:
        hint("the two runs are of different tests: what differs may be the test")
    if not comparison.rows:
        say("the runs have no measured step in common")
    else:
        what = "the steps that both runs have" if comparison.only_a or comparison.only_b else "the runs"
        say(f"{what} {'differ' if comparison.differ else 'do not differ'} beyond chance")
    return 0


COMMANDS = {"stress compare": Command(define, run, "tidemill stress compare runs/A runs/B", talks=False)}
