"""How the server's orders change the pool. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.errors import ProtocolError
from tidemill.model.failure import Evidence, FailureClass, FaultKind
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.model.retry.changes import JobChanges, changed
from tidemill.site.state import site_state
from tidemill.site.state.settlement import Settlement
from tidemill.wire import api


def apply_replied(settlement: Settlement, entry: site_state.Replied) -> None:
    """Drop acknowledged reports, carry out the orders that are new."""
    state = settlement.state
    reports = state.reports
    if reports and entry.acked >= reports[0].n:
        del reports[: entry.acked - reports[0].n + 1]
    for order in entry.orders:
        if order.n > state.have:
            why = entry.refused.get(order.n)
            if why is not None and isinstance(order, api.LeaseOrder):
                fault = FaultKind.APPLICATION if order.n in entry.illegal else FaultKind.SITE
                _refuse(settlement, order, why, fault=fault)
            else:
                _HANDLERS[type(order)](settlement, order)
            state.have = order.n
    state.have = max(state.have, entry.passed)


def _lease(settlement: Settlement, order: api.LeaseOrder) -> None:
    state = settlement.state
    job = state.jobs.get(order.job)
    if job is None:
        if order.spec is None:
            _refuse(settlement, order, f"the server never described job {order.job} to this site")
            return
        job = site_state.SiteJob(
            id=order.job,
            campaign=order.campaign,
            owner=order.owner,
            seed_base=order.seed_base,
            spec=order.spec,
            open=IntervalSet(),
            done=IntervalSet(),
            began=order.n,
        )
        state.jobs[job.id] = job
    if order.spec is not None:
        if order.spec != job.spec:
            _leave_places(settlement, job, order.spec)
            settlement.redefine(job)
        settlement.specify(job, order.spec)
        job.from_jobs = order.from_jobs
        job.cure_read = "" if order.cure is None else order.cure.read
    if job.stopping:  # its owner retries it before it is stopped
        settlement.let_go(job)
    end = order.first + order.count
    held = job.open.within(
        order.first, end
    )  # leased to this site before and still open: it continues under the new lease
    if held:
        _supersede(settlement, job, held)
    job.leases.append(site_state.SiteLease(order.lease, order.first, order.count, order.count))
    state.leases_open += 1
    if _forgive(job, order.first, end) and not job.grants:
        job.began = order.n
    kept = job.done.within(order.first, end)
    new = job.open.missing(order.first, end)
    settlement.open_up(job, order.first, end)
    if kept:
        has_outputs = bool(job.parts)
        for first, last in kept:
            settlement.done(job, first, last, outputs=has_outputs, usage=api.PayloadUsage())
        new = [piece for first, last in new for piece in job.open.within(first, last)]
    settlement.make_ready(job, [site_state.UndonePiece(first, last - first) for first, last in new])


def _forgive(job: site_state.SiteJob, first: int, end: int) -> bool:
    """A new lease of failed events is a new start for them: their owner retries them. Whether there were any."""
    failed = any(first <= event < end for event in job.failures)
    if job.failures:
        job.failures = {event: n for event, n in job.failures.items() if not first <= event < end}
    if job.far:
        job.far = {event: n for event, n in job.far.items() if not first <= event < end}
    job.fruitless = 0
    return failed


def _leave_places(settlement: Settlement, job: site_state.SiteJob, spec: JobSpec) -> None:
    """The job is about to get this specification. If its outputs go elsewhere then, what has arrived is to be removed
    where it is, and comes again there."""
    if not site_state.same_places(spec, job.spec):
        settlement.disown(job, job.parts)


def _supersede(settlement: Settlement, job: site_state.SiteJob, held: list[tuple[int, int]]) -> None:
    for first, end in held:
        settlement.settle(job, first, end)
    for first, end in held:
        settlement.open_up(job, first, end)


def _refuse(
    settlement: Settlement, order: api.LeaseOrder, message: str, *, fault: FaultKind = FaultKind.SITE
) -> None:
    """Return a lease. `fault`: whose it is; a job that is returned for its own fails in the end."""
    settlement.report(
        api.ReleaseReport(
            n=0,
            lease=order.lease,
            job=order.job,
            first=order.first,
            count=order.count,
            reason=message,
            evidence=Evidence(failure=FailureClass.DISPATCH, message=message, fault=fault.value),
        )
    )


def _cancel(settlement: Settlement, order: api.CancelOrder) -> None:
    job = settlement.state.jobs.get(order.job)
    if order.keep and job is not None:
        settlement.stop(job)
    else:
        _drop_all(settlement, order.job)


def _cancel_events(settlement: Settlement, order: api.CancelEventsOrder) -> None:
    try:
        events = IntervalSet.parse(order.events)
    except ValueError as error:
        raise ProtocolError(f"the server's order on events of job {order.job} is wrong: {error}") from error
    job = settlement.state.jobs.get(order.job)
    if job is not None:
        settlement.withdraw(job, events)


def _drop_all(settlement: Settlement, job_id: int) -> None:
    """Forget a job. Files that arrived of the parts that it still has are to be removed: those results do not count.
    What is delivered is not listed as arrived, and stays."""
    job = settlement.state.jobs.get(job_id)
    if job is not None:
        settlement.disown(job, job.parts)
        settlement.drop(job_id)
        if job.spec.inputs or _leaves_for_far(job.spec):
            settlement.state.forgotten.append(job_id)


def _leaves_for_far(spec: JobSpec) -> bool:
    """Whether outputs may wait in the stage to be moved to a remote place."""
    places = [spec.output_dir, *(output.url for output in spec.outputs or ())]
    return any("://" in (place or "") for place in places)


def _discard(settlement: Settlement, order: api.DiscardOrder) -> None:
    job = settlement.state.jobs.get(order.job)
    if job is None:
        return
    first, end = order.first, order.first + order.count
    job.done.remove(first, end)
    kept: list[site_state.KeptPart] = []
    gone: list[site_state.KeptPart] = []
    for part in job.parts:
        (kept if part.first >= end or part.first + part.count <= first else gone).append(part)
    for part in gone:
        job.done.remove(part.first, part.first + part.count)
        job.arrived.remove(part.first, part.first + part.count)
    job.parts = kept
    settlement.disown(job, gone)


def _deliver(settlement: Settlement, order: api.DeliverOrder) -> None:
    try:
        for text in (order.done, order.fresh or ""):
            IntervalSet.parse(text)
    except ValueError as error:
        raise ProtocolError(f"the server's order to deliver job {order.job} is wrong: {error}") from error
    settlement.drop_steps(order.job)
    settlement.state.deliveries[order.job] = order.done
    job = settlement.state.jobs.get(order.job)
    if job is not None:
        if order.output_dir is not None:
            spec = changed(job.spec, JobChanges(output_dir=order.output_dir))
            _leave_places(settlement, job, spec)
            settlement.specify(job, spec)
        job.terms = site_state.DeliveryTerms(fresh=order.fresh, merge=order.merge, delivery=order.delivery)


def _forget(settlement: Settlement, order: api.ForgetOrder) -> None:
    """The job has ended. To a site that was silent this comes before the order to discard its results."""
    _drop_all(settlement, order.job)


def _fetch(settlement: Settlement, order: api.FetchLogOrder) -> None:
    settlement.state.fetches.append(order)


def _drain(settlement: Settlement, order: api.DrainOrder) -> None:
    settlement.state.drained = order.reason if order.drain else None


_HANDLERS: dict[type, Callable[[Settlement, Any], None]] = {
    api.LeaseOrder: _lease,
    api.CancelOrder: _cancel,
    api.CancelEventsOrder: _cancel_events,
    api.DiscardOrder: _discard,
    api.DeliverOrder: _deliver,
    api.ForgetOrder: _forget,
    api.FetchLogOrder: _fetch,
    api.DrainOrder: _drain,
}
