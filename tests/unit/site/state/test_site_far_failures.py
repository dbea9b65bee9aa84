"""Failures by a trouble of the way to a far input count against no event, a bounded number of times."""

from __future__ import annotations

import msgspec

from tidemill.batch.launch import MISPLACED_WORDS
from tidemill.model.failure import FailureClass, FaultKind, is_jobs_own
from tidemill.model.job import JobSpec, Resources
from tidemill.routing.attribution import FarTrouble
from tidemill.site.state import site_state
from tidemill.site.state.failures import FAR_SAID_MAX, FRUITLESS_MAX, LAUNCHES_MAX
from tidemill.site.state.pool import WorkPool
from tidemill.wire.api import FailureReport, LeaseOrder, ReleaseReport
from tidemill.wire.node import Failed, Grant

SEEN = FarTrouble(text="cache `dtn` does not run now", is_sites=True, is_seen=True)
SAID = FarTrouble(text="the origin does not answer", is_sites=True)
OTHER = FarTrouble(text="the origin has no such file")


class FailingJob:
    """A job of some events, each without a retry, whose payloads all fail."""

    def __init__(self, events: int = 1, nodes: int | None = None) -> None:
        self.pool = WorkPool(site_state.SiteState(site="here"))
        self.records = 0
        spec = JobSpec(app="a", events=events, retries=0, resources=Resources(nodes=nodes))
        order = LeaseOrder(n=1, lease=1, job=7, first=0, count=events, campaign="c", seed_base=0, spec=spec)
        self.pool.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read={}))
        self.pool.apply(site_state.FleetOpened(fleet="e1-1", at_us=0))
        self.pool.apply(site_state.Replied(acked=0, orders=[order], at_us=0))

    @property
    def job(self) -> site_state.SiteJob:
        return self.pool.state.jobs[7]

    def fail(self, far: FarTrouble | None, *, says: str = "", message: str = "exit status 54") -> None:
        """Grant what is ready, and have it fail. `says`: the end of its stderr."""
        for piece in list(self.job.ready):
            number = self.pool.state.next_grant
            grant = Grant(grant=number, job=7, first=piece.first, count=piece.count, chunk_max=None)
            self.pool.apply(
                site_state.Granted(fleet="e1-1", grants=[grant], cancels=[], ended=[], close=False)
            )
            self.records += 1
            record = Failed(
                p="a1.0.i1", s=self.records, grant=number, job=7, first=piece.first, count=piece.count, event=None,
                failure="payload", message=message, exit_status=54, signal=None, stderr_tail=says, slot=0,
                at_us=0, wall_us=1, user_us=0, system_us=0,
            )  # fmt: skip
            entry = site_state.Read(
                fleet="e1-1", offsets={}, records=[record], far={} if far is None else {0: far}
            )
            text = msgspec.json.encode(entry, enc_hook=site_state.encode_hook)
            self.pool.apply(msgspec.json.decode(text, type=site_state.Entry, dec_hook=site_state.decode_hook))

    def failures(self) -> list[FailureReport]:
        return [each for each in self.pool.state.reports if isinstance(each, FailureReport)]


def test_a_trouble_that_the_site_saw_fails_no_event_and_is_told_as_the_sites() -> None:
    it = FailingJob()
    it.fail(SEEN)

    (report,) = it.failures()
    assert not report.final
    assert report.evidence.message == "exit status 54; cache `dtn` does not run now"
    assert report.evidence.fault == FaultKind.SITE
    assert (it.job.failures, it.job.far) == ({}, {0: 1})
    assert [piece.count for piece in it.job.ready] == [1]


def test_a_container_runtime_that_does_not_start_is_told_with_the_setting_that_names_it() -> None:
    it = FailingJob()
    it.fail(None, message="failed to execute `/usr/bin/ch-run`: No such file or directory")
    (report,) = it.failures()
    assert "`containers.charliecloud.command` in the site's site.toml" in report.evidence.message
    plain = FailingJob()
    plain.fail(None, message="failed to execute `/opt/sim`: No such file or directory")
    assert plain.failures()[0].evidence.message == "failed to execute `/opt/sim`: No such file or directory"


def test_a_range_is_not_split_for_a_trouble_of_its_way() -> None:
    it = FailingJob(8)
    it.fail(SEEN)
    assert [(each.first, each.count) for each in it.job.ready] == [(0, 8)]


def test_a_program_that_always_prints_an_error_of_the_network_fails_in_the_end() -> None:
    it = FailingJob()
    for _ in range(FAR_SAID_MAX):
        it.fail(SAID)
    assert not any(each.final for each in it.failures())
    it.fail(SAID)
    assert [each.final for each in it.failures()][-1]


def test_a_trouble_that_stays_gives_the_work_back_to_the_last_event_and_fails_nothing() -> None:
    it = FailingJob()
    for _ in range(FRUITLESS_MAX):
        it.fail(SEEN)
    assert not any(isinstance(each, ReleaseReport) for each in it.pool.state.reports)
    it.fail(SEEN)

    assert not any(each.final for each in it.failures())
    (released,) = [each for each in it.pool.state.reports if isinstance(each, ReleaseReport)]
    assert (released.first, released.count) == (0, 1)
    assert released.evidence is not None
    assert released.evidence.fault == FaultKind.SITE


def test_ranks_that_are_not_on_their_nodes_are_tried_a_few_times_and_fail_no_event() -> None:
    """Each try meets the same launcher: the work goes back, and the server holds it off this site for a while."""
    it = FailingJob(nodes=4)
    says = f"{MISPLACED_WORDS}: 8 of them are on n1, where 2 should be"
    for _ in range(LAUNCHES_MAX):
        it.fail(None, says=says)
    assert it.job.ready
    assert not any(isinstance(each, ReleaseReport) for each in it.pool.state.reports)
    it.fail(None, says=says)

    assert not it.job.ready, "it is not tried here again"
    assert not any(each.final for each in it.failures())
    (released,) = [each for each in it.pool.state.reports if isinstance(each, ReleaseReport)]
    assert released.evidence is not None
    assert released.evidence.failure is FailureClass.BATCH
    assert released.evidence.message == "ranks are not on their nodes: 8 of them are on n1, where 2 should be"
    assert not is_jobs_own(released.evidence), "it counts against no job"


def test_what_is_the_jobs_own_is_told_and_counts() -> None:
    it = FailingJob()
    it.fail(OTHER)
    (report,) = it.failures()
    assert report.final
    assert report.evidence.message == "exit status 54; the origin has no such file"
    assert report.evidence.fault == ""


def test_a_job_begins_again_when_its_failed_events_are_leased_and_nothing_of_it_runs() -> None:
    it = FailingJob(events=3)
    assert it.job.began == 1
    while it.job.ready:
        it.fail(None)

    def lease(number: int, first: int) -> None:
        order = LeaseOrder(
            n=number, lease=number, job=7, first=first, count=1, campaign="c", seed_base=0, spec=None
        )
        it.pool.apply(site_state.Replied(acked=0, orders=[order], at_us=0))

    lease(2, 0)
    assert it.job.began == 2
    grant = Grant(grant=it.pool.state.next_grant, job=7, first=0, count=1, chunk_max=None)
    it.pool.apply(site_state.Granted(fleet="e1-1", grants=[grant], cancels=[], ended=[], close=False))
    lease(3, 1)
    assert it.job.began == 2, "its inputs are in use"
