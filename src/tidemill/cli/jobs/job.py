"""`tidemill job show|cancel|retry|accept|discard`: one job, or all of a campaign."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.arriving import outputs_lines, still_kept
from tidemill.cli.command.places import check_output_dir
from tidemill.cli.jobs.changes import changes_of, define_changes
from tidemill.cli.jobs.named import define_events, job_of_events, named, needed, one_job, outcome_text
from tidemill.cli.terminal import hint, say, show, show_json, show_table
from tidemill.errors import ConfigError
from tidemill.model.quantities import (
    bytes_text,
    count_text,
    counted_text,
    duration_text,
    percent_text,
    ratio,
    times_text,
)

if TYPE_CHECKING:
    from tidemill.model.job import Resources
    from tidemill.wire.api import ActionReply, FailureRow, JobDetail, JobRow, PayloadUsage
    from tidemill.wire.hospital import StayRow

FAILURES_SHOWN = 5


def define_one(parser: Parser) -> None:
    """Options of `job show`, `job explain` and `job logs`."""
    parser.add_argument(
        "job", metavar="NAME|JOB", help="the job's number, or the name of a campaign of one job"
    )


def define_many(parser: Parser) -> None:
    """Options of `job cancel`, `job retry`, `job accept` and `job discard`."""
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="NAME|JOB",
        help="numbers of jobs, or the name of a campaign: all of its jobs",
    )
    parser.add_argument("--campaign", metavar="NAME", help="all jobs of this campaign, likewise")
    parser.add_argument("--reason", default="", metavar="TEXT", help="kept with the jobs (default: none)")


def define_cancel(parser: Parser) -> None:
    """Options of `job cancel`."""
    define_many(parser)
    define_events(parser, "cancel only these events of the job")


def define_retry(parser: Parser) -> None:
    """Options of `job retry`."""
    define_many(parser)
    define_events(parser, "run again only these events of the job, which failed or were canceled")
    define_changes(parser)
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for the end of the jobs named; Ctrl-C cancels them, and delivers what is done",
    )


def show_job(args: Namespace) -> int:
    """Print everything about a job."""
    client = client_of(args)
    detail = client.job(one_job(client, args.job))
    if args.json:
        show_json(detail)
        return 0
    for name, value in _facts(detail):
        show(f"{name:<12} {value}")
    if detail.attempts:
        show("")
        show_table(
            ["LEASE", "SITE", "STATE", "FIRST", "EVENTS", "TOOK", "REASON"],
            [
                [
                    each.lease,
                    each.site,
                    each.state,
                    each.first,
                    count_text(each.count),
                    duration_text((each.ended_us - each.leased_us) / 1e6) if each.ended_us else "-",
                    each.reason,
                ]
                for each in detail.attempts
            ],
            right=(0, 3, 4, 5),
        )
    for stay in detail.stays:
        show(f"ward         {stay_text(stay)}")
    _show_failures(detail.failures)
    for output in detail.outputs:
        if output.sha256:
            show(f"output       {output.name}: {output.url} ({bytes_text(output.size_bytes)})")
    for line in outputs_lines(detail):
        show(f"output       {line}")
    return 0


def stay_text(stay: StayRow) -> str:
    """A stay in a ward, for people."""
    from tidemill import clock

    what = f", with {stay.cure}" if stay.cure else ""
    at = f" at {stay.site}" if stay.site and stay.outcome != "there" else ""
    ended = f", {clock.utc_text(stay.ended_us)}" if stay.ended_us else ""
    outcome = {"there": "in it now", "home": "went home"}.get(stay.outcome, stay.outcome)
    return f"{stay.ward} from {clock.utc_text(stay.admitted_us)} ({stay.why}){what}: {outcome}{at}{ended}"


def _facts(detail: JobDetail) -> list[tuple[str, str]]:
    from tidemill import clock
    from tidemill.model.seed import seed
    from tidemill.wire.api import JobOutput

    row, usage = detail.row, detail.usage
    what = row.app if detail.spec.command is None else " ".join(detail.spec.command)
    facts = [
        ("job", f"{row.id}" + (f" ({row.name})" if row.name else "")),
        ("campaign", row.campaign),
        ("runs", what),
        ("state", state_text(row)),
        ("events", _events_text(row)),
        *[("limits", text) for text in [limits_text(detail.spec.resources)] if text],
        ("site", row.site or "-"),
        ("seeds", f"{seed(detail.seed_base, 0)} to {seed(detail.seed_base, row.events - 1)}"),
        ("created", clock.utc_text(row.created_us)),
    ]  # fmt: skip
    if row.started_us:
        facts.append(("started", clock.utc_text(row.started_us)))
    if row.ended_us:
        facts.append(("ended", clock.utc_text(row.ended_us)))
    if usage.wall_us:
        facts.append(("used", f"{used_text(usage)}, by what is done"))
    facts += _ended_lists(detail)
    if detail.kept is not None:
        where = "under way" if detail.kept.under_way else f"at site {detail.kept.site}"
        found = [JobOutput(job=row.id, output=each) for each in detail.outputs]
        facts += [("undelivered", f"{each.events} ({where})") for each in still_kept([detail.kept], found)]
        if is_acceptable(detail):
            facts.append(("", f"`tidemill job accept {row.id}` delivers them as they are"))
    if detail.waits_for:
        facts.append(("waits for", _waits_text(detail.waits_for, detail.waits_hint)))
    if detail.archived:
        facts.append(("archived", "yes: it cannot be retried"))
    if detail.remark:
        facts.append(("remark", detail.remark))
    return facts


def used_text(usage: PayloadUsage) -> str:
    """What the payloads of events that are done used: sites add up no others. Pure."""
    share = percent_text(ratio(usage.user_us + usage.system_us, usage.wall_us))
    return (
        f"{duration_text(usage.wall_us / 1e6)} on slots, CPU/wall {share}, at most {bytes_text(usage.rss_kb * 1024)} "
        "of memory"
    )


def _events_text(row: JobRow) -> str:
    canceled = f", {count_text(row.events_canceled)} canceled" if row.events_canceled else ""
    done, failed = count_text(row.events_done), count_text(row.events_failed)
    return f"{done} done, {failed} failed{canceled} of {count_text(row.events)}"


def _ended_lists(detail: JobDetail) -> list[tuple[str, str]]:
    """Events that are not done, and will not be."""
    return [(name, text) for name, text in (("failed", detail.failed), ("canceled", detail.canceled)) if text]


def _waits_text(cause: str, hint: str | None) -> str:
    from tidemill.wire.api import AT_WORK

    if cause == AT_WORK:
        return f"nothing: {hint}" if hint else "nothing"
    return hint or cause


def limits_text(need: Resources) -> str:
    """Memory, room for files and time that a job asks for, and how far they may grow; empty = its application or site
    decides."""
    from msgspec import UNSET

    found = []
    if need.memory_mb is not None:
        most = "" if need.memory_mb_max is UNSET else f", up to {count_text(need.memory_mb_max)} MB"
        found.append(f"memory {count_text(need.memory_mb)} MB{most}")
    if need.scratch_mb is not None:
        found.append(f"files {count_text(need.scratch_mb)} MB")
    if need.timeout_s is not None:
        most = "" if need.timeout_s_max is UNSET else f", up to {duration_text(need.timeout_s_max)}"
        found.append(f"time {duration_text(need.timeout_s)}{most}")
    return "; ".join(found)


def is_acceptable(detail: JobDetail) -> bool:
    """Whether a job has ended with outputs that its owner may accept as all there is."""
    return _is_kept(detail) and undelivered_text(detail) is None


def undelivered_text(detail: JobDetail) -> str | None:
    """Why the place of the outputs did not take them: it takes no part of them either. None = nothing was refused."""
    from tidemill.model.failure import FailureClass

    last = detail.failures[0].evidence if detail.failures else None
    if not _is_kept(detail) or last is None or last.failure is not FailureClass.STAGE_OUT:
        return None
    return None if last.message.startswith("merging ") else last.message


def _is_kept(detail: JobDetail) -> bool:
    """Whether a job has ended with outputs at its site that are not delivered."""
    kept = detail.kept
    return kept is not None and not kept.under_way and detail.row.state in ("FAILED", "CANCELED")


def state_text(row: JobRow) -> str:
    """The state, with the reason."""
    from tidemill.model.state import told_reason

    return row.shown_state + (f": {told_reason(row.state, row.reason, row.ends)}" if row.reason else "")


def _show_failures(failures: list[FailureRow]) -> None:
    """Failures as lines; equal ones that follow one another once, with their number."""
    alike = [list(group) for _, group in groupby(failures, _failure_lines)]
    for group in alike[:FAILURES_SHOWN]:
        first, *more = _failure_lines(group[0])
        show(first + (f" ({times_text(len(group))})" if len(group) > 1 else ""))
        for line in more:
            show(line)
    left = sum(map(len, alike[FAILURES_SHOWN:]))
    if left:
        show(f"             and {left} more: `tidemill errors --job {failures[0].job}`")


def _failure_lines(each: FailureRow) -> list[str]:
    where = "" if each.event is None else f" event {each.event} (seed {each.seed})"
    tail = each.evidence.stderr_tail.strip().splitlines()[-3:]
    return [
        f"failure      {each.evidence.failure}{where} at {each.site}: {each.evidence.message}",
        *(f"             | {line}" for line in tail),
        *(f"             node: {note}" for note in each.evidence.notes),
    ]


def cancel(args: Namespace) -> int:
    """Cancel jobs, a campaign, or some events of a job."""
    if args.events is not None:
        return _act_on_events(args, "cancel", done="canceled", not_done="had ended already")
    return _act(args, "cancel", "canceled", "had ended already")


def retry(args: Namespace) -> int:
    """Run what failed or was not done of jobs or a campaign."""
    from tidemill.cli.jobs.follow import follow_jobs

    found = needed(named(args.jobs, args.campaign, verb="job retry"), "job retry")
    if args.wait and not found.jobs:
        raise ConfigError(
            "`tidemill job retry --wait` needs numbers of jobs",
            hint=f"`tidemill run --resume {found.campaign}` runs a campaign again, and follows it",
        )
    changes = changes_of(args)
    if args.events is not None:
        if changes is not None:
            raise ConfigError(
                "`--events` cannot be combined with options that change the job",
                hint="change the job first: `tidemill job retry JOB` with these options, without --events",
            )
        code = _act_on_events(args, "retry", done="run again", not_done="did not change")
        return follow_jobs(client_of(args), found.jobs, quiet=args.json) if args.wait else code
    if changes is not None and changes.output_dir and client_of(args).place.is_own:
        check_output_dir(Path(changes.output_dir), found.campaign or "")
    more = {} if changes is None else {"changes": changes}
    code = _act(args, "retry", "changed" if more else "run again", "had nothing to run again", **more)
    return follow_jobs(client_of(args), found.jobs, quiet=args.json) if args.wait else code


def accept(args: Namespace) -> int:
    """Accept what is done of failed or canceled jobs: merge and deliver it."""
    return _act(args, "accept", "accepted", "had nothing to accept")


def discard(args: Namespace) -> int:
    """Delete the outputs that sites keep of ended jobs and have not delivered."""
    return _act(args, "discard", "discarded", "had nothing to discard")


def _act(args: Namespace, verb: str, done: str, not_done: str, **more: Any) -> int:
    found = needed(named(args.jobs, args.campaign, verb=f"job {verb}"), f"job {verb}")
    client = client_of(args)
    act: Callable[..., ActionReply] = {
        "cancel": client.cancel,
        "retry": client.retry,
        "accept": client.accept,
        "discard": client.discard,
    }[verb]
    reply = act(found.jobs, campaign=found.campaign, reason=args.reason, **more)
    if args.json:
        show_json(reply)
    else:
        say(f"{count_text(reply.changed)} {'job' if reply.changed == 1 else 'jobs'} {done}"
            + (f", {count_text(left)} {not_done}" if (left := reply.unchanged - reply.gone) else ""))  # fmt: skip
        tell_gone(reply)
    return 0


def _act_on_events(args: Namespace, verb: str, *, done: str, not_done: str) -> int:
    client = client_of(args)
    job = job_of_events(client, args, verb)
    act = client.cancel if verb == "cancel" else client.retry
    reply = act([job], reason=args.reason, events=str(args.events))
    if args.json:
        show_json(reply)
    else:
        say(outcome_text(reply.changed, reply.unchanged, done=done, not_done=not_done))
        if reply.changed and verb == "cancel":
            hint(f"`tidemill job retry {job} --events {args.events}` runs them after all")
    return 0


def tell_gone(reply: ActionReply) -> None:
    """Say how many jobs no retry can run again, and why; nothing if there are none."""
    if reply.gone:
        say(
            f"{counted_text(reply.gone, 'job')} cannot run again: canceled before anything ran, and the specification "
            "has been removed since to make room"
        )
        hint("submit them again")


COMMANDS = {
    "job show": Command(define_one, show_job, "tidemill job show 7"),
    "job cancel": Command(define_cancel, cancel, "tidemill job cancel 7 --events 100-199"),
    "job retry": Command(define_retry, retry, "tidemill job retry 7 8"),
    "job accept": Command(define_many, accept, "tidemill job accept 7"),
    "job discard": Command(define_many, discard, "tidemill job discard 7"),
}
