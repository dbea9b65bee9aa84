"""`tidemill job logs`: stdout and stderr of a payload, from its site or from the output that was delivered."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, client_of, count, count_or_zero, define_raw
from tidemill.cli.jobs.job import define_one
from tidemill.cli.jobs.named import check_events, define_events, one_job
from tidemill.cli.terminal import hint, pass_on, say, show_json
from tidemill.errors import ConfigError, JobError, SiteError
from tidemill.model.quantities import count_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.client.outputs import Member
    from tidemill.model.failure import Evidence
    from tidemill.wire.api import JobDetail

LOG_WAIT_S = 30
EVENTS_MAX = 100  #: whose logs are read one after the other
STDOUT = "stdout"


def define_logs(parser: Parser) -> None:
    """Options of `job logs`."""
    define_one(parser)
    parser.add_argument(
        "--event",
        type=count_or_zero,
        metavar="N",
        help="the payload that ran this event (default: the latest payload)",
    )
    define_events(parser, f"the payloads that ran these events, {EVENTS_MAX} at most")
    parser.add_argument(
        "--timeout",
        type=count,
        default=LOG_WAIT_S,
        metavar="S",
        help=f"seconds to wait for the site's answer (default: {LOG_WAIT_S})",
    )
    define_raw(parser)


def logs(args: Namespace) -> int:
    """Print a payload's stdout and stderr: all of a stdout that was delivered here, else what the site keeps."""
    client = client_of(args)
    job = one_job(client, args.job)
    detail = client.job(job)
    if args.events is not None:
        return _logs_of_events(client, detail, args)
    check_event(detail, args.event)
    log = client.log(job, event=args.event, timeout_s=args.timeout)
    which = f"job {job}" + ("" if args.event is None else f", event {args.event}")
    delivered = _delivered(detail, args.event)
    if args.json:
        if delivered is not None:
            log.found, log.stdout = True, delivered.data.decode(errors="replace")
        show_json(log)
        return 0
    if log.pending and delivered is None:
        raise SiteError(
            f"the site has not sent the log of {which} within {args.timeout} s",
            hint="`tidemill site status` shows whether its agent runs",
        )
    if not log.found and delivered is None:
        return _tell_none(detail, which, args.event)
    pass_on([log.stdout if delivered is None else delivered.data], raw=args.raw)
    failed = _failed_try(detail, args.event) if log.stderr else None
    if failed is not None and log.stderr.rstrip().endswith(failed.stderr_tail.strip()):
        say(
            f"remark: the event is done; an earlier try failed ({failed.message}) and printed this to stderr:"
        )
    pass_on([log.stderr], to_stderr=True, raw=args.raw)
    return 0


def _logs_of_events(client: Client, detail: JobDetail, args: Namespace) -> int:
    """Print the logs of several events, each under a line with its number; of events that have none, what is with
    them."""
    from tidemill.client.event_states import read_failures, states

    if args.event is not None:
        raise ConfigError("`--event` and `--events` cannot be combined", hint="name all events with --events")
    check_events(detail, args.events)
    if len(args.events) > EVENTS_MAX:
        raise ConfigError(
            f"{count_text(len(args.events))} logs are asked for, at most {EVENTS_MAX} at once",
            hint="name fewer events; `tidemill errors` groups what failed by its cause",
        )
    failures = read_failures(client, detail.row.id) if detail.failed else []
    found = states(detail, failures, args.events, now_us=clock.now_us())
    logs = []
    for event in (event for span in args.events for event in range(*span)):
        log = client.log(detail.row.id, event=event, timeout_s=args.timeout)
        delivered = _delivered(detail, event)
        if delivered is not None:
            log.found, log.stdout = True, delivered.data.decode(errors="replace")
        logs.append(log)
        if args.json:
            continue
        state = next(text for which, text in found if event in which)
        say(f"event {event}: {state}" + ("" if log.found else "; it has no log"))
        pass_on([log.stdout if delivered is None else delivered.data], raw=args.raw)
        pass_on([log.stderr], to_stderr=True, raw=args.raw)
    if args.json:
        show_json(logs)
    return 0


def check_event(detail: JobDetail, event: int | None) -> None:
    """Raises JobError if a job has no event of this number. Pure."""
    events = detail.row.events
    if event is None or event < events:
        return
    has = "one event, 0" if events == 1 else f"{count_text(events)} events, 0 to {count_text(events - 1)}"
    raise JobError(f"job {detail.row.id} has no event {count_text(event)}: it has {has}")


def _failed_try(detail: JobDetail, event: int | None) -> Evidence | None:
    """The newest failure of an event that is done since, with what it printed to stderr; None if there is none."""
    from tidemill.client.event_states import listed_events

    wanted = 0 if event is None and detail.row.events == 1 else event
    if wanted is None or wanted not in listed_events(detail.done):
        return None
    evidence = [each.evidence for each in detail.failures if each.event == wanted]
    return next((each for each in evidence if each.stderr_tail.strip()), None)


def _delivered(detail: JobDetail, event: int | None) -> Member | None:
    """The whole stdout of an event where it was delivered to this machine."""
    from tidemill.client.outputs import members

    wanted = 0 if event is None and detail.row.events == 1 else event
    if wanted is None:
        return None  # of many payloads, the site knows which one was the latest
    for output in detail.outputs:
        if output.name != STDOUT:
            continue
        try:
            for each in members(detail.row.id, output):
                first = each.first or 0
                if first <= wanted < first + (each.count or 1):
                    return each
        except (ConfigError, SiteError):  # it lies elsewhere, or was moved: the site is asked
            continue
    return None


def _has_stdout_of(detail: JobDetail, event: int | None) -> bool:
    """Whether the output `stdout` may hold what an event printed: it has that of events that are done. Pure."""
    from tidemill.client.event_states import listed_events

    wanted = 0 if event is None and detail.row.events == 1 else event
    return wanted is None or wanted in listed_events(detail.done)


def _tell_none(detail: JobDetail, which: str, event: int | None) -> int:
    row = detail.row
    if row.events_done + row.events_failed == 0 and row.started_us is None:
        raise JobError(f"no payload of {which} has run yet", hint=f"tidemill job explain {row.id}")
    kept = [each.url for each in detail.outputs if each.name == STDOUT]
    if kept and _has_stdout_of(detail, event):
        say(f"stdout of {which} is in the output `{STDOUT}`: {kept[0]}")
        hint(f"`tidemill outputs get {row.id} --output {STDOUT}` copies it")
        return 0
    say(f"{which} wrote nothing to stdout and stderr, or its site has removed the log")
    hint(
        "a site keeps logs for some days, and its nodes write them within half a minute; `--keep-stdout` of `run` and "
        "`submit` makes stdout an output"
    )
    return 0


COMMANDS = {"job logs": Command(define_logs, logs, "tidemill job logs 7 --event 4711")}
