"""What a site's reports change: every event is counted exactly once, whichever site reports it, however late or often.

The first commit wins; late results of a lost lease are welcome for undone events; a job with
outputs has one home site; what is refused is answered with a discard order. Works on a `UnitOfWork`; writes nothing
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tidemill import log
from tidemill.model.failure import Evidence, is_jobs_own
from tidemill.model.intervals import IntervalSet
from tidemill.server.audit import payload_times, traces
from tidemill.server.audit.activities import Reported
from tidemill.server.audit.core_use import Used
from tidemill.server.core import ending, matching
from tidemill.server.core.breakers import TIME_US_MAX
from tidemill.server.database import refusals
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
    usage_of,
)
from tidemill.server.database.unit_of_work import UnitOfWork, add
from tidemill.server.hospital import ward_stays
from tidemill.wire.activity import ActivityReport, RanReport
from tidemill.wire.api import (
    ARRIVED_TEXT_MAX,
    AllocationReport,
    ArrivedReport,
    DeliveredReport,
    DiscardOrder,
    DoneReport,
    FailureReport,
    LogReport,
    OutputRow,
    PayloadUsage,
    ReleaseReport,
    Report,
    TimesReport,
)

REFUSALS_MAX = 3
EVENTS_TEXT_MAX = 1_000  #: characters of a delivered file's events; a longer list stands in its manifest only
ARRIVED_MAX = 100  #: outputs of a job of which files have arrived

NODES_MAX = 10**9  #: nodes of an allocation, and cores of a node: more is nonsense, and sums of it overflow
USAGE_MAX = 2**56  #: of one figure of a report: 2,284 years in microseconds, 72 PB; more is nonsense
CLOCK_STEP_US = 600_000_000  #: by which the server's clock may have been set back while events were leased
_LOG = log.Log("server")


def apply(work: UnitOfWork, site: Site, reports: Sequence[Report]) -> None:
    """Apply reports in their order, then let every job that they touched end, wait or go on."""
    of_jobs = [
        report.job for report in reports if not isinstance(report, AllocationReport | LogReport | RanReport)
    ]
    work.load(of_jobs)
    work.load_leases(of_jobs)
    open_jobs: dict[int, None] = {}
    activities, used = Reported(), Used()
    for report in reports:
        match report:
            case DoneReport() | FailureReport() | ReleaseReport():
                _apply_lease(work, site, report)
                open_jobs[report.job] = None
            case DeliveredReport() | ArrivedReport():
                _in_place(work, site, report)
            case AllocationReport():
                bounded = _bounded(report, work.now_us)
                _allocation(work, site, bounded)
                traces.keep_allocation(work, site, bounded)
            case RanReport():
                used.add_report(work, site, report)
            case TimesReport():
                payload_times.store(work, site, report)
            case ActivityReport():
                activities.add_report(work, site, report)
            case LogReport():
                work.session.run(
                    "answer_log_request", id=report.request, site=site.id, found=int(report.found),
                    stdout=report.stdout.encode(), stderr=report.stderr.encode(),
                )  # fmt: skip
    activities.write(work)
    used.write(work, site)
    for job in [work.jobs[number] for number in open_jobs if number in work.jobs]:
        ending.settle(work, job)


def _apply_lease(work: UnitOfWork, site: Site, report: DoneReport | FailureReport | ReleaseReport) -> None:
    job = work.jobs.get(report.job)
    lease = work.leases[report.job].get(report.lease) if job is not None else None
    if job is None or lease is None or lease.site != site.id or not _inside(report, lease):
        work.complain(
            "report.refused", site=site.name, n=report.n, job=report.job, lease=report.lease, first=report.first,
            count=report.count,
        )  # fmt: skip
        if isinstance(report, DoneReport) and report.outputs and report.count > 0:
            _discard(work, site, job, report)
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


def _believable(
    work: UnitOfWork, report: DoneReport, site: Site, job: StoredJob, lease: StoredLease
) -> PayloadUsage:
    """The usage of a report, without figures that no machine can have used: all events of a job together were at work
    for no longer than since it began. Wall time is charged to its owner, so a site could keep her from all others for
    years. Sites send the usage of many pieces with the first of them, so the bound is of the job."""
    usage = report.usage
    figures = msgspec.structs.astuple(usage)
    if min(figures) < 0:  # else a site could give an owner's share of the machines back
        work.complain("usage.negative", site=site.name, job=report.job, lease=report.lease)
        return PayloadUsage()
    events = max(report.count, job.n_done + job.n_failed + job.n_leased)
    began_us = min(job.started_us or lease.leased_us, lease.leased_us)
    since_us = max(0, work.now_us - began_us) + CLOCK_STEP_US
    wall_us_max = max(0, events * since_us - usage_of(job.usage).wall_us)
    if max(figures) <= USAGE_MAX and usage.wall_us <= wall_us_max:
        return usage
    work.complain(
        "usage.clamped",
        site=site.name,
        job=report.job,
        lease=report.lease,
        max=USAGE_MAX,
        wall_us_max=wall_us_max,
    )
    fields = {key: min(each, USAGE_MAX) for key, each in msgspec.structs.asdict(usage).items()}
    return PayloadUsage(**fields | {"wall_us": min(fields["wall_us"], wall_us_max)})


def _done(work: UnitOfWork, site: Site, job: StoredJob, lease: StoredLease, report: DoneReport) -> None:
    if not report.outputs and work.singles.may_complete(job, lease):
        _use(work, site, job, lease, report)
        work.sums[work.campaign_of(job)].core_s -= lease.event_s * lease.cores
        ending.complete(work, job, lease)
        return
    work.touch(job)
    end = report.first + report.count
    if job.state > RUNNING or not _welcome(work, site, job, report):
        if report.outputs:
            _discard(work, site, job, report)
        if job.state <= RUNNING and not job.delivering and lease.state == ACTIVE:
            _return(work, job, lease, (report.first, end), "its result came too late")
        return
    kept = work.sets(job)
    # what was on its way when its event was canceled counts, unless what is done is on its way, too
    find = kept.undone if job.delivering else kept.wanting
    undone = (
        find(report.first, end) if job.n_done or job.n_failed or job.delivering else [(report.first, end)]
    )
    if report.outputs and undone:
        job.outputs = job.kept = 1
        if not job.home:
            _settle_down(work, site, job)
    if undone:
        _use(work, site, job, lease, report)
        job.refusals = 0
        for first, stop in undone:
            kept.done.add(first, stop)
            kept.canceled.remove(first, stop)
        _take_from_leases(work, job, lease, undone)
        work.keep_sets(job)
    elif report.outputs:
        _discard(work, site, job, report)


def _use(work: UnitOfWork, site: Site, job: StoredJob, lease: StoredLease, report: DoneReport) -> None:
    """Book what a result has cost. One that does not count is not booked: it is the same once more, or another won."""
    sums, usage = work.sums[work.campaign_of(job)], _believable(work, report, site, job, lease)
    add(sums.usage, usage)
    job.usage = add_usage(job.usage, usage)
    sums.core_s += usage.wall_us / 1e6 * lease.cores


def _discard(work: UnitOfWork, site: Site, job: StoredJob | None, report: DoneReport) -> None:
    """A result does not count: the site deletes its outputs. What it keeps of the job and is counted stays."""
    first, stop = report.first, report.first + report.count
    pieces = [(first, stop)]
    if job is not None and job.kept and job.place == site.id:
        pieces = work.sets(job).done.missing(first, stop)
    for at, until in pieces:
        work.order(site.id, DiscardOrder, job=report.job, first=at, count=until - at)


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
        ending.remove_events(work, job, lease, events)
    elif lease.state == LOST and kept.settled(lease.first, lease.end):
        work.end_lease(lease, SETTLED)
    if not any(kept.leased.touches(*piece) for piece in events):
        return
    for other in work.leases_of(job.id):
        if other.state == ACTIVE and other is not lease:
            for first, stop in ending.remove_events(work, job, other, events):
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
    if undone and not _rescued(work, job, lease, report, undone):
        for piece in undone:
            kept.failed.add(*piece)
        _take_from_leases(work, job, lease, undone)
        work.keep_sets(job)
        job.reason = clean(report.evidence.message)


def _rescued(
    work: UnitOfWork,
    job: StoredJob,
    lease: StoredLease,
    report: FailureReport,
    undone: list[tuple[int, int]],
) -> bool:
    """Whether these events run again in a ward of the hospital instead of entering the failed set."""
    if not work.memory.kinds[job.kind].home_site or lease.state != ACTIVE:
        return False
    held = sum(end - first for piece in undone for first, end in work.sets(job).leased.within(*piece))
    failed = ward_stays.FailedEvents(lease.site, str(report.evidence.failure), job.n_leased - held)
    if not ward_stays.rescue(work, job, failed, fits=matching.fits):
        return False
    _take_from_leases(work, job, lease, undone)
    work.keep_sets(job)
    return True


def _release(work: UnitOfWork, job: StoredJob, lease: StoredLease, report: ReleaseReport) -> None:
    if report.evidence is not None:
        where = ending.Where(lease.site, report.first, report.count)
        ending.record(work, job, report.evidence, where=where, final=False)
    if job.state > RUNNING or job.delivering or lease.state != ACTIVE:
        return
    _return(work, job, lease, (report.first, report.first + report.count), report.reason)
    if not job.n_leased and job.home and not job.kept and not job.ends:
        job.home, job.place, job.told = 0, job.berth, 0
    if report.evidence is not None:
        _refused(work, job, lease.site, report.evidence)


def _refused(work: UnitOfWork, job: StoredJob, site: int, evidence: Evidence) -> None:
    """A site returned events. A cause in the job fails it in the end; for a cause of the site's own it only waits."""
    is_own = is_jobs_own(evidence)
    work.given_back.add(job.id)
    job.told = 0  # the site may not know the job: its state can be older than what it was sent
    job.refused = refusals.noted(job.refused, site, own=is_own, now_us=work.now_us)
    if is_own:
        job.refusals += 1
        if job.refusals < REFUSALS_MAX:
            return
        failed = ward_stays.FailedEvents(site, str(evidence.failure), job.n_leased)
        if ward_stays.rescue(work, job, failed, fits=matching.fits):
            job.refusals = 0
            return
        text = f"returned {job.refusals} times with a failure, the last time: {evidence.message}"
        ending.fail(work, job, text)


