"""What payloads did over time: from records to reports, each event once."""

from __future__ import annotations

import msgspec

from tidemill.model.figures.activity import Changes, activity, counted, merge
from tidemill.model.job import JobSpec
from tidemill.site.state import site_state
from tidemill.site.state.activities import JOB_EVENTS_MIN
from tidemill.site.state.pool import WorkPool
from tidemill.wire.activity import ActivityReport
from tidemill.wire.api import LeaseOrder
from tidemill.wire.node import Done, Failed, Grant, Record

NOW_US = 1_700_000_000_000_000


class Working:
    """A fleet with a grant of all events of one job."""

    def __init__(self, events: int) -> None:
        self.pool = WorkPool(site_state.SiteState(site="here"))
        spec = JobSpec(app="a", events=events, retries=0)
        order = LeaseOrder(n=1, lease=1, job=7, first=0, count=events, campaign="c", seed_base=0, spec=spec)
        grant = Grant(grant=1, job=7, first=0, count=events, chunk_max=None)
        self.pool.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read={}))
        self.pool.apply(site_state.FleetOpened(fleet="e1-1", at_us=0))
        self.pool.apply(site_state.Replied(acked=0, orders=[order], at_us=0))
        self.pool.apply(site_state.Granted(fleet="e1-1", grants=[grant], cancels=[], ended=[], close=False))

    def read(self, *records: Record) -> None:
        self.pool.apply(site_state.Read(fleet="e1-1", offsets={}, records=list(records)))

    def reports(self, *, of_job: bool = False) -> list[ActivityReport]:
        found = [each for each in self.pool.state.reports if isinstance(each, ActivityReport)]
        return [each for each in found if each.of_job == of_job]

    def changes(self) -> Changes:
        found: Changes = {}
        for each in self.reports():
            merge(found, {line.at_s: msgspec.structs.astuple(line)[1:] for line in each.lines})
        return found


def done(number: int, event: int, *, at_s: float = 0.0, long_s: float = 0.5) -> Done:
    start = NOW_US + int(at_s * 1e6)
    return Done(
        p="a1.0.i1", s=number, grant=1, job=7, first=event, count=1, payloads=1, slot=0, started_us=start,
        ended_us=start + int(long_s * 1e6), wall_us=int(long_s * 1e6), setup_us=0, user_us=1_000, system_us=0, rss_kb=1,
        read_bytes=None, write_bytes=None, outputs=[],
    )  # fmt: skip


def failed(number: int, event: int, failure: str) -> Failed:
    return Failed(
        p="a1.0.i1", s=number, grant=1, job=7, first=event, count=1, event=event, failure=failure, message="",
        exit_status=1, signal=None, stderr_tail="", slot=0, at_us=NOW_US + 2_500_000, wall_us=250_000, user_us=0,
        system_us=0,
    )  # fmt: skip


def test_an_event_that_comes_twice_counts_once_and_its_time_twice() -> None:
    it = Working(5)
    it.read(done(1, 0), done(2, 0, at_s=2), done(3, 1, at_s=2))
    found = activity(it.changes(), 1)
    assert counted([found]) == 2
    assert [each.busy_us for each in found.intervals if each.busy_us] == [500_000, 1_000_000]


def test_failures_count_and_what_was_displaced_only_took_time() -> None:
    it = Working(5)
    it.read(failed(1, 0, "payload"), failed(2, 1, "preempted"))
    (interval,) = [each for each in activity(it.changes(), 1).intervals if each.busy_us]
    assert (interval.done, interval.failed, interval.busy_us) == (0, 1, 500_000)


def test_reports_grow_with_seconds_and_not_with_records() -> None:
    it = Working(JOB_EVENTS_MIN)
    it.read(*(done(k + 1, k, at_s=k / JOB_EVENTS_MIN, long_s=0.0001) for k in range(JOB_EVENTS_MIN)))
    (campaign,), (job,) = it.reports(), it.reports(of_job=True)
    assert campaign.lines == job.lines
    assert len(campaign.lines) <= 3


def test_a_small_job_has_none_of_its_own() -> None:
    it = Working(JOB_EVENTS_MIN - 1)
    it.read(done(1, 0))
    assert len(it.reports()) == 1
    assert it.reports(of_job=True) == []
