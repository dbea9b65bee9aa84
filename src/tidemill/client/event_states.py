"""What is with some events of a job: done, failed and why, canceled, at a site, waiting; and texts that name events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidemill.errors import ProtocolError
from tidemill.model.intervals import IntervalSet
from tidemill.model.quantities import duration_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import FailureRow, JobDetail

FAILURES_READ = 1_000
SHOWN_MAX = 80  #: characters of a list of events in a line
QUOTED_MAX = 200  #: characters of what is wrong with a list


def listed_events(text: str) -> IntervalSet:
    """Events as a server names them, such as `0-9,12`. Raises ProtocolError for any other text. Pure."""
    try:
        result = IntervalSet.parse(text)
        len(result)
    except (ValueError, OverflowError) as error:  # no set, or one that cannot be counted
        raise ProtocolError(
            f"the server's answer has events that cannot be read: {str(error)[:QUOTED_MAX]}",
            hint="are server and client of the same version?",
        ) from error
    return result


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

    take(listed_events(detail.done), "done")
    take(listed_events(detail.canceled), "canceled by the owner")
    failed = listed_events(detail.failed)
    for which, text in _causes(failures, failed):
        take(which, f"failed: {text}")
    take(failed, "failed")
    leased = listed_events(detail.leased)
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