def _return(work: UnitOfWork, job: StoredJob, lease: StoredLease, span: tuple[int, int], reason: str) -> None:
    """What an active lease holds of these events is free again."""
    held = ending.remove_events(work, job, lease, [span], emptied=(RELEASED, clean(reason)))
    work.keep_sets(job)
    if lease.state == ACTIVE:
        work.returned(lease).add_all(IntervalSet(held))
        work.change_lease(lease)


def _in_place(work: UnitOfWork, site: Site, report: DeliveredReport | ArrivedReport) -> None:
    if isinstance(report, DeliveredReport):
        _delivered(work, site, report)
    else:
        _arrived(work, site, report)


def _delivered(work: UnitOfWork, site: Site, report: DeliveredReport) -> None:
    job = work.jobs.get(report.job)
    if job is None or job.place != site.id or not job.home or not (job.delivering or _is_late(job, report)):
        work.complain("report.refused", site=site.name, n=report.n, job=report.job)
        return
    was_awaited = bool(job.delivering)
    if report.evidence is not None and report.lost:
        _lost(work, job, report.evidence, report.lost)
        return
    if report.evidence is not None:
        text = f"outputs could not be delivered: {report.evidence.message}"
        ending.fail(work, job, text, evidence=report.evidence, keep_files=True)
        return
    _keep_rows(work, job, report)
    due = ending.undelivered(work, job)
    told = IntervalSet.parse(report.done) if report.done else due
    done = IntervalSet(piece for span in told for piece in due.within(*span))
    if report.held:
        job.sent = _joined(job.sent, done)
    else:
        job.delivered = _joined(job.delivered, done)
        job.sent = str(ending.without(IntervalSet.parse(job.sent), str(done)))
    job.kept = int(bool(ending.undelivered(work, job)))
    job.delivering = 0
    work.touch(job)
    if job.state > RUNNING:
        return
    if not (job.ends and was_awaited):
        ending.settle(work, job)
    elif not report.held and ending.is_settled(job) and job.n_failed <= work.spec(job).failed_max:
        ending.finish(work, job)
    else:
        ending.end(work, job, job.ends)


