"""`tidemill job explain`: why a job waits, how it goes on, or how it ended; always with what to do."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.arriving import outputs_lines
from tidemill.cli.jobs.job import (
    define_one,
    is_acceptable,
    state_text,
    stay_text,
    undelivered_text,
    used_text,
)
from tidemill.cli.jobs.named import check_events, define_events, one_job
from tidemill.cli.progress import waiting_text
from tidemill.cli.terminal import show, show_json
from tidemill.model.job import STRESS_REASON
from tidemill.model.quantities import bytes_text, count_text, duration_text, rate_text, ratio

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.model.job import Resources
    from tidemill.wire.api import FailureRow, JobDetail

ROUTES_SHOWN = 10
OUTPUTS_SHOWN = 5
REASON_CHARACTERS_MIN = 20
"""A shorter reason, such as `exit status 1`, says nothing about which failure it is."""


def define_explain(parser: Parser) -> None:
    """Options of `job explain`."""
    define_one(parser)
    define_events(parser, "show the state of these events")


def _explain_events(client: Client, detail: JobDetail, args: Namespace) -> int:
    """Print what is with some events of a job."""
    check_events(detail, args.events)
    from tidemill.client.event_states import lines, read_failures, states

    failures = read_failures(client, detail.row.id) if detail.failed else []
    found = states(detail, failures, args.events, now_us=clock.now_us())
    if args.json:
        rows = [{"events": str(which), "state": text} for which, text in found]
        show_json({"job": detail.row.id, "state": detail.row.state, "events": rows})
        return 0
    for line in lines(found):
        show(line)
    return 0


def explain(args: Namespace) -> int:
    """Print the one cause that holds a job up, how far it is, or how it ended."""
    from tidemill.client.causes import step_of

    client = client_of(args)
    detail = client.job(one_job(client, args.job))
    if args.events is not None:
        return _explain_events(client, detail, args)
    row = detail.row
    last = detail.failures[0] if detail.failures else None
    is_over = row.state == "COMPLETED" or detail.archived
    step = step_of(last) if last and not is_over else None
    if last is not None and step is not None and _is_mute(client, last, step):
        step = "its stderr is empty, and its site keeps no stdout: have the command print more, such as by `sh -x`"
    lines = story(detail, now_us=clock.now_us())
    if args.json:
        show_json(
            {
                "job": row.id,
                "state": row.state,
                "reason": row.reason,
                "waits_for": detail.waits_for,
                "hint": detail.waits_hint or step,
                "story": lines,
                "failure": last,
                "routes": detail.routes,
                "stays": detail.stays,
            }
        )
        return 0
    show(f"job {row.id} is {state_text(row)}")
    for line in lines:
        show(line)
    for stay in detail.stays:
        show(f"the hospital: {stay_text(stay)}")
    _show_routes(detail)
    if last is not None:
        _show_failure(detail, last, step)
    elif row.reason.startswith(STRESS_REASON):
        show("nothing is left to do: a level of a stress test has more events than it needs")
    elif row.state in ("FAILED", "CANCELED", "PARTIAL") and not detail.archived:
        show(f"next step: `tidemill job retry {row.id}` runs what is not done; what is done stays done")
    return 0


def _is_mute(client: Client, last: FailureRow, step: str) -> bool:
    """Whether advice to read what a payload printed cannot help; its site is asked."""
    from tidemill.cli.jobs.outcome import LOG_S
    from tidemill.model.failure import STDERR_EMPTY

    if STDERR_EMPTY not in step:
        return False
    log = client.log(last.job, event=last.event, timeout_s=LOG_S)
    return not log.pending and not log.stdout and not log.stderr


def story(detail: JobDetail, *, now_us: int) -> list[str]:
    """What a job waits for, how it goes on, or how it went: lines for people. Pure."""
    from tidemill.wire.api import AT_WORK

    if detail.waits_for is None:
        return _ended(detail)
    lines = []
    if detail.waits_for != AT_WORK:
        lines.append(f"why: {waiting_text(detail.waits_for, detail.waits_hint)}")
        if detail.row.events_leased:
            lines.append(f"{_leased_text(detail.row.events_leased, 'of its events')} to a site now")
        if detail.outputs:  # what has arrived stays where it is while the rest waits
            lines += [f"output {each}" for each in outputs_lines(detail)]
    else:
        lines += _at_work(detail, now_us=now_us)
    most = detail.spec.running_max
    if most is not None:
        lines.append(
            f"at most {count_text(most)} of its events run at the same time, all at one site (`at_once`)"
        )
    return lines


def _at_work(detail: JobDetail, *, now_us: int) -> list[str]:
    """Lines on a job that waits for nothing: since when, how far, how fast, until when."""
    row = detail.row
    site = row.site or next((each.site for each in detail.attempts), None)
    ran_s = _ran_s(detail, now_us=now_us)
    where = f"site {site}" if site else "a site"
    lines = [f"nothing holds it up: it runs at {where}, which has had it for {duration_text(ran_s)}"]
    failed = f", {count_text(row.events_failed)} failed" if row.events_failed else ""
    if row.events > 1:
        lines.append(
            f"{count_text(row.events_done)} of {count_text(row.events)} events are done{failed}, "
            f"{_leased_text(row.events_leased)} to the site"
        )
    rate = ratio(row.events_done, ran_s)
    left = row.events - row.events_done - row.events_failed - row.events_canceled
    if row.events_done and rate:
        lines.append(f"at {rate_text(rate)} events/s it ends in about {duration_text(left / rate)}")
    else:
        lines.append(_limit_text(detail.spec.resources))
    more = (detail.waits_hint or "").partition("; ")[2]  # what more nodes wait for, where it could use some
    lines += [more] if more else []
    lines += [f"output {each}" for each in outputs_lines(detail)]
    lines.append(f"`tidemill attach {row.campaign}` follows it, `tidemill job cancel {row.id}` ends it")
    return lines


def _limit_text(need: Resources) -> str:
    from msgspec import UNSET

    if need.timeout_s is None:
        return "no event of it has a time limit (`--wall T` sets one)"
    more = ""
    if need.timeout_s_max is not UNSET:
        more = f", and runs again with more time, up to {duration_text(need.timeout_s_max)}"
    return f"an event is ended after {duration_text(need.timeout_s)}{more} (`--wall`)"


def _leased_text(events: int, of: str = "") -> str:
    """`1 is leased`, `3 of its events are leased`."""
    return f"{count_text(events)} {of}".rstrip() + (" is leased" if events == 1 else " are leased")


def _ran_s(detail: JobDetail, *, now_us: int) -> float:
    """How long a job has run: while a lease of it was open. The time between its end and a retry does not count. Where
    it has more leases than the server shows: since its start."""
    started_us = detail.row.started_us or detail.row.created_us
    spans = sorted((each.leased_us, each.ended_us or now_us) for each in detail.attempts)
    if not spans or spans[0][0] > started_us:
        return (now_us - started_us) / 1e6
    ran_us, until_us = 0, started_us
    for first_us, last_us in spans:
        ran_us += max(0, last_us - max(first_us, until_us))
        until_us = max(until_us, last_us)
    return ran_us / 1e6


def _ended(detail: JobDetail) -> list[str]:
    """Lines on a job that is over: what was done, in what time, with what, and where the outputs are."""
    row, usage = detail.row, detail.usage
    lines = []
    counts = f"{count_text(row.events_done)} of {count_text(row.events)} events done"
    counts += f", {count_text(row.events_failed)} failed" if row.events_failed else ""
    counts += f", {count_text(row.events_canceled)} canceled" if row.events_canceled else ""
    if row.started_us and row.ended_us:
        counts += f", in {duration_text((row.ended_us - row.started_us) / 1e6)}"
        waited_s = (row.started_us - row.created_us) / 1e6
        counts += f", after {duration_text(waited_s)} of waiting" if waited_s >= 1 else ""
    elif not row.started_us:
        counts += "; no event of it was started"
    lines.append(counts)
    if usage.wall_us:
        lines.append(f"what is done used {used_text(usage)}")
    lines += [
        f"output {each.name}: {each.url} ({bytes_text(each.size_bytes)})"
        for each in detail.outputs[:OUTPUTS_SHOWN]
    ]
    if len(detail.outputs) > OUTPUTS_SHOWN:
        lines.append(
            f"and {len(detail.outputs) - OUTPUTS_SHOWN} more outputs: `tidemill outputs ls {row.id}`"
        )
    if row.state == "COMPLETED" and not detail.failures:
        lines.append("nothing is left to do")
    return lines


def _same(message: str, told: str) -> bool:
    """Whether a failure is what was printed already: the site's reason, up to its hint. Pure."""
    reason = message.partition(" (")[0]
    return len(reason) >= REASON_CHARACTERS_MIN and reason in told


