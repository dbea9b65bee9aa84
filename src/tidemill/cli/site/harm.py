"""`tidemill site harm`: how long regular jobs waited because of Tidemill, by its own records, with the evidence."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, moment
from tidemill.cli.site.directory import site_directory
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import SiteError
from tidemill.model.figures.job_classes import UNKNOWN, length_bounds, length_text, size_text
from tidemill.model.quantities import count_text, counted_text, duration_text

if TYPE_CHECKING:
    from tidemill.harvest.account.delays import ClassHarm, Delay, Harm, YieldAct

NAMES_MAX = 5


def define(parser: Parser) -> None:
    """Options of `site harm`."""
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOBID",
        help="a regular job, by its number in the batch system (default: all that Tidemill delayed)",
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the site's directory (default: HOME/site)")
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="jobs that started since then, or an age such as `2d` (default: all that is kept)",
    )


def run(args: Namespace) -> int:
    """Print regular jobs that started, the part of their wait that Tidemill caused, and the totals. Raises SiteError
    for an unknown job."""
    from tidemill.harvest.account.delays import harm, read_records

    since_s = None if args.since is None else args.since / 1e6
    # A job may have waited for long: to show one, everything is read.
    records, unreadable = read_records(
        site_directory(args) / "harvest", since_s=None if args.job is not None else since_s
    )
    found = harm(records, unreadable=unreadable, since_s=since_s or 0.0, job=args.job)
    if args.job is not None and not found.jobs:
        raise SiteError(
            f"job {args.job} is not found in the site's records: whether Tidemill delayed it is not known",
            hint="they have jobs that started, or could have, while the site's agent looked"
            + (f"; {counted_text(unreadable, 'line')} of them cannot be read" if unreadable else ""),
            transient=False,
        )
    if args.json:
        show_json(found)
        return 0
    delayed = [each for each in found.jobs if each.evidence or each.share_s > 0 or args.job is not None]
    if delayed:
        show_table(
            ["JOB", "USER", "NODES", "SUBMITTED", "WAITED", "TIDEMILL", "FROM", "TO", "STATE"],
            [_row(each) for each in delayed],
            right=(2, 4, 5, 6, 7),
        )
    if args.job is not None:
        for each in delayed:
            _tell_evidence(each)
    _tell_totals(found)
    if args.job is None and found.totals.jobs:
        show("")
        _tell_classes(found)
    return 0


def _row(each: Delay) -> list[str]:
    return [
        each.id,
        each.user or "-",
        count_text(each.width) if each.width else "-",
        "-" if each.submitted_s is None else _at(each.submitted_s),
        duration_text(each.wait_s),
        duration_text(each.share_s),
        duration_text(each.share_low_s),
        duration_text(each.share_high_s),
        each.state,
    ]


def _tell_evidence(each: Delay) -> None:
    if each.could_start_s is None:
        show(f"job {each.id} never waited for nodes of Tidemill: no plan had to yield to it")
        return
    show(f"job {each.id} could have started without Tidemill at {_at(each.could_start_s)}")
    for act in each.evidence:
        _tell_act(act)
    if each.started_s is not None:
        show(f"    {_at(each.started_s)}  started")


def _tell_act(act: YieldAct) -> None:
    when = _at(act.at_s) if act.at_s else "-".ljust(20)
    show(f"    {when}  plan {act.plan}: {act.why or 'its record is gone'}")
    if act.canceled_s is not None:
        more = len(act.canceled) - NAMES_MAX
        names = ", ".join(act.canceled[:NAMES_MAX]) + (f" and {count_text(more)} more" if more > 0 else "")
        show(f"    {_at(act.canceled_s)}  canceled {names}")


def _tell_totals(harm: Harm) -> None:
    totals = harm.totals
    show(
        f"{count_text(totals.jobs)} regular jobs started, {count_text(totals.delayed)} of them later because of "
        f"Tidemill: {duration_text(totals.share_s)} in all ({duration_text(totals.share_low_s)} to "
        f"{duration_text(totals.share_high_s)}) of {duration_text(totals.wait_s)} that they waited"
        + (f", job {totals.worst_id} the most: {duration_text(totals.worst_s)}" if totals.delayed else "")
    )
    waiting = sum(each.state == "waiting" for each in harm.jobs)
    if waiting:
        show(f"{count_text(waiting)} more wait that could start without Tidemill, by the last records")
    if harm.unreadable:
        say(f"{count_text(harm.unreadable)} unreadable lines, such as a crash may leave")


def _tell_classes(harm: Harm) -> None:
    """Waits by size, by length, and by both, then what the estimate cannot know."""
    heads = ["JOBS THAT WANT", "JOBS", "DELAYED", "WAITED", "DELAY", "95 %", "OF THE WAIT", "95 %", "PROMISE"]
    rows = [_class_row(each) for each in (*harm.by_size, *harm.by_length, *harm.by_size_and_length)]
    show_table(heads, rows, right=tuple(range(1, 8)))
    say(harm.note)


def _class_row(each: ClassHarm) -> list[str]:
    return [
        class_text(each),
        count_text(each.jobs),
        count_text(each.delayed),
        duration_text(each.wait_s),
        f"{each.share_s:.1f} s",
        "-" if each.share_high_s is None else f"{each.share_low_s or 0.0:.1f} .. {each.share_high_s:.1f} s",
        "-" if each.share_of_wait is None else f"{each.share_of_wait:.2%}",
        "-"
        if each.share_of_wait_high is None
        else f"{each.share_of_wait_low or 0.0:.2%} .. {each.share_of_wait_high:.2%}",
        each.verdict.text,
    ]


def class_text(each: ClassHarm) -> str:
    """What jobs of a class want: a share of the machine, a walltime."""
    parts = []
    if each.size:
        parts.append(size_text(each.size))
    if each.length:
        known = each.length != UNKNOWN
        parts.append(length_text(*length_bounds(each.length)) if known else "walltime unknown")
    return ", ".join(parts)


def _at(at_s: float) -> str:
    return clock.utc_text(int(at_s * 1e6))


COMMANDS = {"site harm": Command(define, run, "tidemill site harm --since 1d", talks=False)}