def _is_late(job: StoredJob, report: DeliveredReport) -> bool:
    """Whether it reports a delivery that is no longer awaited: the owner has meanwhile ended the job, or retried it.
    The files are where they should be, and the site may have deleted its own."""
    return bool(report.evidence is None and job.kept and (job.state > RUNNING or report.done))


def _joined(events: str, more: IntervalSet) -> str:
    joined = IntervalSet.parse(events)
    joined.add_all(more)
    return str(joined)


def _keep_rows(work: UnitOfWork, job: StoredJob, report: DeliveredReport) -> None:
    if not report.outputs:
        return
    ending.drop_arrived(work, job)
    rows = _rows(work, job, report.outputs, job.deliveries * ending.OUTPUTS_PER_DELIVERY, EVENTS_TEXT_MAX)
    work.change_rows["insert_outputs"] += rows
    job.deliveries += 1


def _rows(
    work: UnitOfWork, job: StoredJob, outputs: list[OutputRow], first: int, events_max: int
) -> list[tuple[Any, ...]]:
    campaign = work.campaign_of(job)
    return [
        (
            job.id,
            number,
            campaign,
            clean(each.name),
            clean(each.url, 10_000),
            each.size_bytes,
            clean(each.sha256),
            _listed(job, each.events) if len(each.events) <= events_max else "",
        )
        for number, each in enumerate(outputs, first)
    ]


