"""Some events of a job on the command line: `--events 100-199,205`, and what is with them."""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Parser
from tidemill.errors import ConfigError, JobError
from tidemill.model.intervals import IntervalSet
from tidemill.model.quantities import count_text, counted_text, duration_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import FailureRow, JobDetail

FAILURES_READ = 1_000
SHOWN_MAX = 80  #: characters of a list of events in a line


def define_events(parser: Parser, what: str) -> None:
    """The option `--events`."""
    parser.add_argument(
        "--events", type=events_list, metavar="LIST", help=f"{what}, such as `100-199,205` (default: all)"
    )


def events_list(text: str) -> IntervalSet:
    """`100-199,205`. Raises ValueError."""
    from argparse import ArgumentTypeError

    try:
        events = IntervalSet.parse(text.replace(" ", ""))
    except ValueError as error:
        raise ArgumentTypeError(f"{error}; write a list such as `100-199,205`") from error
    if not events:
        raise ArgumentTypeError("it names no event; write a list such as `100-199,205`")
    return events


def job_of_events(client: Client, args: Namespace, verb: str) -> int:
    """The one job whose events are named. Raises ConfigError."""
    from tidemill.cli.jobs.named import one_job

    if len(args.jobs) + bool(args.campaign) != 1:
        raise ConfigError(
            f"`tidemill job {verb} --events` needs one job: events are numbered within a job",
            hint=f"`tidemill job {verb} JOB --events {args.events}`, or --campaign NAME of a campaign of one job",
        )
    return args.jobs[0] if args.jobs else one_job(client, args.campaign)


def check_events(detail: JobDetail, events: IntervalSet) -> None:
    """Raises JobError if a job does not have all of these events. Pure."""
    outside = events.copy()
    outside.remove(0, detail.row.events)
    if outside:
        last = detail.row.events - 1
        has = f"its events are 0 to {count_text(last)}" if last else "its only event is 0"
        raise JobError(f"job {detail.row.id} has no event {shown(outside)}", hint=has)


def shown(events: IntervalSet) -> str:
    """`3`, `100-199,205`, cut if it is long. Pure."""
    text = str(events)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX].rpartition(',')[0]},..."


def named(events: IntervalSet) -> str:
    """`event 3`, `events 100-199`: the subject of a line. Pure."""
    return f"event{'' if len(events) == 1 else 's'} {shown(events)}"


def read_failures(client: Client, job: int) -> list[FailureRow]:
    """The newest failures of a job, at most FAILURES_READ."""
    return list(client.failures(job=job, limit=FAILURES_READ))


def states(
    detail: JobDetail, failures: Iterable[FailureRow], events: IntervalSet, *, now_us: int
) -> list[tuple[IntervalSet, str]]:
    """What is with these events of a job, alike ones together, by their first event. Pure."""
    left = events.copy()
    found: list[tuple[IntervalSet, str]] = []

    def take(which: IntervalSet, text: str) -> None:
        mine = IntervalSet(piece for span in left for piece in which.within(*span))
        if mine:
            left.remove_all(mine)
            found.append((mine, text))

    take(IntervalSet.parse(detail.done), "done")
    take(IntervalSet.parse(detail.canceled), "canceled by the owner")
    failed = IntervalSet.parse(detail.failed)
    for which, text in _causes(failures, failed):
        take(which, f"failed: {text}")
    take(failed, "failed")
    leased = IntervalSet.parse(detail.leased)
    for each in detail.attempts:
        if each.state == "ACTIVE":
            span = IntervalSet(leased.within(each.first, each.first + each.count))
            since = duration_text(max(0, now_us - each.leased_us) / 1e6)
            take(span, f"at site {each.site} for {since}: they run there, or wait for a free core")
    take(leased, "at a site: they run there, or wait for a free core")
    if left:
        found.append((left.copy(), _not_run(detail)))
    return sorted(found, key=lambda each: next(iter(each[0])))


def _not_run(detail: JobDetail) -> str:
    row = detail.row
    if row.ended_us is not None:
        return f"did not run before the job was {row.state}"
    waits = detail.waits_for and detail.waits_for != "running"
    return f"wait for: {detail.waits_for}" if waits else "wait until a site takes more of the job"


def _causes(failures: Iterable[FailureRow], failed: IntervalSet) -> Iterator[tuple[IntervalSet, str]]:
    """Failed events by what was said of them last."""
    groups: dict[str, IntervalSet] = defaultdict(IntervalSet)
    seen = IntervalSet()
    for each in failures:  # the newest first
        if each.event is not None and each.final and each.event in failed and each.event not in seen:
            seen.add(each.event, each.event + 1)
            groups[f"{each.evidence.failure}: {each.evidence.message}"].add(each.event, each.event + 1)
    for text, events in groups.items():
        yield events, text


def lines(found: Iterable[tuple[IntervalSet, str]]) -> list[str]:
    """One line for each group of events. Pure."""
    return [f"{named(events)}: {text}" for events, text in found]


def told(changed: int, unchanged: int, *, done: str, not_done: str) -> str:
    """`100 events canceled, 3 had ended already`. Pure."""
    return f"{counted_text(changed, 'event')} {done}" + (
        f", {count_text(unchanged)} {not_done}" if unchanged else ""
    )