def _commands(text: str) -> set[str]:
    return set(re.findall(r"`(tidemill [^`]+)`", text))


def _show_failure(detail: JobDetail, last: FailureRow, step: str | None) -> None:
    from tidemill.model.failure import POLICY

    row = detail.row
    policy = POLICY[last.evidence.failure]
    is_told = bool(detail.waits_hint) and _same(last.evidence.message, str(detail.waits_hint))
    message = "as above" if is_told else last.evidence.message
    show(f"its latest failure: {last.evidence.failure} ({policy.meaning}): {message}")
    for line in last.evidence.stderr_tail.strip().splitlines()[-3:]:
        show(f"  | {line}")
    if step is None:
        show(
            "nothing is left to do: what failed was run again, and every event is done"
            if row.state == "COMPLETED"
            else "it is in the archive and cannot be retried: submit the events that failed as a new job"
        )
        return
    if not (is_told and _commands(step) and _commands(step) <= _commands(str(detail.waits_hint))):
        show(f"next step: {step}")
    if row.state in ("FAILED", "PARTIAL", "CANCELED") and "job retry" not in step:
        show(f"then: `tidemill job retry {row.id}` runs what is not done; what is done stays done")
    if undelivered_text(detail) is not None:
        show(
            f"or: `tidemill run --resume {row.campaign} --dir OTHER` delivers what is done to another directory"
        )
    if detail.kept is not None and is_acceptable(detail):
        show(
            f"or: `tidemill job accept {row.id}` delivers what is done; site {detail.kept.site} keeps events "
            f"{detail.kept.events}"
        )


def _show_routes(detail: JobDetail) -> None:
    """By which ways payloads read what they open."""
    for each in detail.routes[:ROUTES_SHOWN]:
        event = "" if each.event is None else f" of event {each.event}"
        show(f"input {each.name}{event} is read {each.why}")
    if len(detail.routes) > ROUTES_SHOWN:
        more = len(detail.routes) - ROUTES_SHOWN
        show(f"and {more} more inputs: `tidemill job explain --json {detail.row.id}`")


COMMANDS = {"job explain": Command(define_explain, explain, "tidemill job explain 7")}
