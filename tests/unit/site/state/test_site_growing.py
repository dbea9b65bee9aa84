"""Events that lacked memory or time run again with more, in another form of their job."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.model.job import JobSpec, Resources
from tidemill.site.state import site_state
from tidemill.site.state.failures import RETURNS_MAX
from tidemill.site.state.growing import spec_in
from tidemill.site.state.pool import WorkPool
from tidemill.wire.api import CancelOrder, DeliverOrder, FailureReport, LeaseOrder, ReleaseReport
from tidemill.wire.node import (
    FORM_BASE,
    FORMS_MAX,
    STEPS_FROM,
    Failed,
    Grant,
    Returned,
    form_number,
    form_of,
    job_of,
)

FLEET = "e1-1"
GROWS = Resources(memory_mb=100, memory_mb_max=1500, timeout_s=60, timeout_s_max=300)


class GrowingJob:
    """Job 7 with some events and no retries."""

    def __init__(self, events: int = 1, need: Resources = GROWS, *, retries: int = 0) -> None:
        self.pool = WorkPool(site_state.SiteState(site="here"))
        self.records = self.orders = 0
        self.spec = JobSpec(app="a", events=events, retries=retries, resources=need)
        self.pool.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read={}))
        self.pool.apply(site_state.FleetOpened(fleet=FLEET, at_us=0))
        self.lease(self.spec)

    @property
    def job(self) -> site_state.SiteJob:
        return self.pool.state.jobs[7]

    def lease(self, spec: JobSpec | None, first: int = 0, count: int | None = None) -> None:
        self.orders += 1
        order = LeaseOrder(
            n=self.orders, lease=self.orders, job=7, first=first, count=self.spec.events if count is None else count,
            campaign="c", seed_base=0, spec=spec,
        )  # fmt: skip
        self.pool.apply(site_state.Replied(acked=0, orders=[order], at_us=0))

    def grant(self) -> list[Grant]:
        """Grant what is ready, each piece in its form."""
        grants = []
        for piece in list(self.job.ready):
            form = self.job.base_form if piece.form is None else piece.form
            grant = Grant(
                grant=self.pool.state.next_grant, job=form_number(7, form), first=piece.first, count=piece.count,
                chunk_max=None,
            )  # fmt: skip
            self.pool.apply(
                site_state.Granted(fleet=FLEET, grants=[grant], cancels=[], ended=[], close=False)
            )
            grants.append(grant)
        return grants

    def fail(self, grant: Grant, failure: str = "memory", *, used: int = 0, event: int | None = None) -> None:
        limit = self.limits(grant).memory_mb
        message = f"used {used} MB of memory, its limit is {limit} MB" if used else "it was ended"
        self.records += 1
        record = Failed(
            p="a1.0.i1", s=self.records, grant=grant.grant, job=7, first=grant.first, count=grant.count, event=event,
            failure=failure, message=message, exit_status=137, signal=None, stderr_tail="", slot=0, at_us=0, wall_us=1,
            user_us=0, system_us=0,
        )  # fmt: skip
        entry = site_state.Read(fleet=FLEET, offsets={}, records=[record])
        text = msgspec.json.encode(entry, enc_hook=site_state.encode_hook)
        self.pool.apply(msgspec.json.decode(text, type=site_state.Entry, dec_hook=site_state.decode_hook))
        self.pool = WorkPool(self.reread())

    def reread(self) -> site_state.SiteState:
        """The state that an agent reads when it starts again."""
        text = msgspec.json.encode(self.pool.state, enc_hook=site_state.encode_hook)
        return msgspec.json.decode(text, type=site_state.SiteState, dec_hook=site_state.decode_hook)

    def limits(self, grant: Grant) -> Resources:
        return spec_in(self.job, form_of(grant.job)).resources

    def failures(self) -> list[FailureReport]:
        return [each for each in self.pool.state.reports if isinstance(each, FailureReport)]


def memories(it: GrowingJob) -> list[int | None]:
    return [it.limits(each).memory_mb for each in it.grant()]


def test_a_number_of_a_fleet_is_that_of_one_job_in_one_form() -> None:
    for job in (1, FORM_BASE - 1):
        for form in (0, 1, FORMS_MAX - 1):
            number = form_number(job, form)
            assert (job_of(number), form_of(number), number < STEPS_FROM) == (job, form, True)
    step = STEPS_FROM + 7
    assert (form_number(step, 0), job_of(step), form_of(step)) == (step, step, 0)


def test_memory_is_doubled_for_what_failed_until_the_most_and_no_try_is_charged() -> None:
    it = GrowingJob()
    seen = []
    for _ in range(5):
        (grant,) = it.grant()
        seen.append(it.limits(grant).memory_mb)
        it.fail(grant)
    assert seen == [100, 200, 400, 800, 1500]
    assert [each.final for each in it.failures()] == [False] * 4 + [True]
    assert it.failures()[0].evidence.message == "it was ended; it runs again with 200 MB"
    assert it.failures()[-1].evidence.message == "it was ended, the most that it may grow to"
    assert it.job.fruitless == 0


def test_what_was_seen_to_use_more_is_doubled_more_than_once() -> None:
    it = GrowingJob()
    (grant,) = it.grant()
    it.fail(grant, used=303)
    assert memories(it) == [400]


def test_retries_count_at_the_most() -> None:
    it = GrowingJob(need=Resources(memory_mb=100, memory_mb_max=150), retries=1)
    for expected in (100, 150, 150):
        (grant,) = it.grant()
        assert it.limits(grant).memory_mb == expected
        it.fail(grant)
    assert [each.final for each in it.failures()] == [False, False, True]


def test_time_grows_beside_memory() -> None:
    it = GrowingJob()
    for failure, expected in (("walltime", (100, 120)), ("memory", (200, 120)), ("walltime", (200, 240))):
        it.fail(it.grant()[0], failure)
        (form,) = {each.form for each in it.job.ready}
        assert form is not None
        need = spec_in(it.job, form).resources
        assert (need.memory_mb, need.timeout_s) == expected
    assert "; it runs again with 2 m" in it.failures()[0].evidence.message


@pytest.mark.parametrize("failure", ["payload", "disk"])
def test_other_failures_change_no_limit_and_are_charged(failure: str) -> None:
    it = GrowingJob(retries=1)
    it.fail(it.grant()[0], failure)
    assert (memories(it), it.job.failures) == ([100], {0: 1})


def test_only_the_events_of_the_payload_that_failed_grow_and_a_named_culprit_alone() -> None:
    it = GrowingJob(6)
    (grant,) = it.grant()
    it.fail(grant, event=2)
    assert [(each.first, each.count) for each in it.job.ready] == [(0, 2), (3, 3), (2, 1)]
    assert memories(it) == [100, 100, 200]
    other = GrowingJob(6)
    (grant,) = other.grant()
    other.fail(grant)
    assert [(each.first, each.count) for each in other.job.ready] == [(0, 6)]
    assert memories(other) == [200]


def test_what_grew_stays_so_when_its_fleet_is_over() -> None:
    it = GrowingJob()
    it.fail(it.grant()[0])
    it.grant()
    it.pool.apply(site_state.FleetFinished(fleet=FLEET, at_us=0))
    assert [each.form for each in it.job.ready] == [1]


def test_a_job_has_one_form_for_each_value() -> None:
    it = GrowingJob(50)
    it.lease(None, 0, 0)
    for grant in it.grant():
        it.fail(grant, event=3)
    for grant in it.grant():
        it.fail(grant, used=110 + grant.first)
    assert {each.memory_mb for each in it.job.forms.values()} == {200, 400}
    assert len(it.job.forms) == 2


def test_a_job_that_comes_with_another_specification_is_another_form_and_what_runs_goes_on() -> None:
    it = GrowingJob(4)
    (grant,) = it.grant()
    it.lease(msgspec.structs.replace(it.spec, resources=Resources(memory_mb=3000)), 0, 0)
    assert it.job.grants[grant.grant].form == 0
    it.fail(grant)
    assert it.job.base_form == 1
    assert [each.form for each in it.job.ready] == [None] * 2, "it is split, and runs as the job is now"
    assert {job_of(each.job) for each in it.grant()} == {7}
    assert {each.form for each in it.job.grants.values()} == {1}


def test_a_specification_that_comes_again_changes_no_form() -> None:
    it = GrowingJob(4)
    it.lease(it.spec, 0, 0)
    assert (it.job.base_form, it.job.next_form) == (0, 1)


def test_a_cancel_reaches_every_form_that_a_lead_has() -> None:
    it = GrowingJob(6)
    it.fail(it.grant()[0], event=2)
    it.grant()
    it.pool.apply(site_state.Replied(acked=0, orders=[CancelOrder(n=99, job=7, reason="")], at_us=0))
    assert sorted(it.pool.state.fleets[FLEET].cancels) == [7, form_number(7, 1)]


def test_a_delivery_goes_to_the_directory_that_its_order_names() -> None:
    it = GrowingJob()
    order = DeliverOrder(n=9, job=7, done="", output_dir="/other")
    it.pool.apply(site_state.Replied(acked=0, orders=[order], at_us=0))
    assert it.job.spec.output_dir == "/other"


def test_what_has_grown_beyond_all_pilots_goes_back_and_the_rest_of_the_job_runs_on() -> None:
    it = GrowingJob(events=4)
    it.fail(it.grant()[0], event=3)
    small, large = it.grant()
    assert (small.count, it.limits(large).memory_mb) == (3, 200)
    records = [
        Returned(p=f"a{number}.0.i1", s=1, grant=large.grant, job=7, first=3, count=1, reason="no_fit")
        for number in range(2, RETURNS_MAX + 2)
    ]
    it.pool.apply(site_state.Read(fleet=FLEET, offsets={}, records=[*records]))
    assert list(it.job.grants) == [small.grant]
    assert it.pool.state.fleets[FLEET].cancels == [large.job]
    released = [each for each in it.pool.state.reports if isinstance(each, ReleaseReport)]
    assert [(each.first, each.count) for each in released] == [(3, 1)]
