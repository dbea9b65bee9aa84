"""When payloads of timed jobs ran: kept as sites report it, read by stress tests (`GET /v1/jobs/ID/times`)."""

from __future__ import annotations

import msgspec

from tidemill.server.database.rows import Site, clean
from tidemill.server.database.store import Session, value
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.wire.api import PayloadTime, TimesPage, TimesReport

TIMES_KEPT_MAX = 500_000  #: of one job
ROWS_MAX = 50  #: reports in one answer
LATEST_MAX = 5_000  #: times that a page shows, and reports that it reads
_ENCODER = msgspec.json.Encoder()
_TIMES = msgspec.json.Decoder(list[PayloadTime])


def store(work: UnitOfWork, site: Site, report: TimesReport) -> None:
    """Keep a report on a timed job that the site has or had a lease of; any other is dropped and logged."""
    job = work.jobs.get(report.job)
    is_sites = job is not None and any(each.site == site.id for each in work.leases_of(report.job))
    if job is None or not is_sites or work.spec(job).timed is not True:
        work.complain("times.refused", site=site.name, n=report.n, job=report.job)
        return
    waiting = sum(count for of, _, _, count, _ in work.change_rows["insert_payload_times"] if of == job.id)
    kept = int(value(work.session, "payload_times_count", job=job.id)) + waiting
    times = [
        msgspec.structs.replace(each, node=clean(each.node, 256), failure=clean(each.failure, 40))
        for each in report.times[: max(0, TIMES_KEPT_MAX - kept)]
    ]
    if times:
        row = (job.id, site.id, work.now_us, len(times), _ENCODER.encode(times))
        work.change_rows["insert_payload_times"].append(row)


def page(session: Session, job: int, *, after: int) -> TimesPage:
    """Times that arrived after the place `after` (0 = all)."""
    rows = session.rows("payload_times_of", job=job, after=after, limit=ROWS_MAX)
    names: dict[int, str] = dict(session.rows("site_names")) if rows else {}
    times = [
        msgspec.structs.replace(each, site=names.get(site, ""))
        for _, site, body in rows
        for each in _TIMES.decode(body)
    ]
    full = int(value(session, "payload_times_count", job=job)) >= TIMES_KEPT_MAX
    return TimesPage(times=times, next=rows[-1].id if rows else after, full=full)


def latest(session: Session, job: int) -> list[PayloadTime]:
    """The times that arrived last, LATEST_MAX or a few more, by their ends."""
    found: list[PayloadTime] = []
    for (body,) in session.rows("payload_times_latest", job=job, limit=LATEST_MAX):
        found += _TIMES.decode(body)
        if len(found) >= LATEST_MAX:
            break
    return sorted(found, key=lambda each: each.ended_us)


def prune(work: UnitOfWork, before_us: int) -> None:
    """Forget what is from before that time."""
    work.session.run("prune_payload_times", before=before_us)
