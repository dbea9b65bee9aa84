"""What a site's reports change: every event is counted exactly once, whoever reports it, however late or often.

Rules 1 and 2 of the plan: the first commit wins; late results of a lost lease are welcome for undone events; a job with
outputs has one home site; what is refused is answered with a discard order. Works on a `UnitOfWork`; writes nothing
itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill import log
from tidemill.model.failure import FailureClass
from tidemill.model.intervals import IntervalSet
from tidemill.server.audit import traces
from tidemill.server.core import ending
from tidemill.server.database.rows import (
    ACTIVE,
    LOST,
    RELEASED,
    RUNNING,
    SETTLED,
    Site,
    StoredJob,
    StoredLease,
    add_usage,
    clean,
)
from tidemill.server.database.unit_of_work import UnitOfWork, add
from tidemill.wire.api import (
    AllocationReport,
    DeliveredReport,
    DiscardOrder,
    DoneReport,
    FailureReport,
    LogReport,
    PayloadUsage,
    RanReport,
    ReleaseReport,
    Report,
)

REFUSALS_MAX = 3
FAULTLESS = frozenset({FailureClass.BATCH, FailureClass.PREEMPTED, FailureClass.NODE, FailureClass.LOST})
USAGE_MAX = 2**56  #: of one figure of a report: 2,284 years in microseconds, 72 PB; more is nonsense
_LOG = log.Log("server")


def apply(work: UnitOfWork, site: Site, reports: Sequence[Report]) -> None:
    """Apply reports in their order, then let every job that they touched end, wait or go on."""
    of_jobs = [
        report.job for report in reports if not isinstance(report, AllocationReport | LogReport | RanReport)
    ]
    work.load(of_jobs)
    work.load_leases(of_jobs)
    open_jobs: dict[int, None] = {}
    for report in reports:
        match report:
            case DoneReport() | FailureReport() | ReleaseReport():
                _apply_lease(work, site, report)
                open_jobs[report.job] = None
            case DeliveredReport():
                _delivered(work, site, report)
            case AllocationReport():
                _allocation(work, site, report)
                traces.keep_allocation(work, site, report)
            case RanReport():
                traces.keep_ran(work, site, report)
            case LogReport():
                work.session.run(
                    "answer_log_request", id=report.request, site=site.id, found=int(report.found),
                    stdout=report.stdout.encode(), stderr=report.stderr.encode(),
                )  # fmt: skip
    for number in open_jobs:
        job = work.jobs.get(number)
        if job is not None:
            ending.settle(work, job)


def _apply_lease(work: UnitOfWork, site: Site, report: DoneReport | FailureReport | ReleaseReport) -> None:
    job = work.jobs.get(report.job)
    lease = work.leases[report.job].get(report.lease) if job is not None else None
    if job is None or lease is None or lease.site != site.id or not _inside(report, lease):
        _LOG.warning(
            "report.refused", site=site.name, n=report.n, job=report.job, lease=report.lease, first=report.first,
            count=report.count,
        )  # fmt: skip
        if isinstance(report, DoneReport) and report.outputs and report.count > 0:
            work.order(site.id, DiscardOrder, job=report.job, first=report.first, count=report.count)
        return
    match report:
        case DoneReport():
            _done(work, site, job, lease, report)
        case FailureReport():
            _failure(work, job, lease, report)
        case ReleaseReport():
            _release(work, job, lease, report)


def _inside(report: DoneReport | FailureReport | ReleaseReport, lease: StoredLease) -> bool:
    return report.count >= 1 and lease.first <= report.first and report.first + report.count <= lease.end


def _believable(report: DoneReport, site: Site) -> PayloadUsage:
    """The usage of a report, without figures that no machine can have used."""
    usage = report.usage
    figures = msgspec.structs.astuple(usage)
    if min(figures) < 0:  # else a site could give an owner's share of the machines back
        _LOG.warning("usage.negative", site=site.name, job=report.job, lease=report.lease)
        return PayloadUsage()
    if max(figures) > USAGE_MAX:
        _LOG.warning("usage.clamped", site=site.name, job=report.job, lease=report.lease, max=USAGE_MAX)
        fields = msgspec.structs.asdict(usage)
        return PayloadUsage(**{key: min(each, USAGE_MAX) for key, each in fields.items()})
    return usage


def _done(work: UnitOfWork, site: Site, job: StoredJob, lease: StoredLease, report: DoneReport) -> None:
    sums = work.sums[work.memory.kinds[job.kind].campaign]
    usage = _believable(report, site)
    add(sums.usage, usage)
    job.usage = add_usage(job.usage, usage)
    sums.core_s += usage.wall_us / 1e6 * lease.cores
    if (
        job.events == 1
        and job.n_leased == 1
        and lease.state == ACTIVE
        and not (report.outputs or work.parsed(job))
    ):
        sums.core_s -= lease.event_s * lease.cores
        ending.complete(work, job, lease)
        return
    work.touch(job)
    end = report.first + report.count
    if job.state > RUNNING or not _welcome(work, site, job, report):
        if report.outputs:
            work.order(site.id, DiscardOrder, job=job.id, first=report.first, count=report.count)
        if job.state <= RUNNING and not job.delivering and lease.state == ACTIVE:
            _return(work, job, lease, (report.first, end), "its result came too late")
        return
    kept = work.sets(job)
    undone = [(report.first, end)] if not job.n_done and not job.n_failed else kept.undone(report.first, end)
    if report.outputs:
        job.outputs = 1
        if not job.home and undone:
            _settle_down(work, site, job)
    if undone:
        job.refusals = 0
        for first, stop in undone:
            kept.done.add(first, stop)
        _take_from_leases(work, job, lease, undone)
        work.keep_sets(job)


def _settle_down(work: UnitOfWork, site: Site, job: StoredJob) -> None:
    """The job has its home here from now on: what other sites hold of it is taken back."""
    job.home, job.place, job.site = 1, site.id, site.id
    for other in work.leases_of(job.id):
        if other.state == ACTIVE and other.site != site.id:
            ending.give_back(work, job, other, "the job's outputs are at another site")
            work.order(other.site, DiscardOrder, job=job.id, first=other.first, count=other.count)


def _welcome(work: UnitOfWork, site: Site, job: StoredJob, report: DoneReport) -> bool:
    """Whether a result may count: with outputs it must come from the job's home; without a home, overlap nothing."""
    if not report.outputs:
        return not (job.home and job.outputs and job.place != site.id)
    if job.home:
        return job.place == site.id
    kept = work.sets(job)
    end = report.first + report.count
    return not kept.done.touches(report.first, end) and not kept.failed.touches(report.first, end)


