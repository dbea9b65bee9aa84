"""What payloads did, by second, of campaigns and larger jobs: from the pilots' records, for pages and reports. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from tidemill.model.failure import FailureClass
from tidemill.model.figures.activity import Changes, Span, add
from tidemill.site.state import site_state
from tidemill.wire import node
from tidemill.wire.activity import ACTIVITY_LINES_MAX, ActivityLine, ActivityReport

JOB_EVENTS_MIN = 200  #: of a job that is reported by itself: the life line of a smaller one says as much


class Activities:
    """Takes the records of one read of one fleet's journals. Cost: a few sums for each record; reports grow with the
    seconds that the records are of."""

    def __init__(self) -> None:
        self._campaigns: dict[tuple[str, str], tuple[int, Changes]] = {}  #: by owner and name
        self._jobs: dict[int, Changes] = {}

    def done(self, job: site_state.SiteJob, record: node.Done, events: int) -> None:
        """Count payloads that have ended, and `events` that count for the first time."""
        span = Span(record.started_us, record.ended_us, record.wall_us, record.user_us + record.system_us)
        self._add(job, span, events, 0)

    def failed(self, job: site_state.SiteJob, record: node.Failed) -> None:
        """A payload has failed; one that others displaced has only taken time."""
        span = Span(
            record.at_us - record.wall_us, record.at_us, record.wall_us, record.user_us + record.system_us
        )
        self._add(job, span, 0, int(record.failure != FailureClass.PREEMPTED))

    def _add(self, job: site_state.SiteJob, span: Span, done: int, failed: int) -> None:
        if job.id >= site_state.STEP_BASE or not 0 < span.started_us <= span.ended_us:
            return  # merge steps have no events; a record without times does not show when
        key = job.owner, job.campaign
        found = self._campaigns.get(key)
        if found is None:
            found = self._campaigns[key] = (job.id, {})
        add(found[1], span, done=done, failed=failed)
        if job.spec.events >= JOB_EVENTS_MIN:
            add(self._jobs.setdefault(job.id, {}), span, done=done, failed=failed)

    def reports(self) -> Iterator[ActivityReport]:
        """What was added, in bounded reports."""
        for number, changes in self._campaigns.values():
            yield from _reports(number, changes, of_job=False)
        for number, changes in self._jobs.items():
            yield from _reports(number, changes, of_job=True)


def _reports(job: int, changes: Changes, *, of_job: bool) -> Iterator[ActivityReport]:
    lines = [ActivityLine(at, *line) for at, line in sorted(changes.items(), key=itemgetter(0)) if any(line)]
    for at in range(0, len(lines), ACTIVITY_LINES_MAX):
        yield ActivityReport(n=0, job=job, of_job=of_job, lines=lines[at : at + ACTIVITY_LINES_MAX])