def _listed(job: StoredJob, events: str) -> str:
    """The events of an output as its site names them, without what the job does not have; empty = it names none."""
    try:
        return str(IntervalSet(IntervalSet.parse(events).within(0, job.events)))
    except ValueError:
        return ""


def _arrived(work: UnitOfWork, site: Site, report: ArrivedReport) -> None:
    """Show what has arrived of a job that goes on. It changes nothing else: the job's delivery is still to come."""
    job = work.jobs.get(report.job)
    if job is None or job.state > RUNNING or job.place != site.id or not job.kept or job.delivering:
        return  # it has its delivery, or another home
    outputs = [msgspec.structs.replace(each, sha256="") for each in report.outputs[:ARRIVED_MAX]]
    try:  # clients count them
        for each in outputs:
            IntervalSet.parse(each.events)
    except ValueError:
        work.complain("report.refused", site=site.name, n=report.n, job=report.job)
        return
    for row in _rows(work, job, outputs, ending.arrived_from(job), ARRIVED_TEXT_MAX):
        of, number, *_ = row
        work.upserts["upsert_arrived"][of, number] = row


def _lost(work: UnitOfWork, job: StoredJob, evidence: Evidence, lost: str) -> None:
    """The site keeps nothing of events that were done: they are to run again, or are missing in what is delivered."""
    ending.record(work, job, evidence, where=ending.Where(job.site), final=False)
    kept, due = work.sets(job), ending.undelivered(work, job)
    told = IntervalSet.parse(lost)
    kept.done.remove_all(IntervalSet(piece for span in told for piece in due.within(*span)))
    work.keep_sets(job)
    job.kept = int(bool(ending.undelivered(work, job)))
    job.delivering = 0
    job.refusals += 1
    if job.refusals >= REFUSALS_MAX and not job.ends:
        text = f"outputs were lost {job.refusals} times, the last time: {evidence.message}"
        ending.fail(work, job, text)
    else:
        ending.settle(work, job)


def _bounded(report: AllocationReport, now_us: int) -> AllocationReport:
    """The report with numbers that can be added up, and not from later than now: a site whose clock was ahead for an
    hour would otherwise hide its later allocations behind those of that hour."""

    def between(value: int, most: int) -> int:
        return max(0, min(value, most))

    return msgspec.structs.replace(
        report, nodes=between(report.nodes, NODES_MAX), cores=between(report.cores, NODES_MAX),
        at_us=between(report.at_us, now_us), busy_us=between(report.busy_us, USAGE_MAX),
        slot_us=between(report.slot_us, USAGE_MAX), started_us=between(report.started_us, TIME_US_MAX),
        ended_us=between(report.ended_us, TIME_US_MAX), held_cores=between(report.held_cores, NODES_MAX),
        held_gpus=between(report.held_gpus, NODES_MAX),
    )  # fmt: skip


def _allocation(work: UnitOfWork, site: Site, report: AllocationReport) -> None:
    name = clean(report.name)
    work.upserts["upsert_allocations"][site.id, name] = (
        site.id, name, clean(report.batch_id), clean(report.state), report.nodes, report.cores,
        report.at_us, clean(report.reason), report.busy_us, report.slot_us,
    )  # fmt: skip