def _take_from_leases(
    work: UnitOfWork, job: StoredJob, lease: StoredLease, events: Sequence[tuple[int, int]]
) -> None:
    """These events are done or failed: no lease holds them any more. Other sites that held them get an order."""
    kept = work.sets(job)
    if lease.state == ACTIVE:
        ending.take(work, job, lease, events)
    elif lease.state == LOST and not kept.undone(lease.first, lease.end):
        work.end_lease(lease, SETTLED)
    if not any(kept.leased.touches(*piece) for piece in events):
        return
    for other in work.leases_of(job.id):
        if other.state == ACTIVE and other is not lease:
            for first, stop in ending.take(work, job, other, events):
                if other.site != lease.site:
                    work.order(other.site, DiscardOrder, job=job.id, first=first, count=stop - first)


def _failure(work: UnitOfWork, job: StoredJob, lease: StoredLease, report: FailureReport) -> None:
    span = (report.event, 1) if report.event is not None else (report.first, report.count)
    where = ending.Where(lease.site, *span)
    ending.record(work, job, report.evidence, where=where, final=report.final)
    if not report.final or job.state > RUNNING or job.delivering:
        return
    kept = work.sets(job)
    undone = kept.undone(report.first, report.first + report.count)
    if undone:
        for piece in undone:
            kept.failed.add(*piece)
        _take_from_leases(work, job, lease, undone)
        work.keep_sets(job)
        job.reason = clean(report.evidence.message)


def _release(work: UnitOfWork, job: StoredJob, lease: StoredLease, report: ReleaseReport) -> None:
    if report.evidence is not None:
        where = ending.Where(lease.site, report.first, report.count)
        ending.record(work, job, report.evidence, where=where, final=False)
    if job.state > RUNNING or job.delivering or lease.state != ACTIVE:
        return
    _return(work, job, lease, (report.first, report.first + report.count), report.reason)
    if not job.n_leased and job.home and not job.n_done:
        job.home, job.place, job.told = 0, job.pin, 0
    if report.evidence is not None and report.evidence.failure not in FAULTLESS:
        job.refusals += 1
        refused = dict.fromkeys([*job.refused.split(), str(lease.site)])
        job.refused = " ".join(refused)
        if job.refusals >= REFUSALS_MAX:
            text = f"given back {job.refusals} times with a failure, the last time: {report.evidence.message}"
            ending.fail(work, job, text)


def _return(work: UnitOfWork, job: StoredJob, lease: StoredLease, span: tuple[int, int], reason: str) -> None:
    """What an active lease holds of these events is free again."""
    held = ending.take(work, job, lease, [span], emptied=(RELEASED, clean(reason)))
    work.keep_sets(job)
    if lease.state == ACTIVE:
        lease.part = str(IntervalSet([*IntervalSet.parse(lease.part), *held]))
        work.change_lease(lease)


def _delivered(work: UnitOfWork, site: Site, report: DeliveredReport) -> None:
    job = work.jobs.get(report.job)
    if job is None or not job.delivering or job.place != site.id:
        _LOG.warning("report.refused", site=site.name, n=report.n, job=report.job)
        return
    if report.evidence is not None:
        text = f"outputs could not be delivered: {report.evidence.message}"
        ending.fail(work, job, text, evidence=report.evidence, keep_files=True)
        return
    campaign = work.campaign_of(job)
    work.change_rows["insert_outputs"] += [
        (
            job.id,
            number,
            campaign,
            clean(each.name),
            clean(each.url, 10_000),
            each.size_bytes,
            clean(each.sha256),
        )
        for number, each in enumerate(report.outputs)
    ]
    ending.finish(work, job)


def _allocation(work: UnitOfWork, site: Site, report: AllocationReport) -> None:
    name = clean(report.name)
    work.upserts["upsert_allocations"][site.id, name] = (
        site.id, name, clean(report.batch_id), clean(report.state), report.nodes, report.cores,
        report.at_us, clean(report.reason), report.busy_us, report.slot_us,
    )  # fmt: skip
