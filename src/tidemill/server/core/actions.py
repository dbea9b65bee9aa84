"""What owners and operators do to jobs: cancel, retry, ask for a payload's output. Works on a `Work`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.model.intervals import IntervalSet
from tidemill.server.core import ending, submission, sync
from tidemill.server.database.rows import CANCELED, FAILED, PARTIAL, RUNNING, WAITING, Job, clean
from tidemill.server.database.work import Work
from tidemill.wire.api import DeliverOrder, DrainOrder, DrainRequest, FetchLogOrder

PIECE = 5_000  #: jobs per transaction, so that a large campaign does not hold up everybody else
LOG_REQUESTS_KEPT = 1_000
CANCELABLE = (WAITING, RUNNING)
RETRIABLE = (PARTIAL, FAILED, CANCELED)


def members(work: Work, campaign: int, states: Iterable[int], after: int) -> list[int]:
    """The next jobs of a campaign in these states, by id, at most PIECE."""
    kinds = {kind.id for kind in work.memory.kinds.values() if kind.campaign == campaign}
    wanted = set(states)
    found: list[int] = []
    for kind, state, site, _ in work.session.rows("counts"):
        if kind in kinds and state in wanted:
            rows = work.session.rows(
                "jobs_after_in", kind=kind, state=state, site=site, after=after, limit=PIECE
            )
            found += [row[0] for row in rows]
    return sorted(found)[:PIECE]


def cancel(work: Work, jobs: Sequence[int], reason: str, *, half_life_s: float) -> int:
    """Cancel jobs that have not ended; how many that were."""
    work.load(jobs)
    work.load_leases(jobs)
    changed = 0
    for number in dict.fromkeys(jobs):
        job = work.jobs.get(number)
        if job is not None and job.state in CANCELABLE:
            ending.cancel(work, job, clean(reason) or "canceled by its owner")
            changed += 1
    _finish(work, half_life_s)
    return changed


def retry(work: Work, jobs: Sequence[int], *, half_life_s: float) -> int:
    """Let jobs that ended without success run again; how many that were.

    Done events stay done, unless outputs were kept for them: these are delivered or gone, so the job starts again. A
    job of which only the delivery failed is delivered again.
    """
    work.load(jobs)
    changed = 0
    for number in dict.fromkeys(jobs):
        job = work.jobs.get(number)
        if job is not None and job.state in RETRIABLE and _again(work, job):
            changed += 1
    _finish(work, half_life_s)
    return changed


def _again(work: Work, job: Job) -> bool:
    spec = work.spec(job)
    waits, why = submission.resolve_after(work, spec, index=0, upto=job.id - 1)
    if why:
        return False
    kept = work.sets(job)
    delivery = job.state == FAILED and job.home and job.outputs and job.n_done + job.n_failed == job.events
    job.reason, job.ended_us, job.refusals, job.refused = "", None, 0, ""
    if delivery and job.n_failed <= spec.failed_max:
        work.enter(job, RUNNING)
        job.delivering = 1
        work.order(job.place, DeliverOrder, job=job.id, done=str(kept.done))
        work.touch(job)
        return True
    kept.failed = IntervalSet()
    if job.outputs:
        kept.done = IntervalSet()
        work.change_rows["delete_outputs"].append((job.id,))
    job.home = job.outputs = job.told = 0
    job.place = job.pin
    work.keep_sets(job)
    job.blocked = len(waits)
    if waits:
        work.change_rows["insert_deps"] += [(job.id, *each) for each in waits]
        work.memory.waited_for = True
    if job.n_done == job.events:
        ending.finish(work, job)
    else:
        ending.open_again(work, job)
    if job.state == RUNNING:  # nothing of it is leased now
        job.ready = 0 if job.blocked else 1
    return True


def drain(work: Work, name: str, request: DrainRequest) -> bool | None:
    """Drain or resume a site, and order it so; whether that changed anything, None if no such site has joined."""
    site = work.memory.sites.get(work.memory.site_ids.get(name, 0))
    if site is None or not site.epoch:
        return None
    reason = (clean(request.reason) or "drained at the server") if request.drain else ""
    if (bool(site.drained), site.drain_reason) == (request.drain, reason):
        return False
    site.drained, site.drain_reason = int(request.drain), reason
    work.session.run("update_drain", id=site.id, drained=site.drained, reason=reason)
    work.order(site.id, DrainOrder, drain=request.drain, reason=reason)
    work.flush()
    sync.keep_sites(work)
    return True


def _finish(work: Work, half_life_s: float) -> None:
    ending.pass_on(work)
    sync.charge(work, half_life_s)
    work.flush()
    sync.keep_sites(work)


def ask_log(work: Work, number: int, event: int | None) -> int | None:
    """Ask the site that last had a job (or this event) for the output; the request's number, None if no site had it."""
    work.load([number])
    job = work.jobs[number]
    leases = [lease for lease in work.leases_of(number) if event is None or lease.first <= event < lease.end]
    if not leases:
        return None
    site = leases[-1].site
    request = int(work.session.rows("insert_log_request", job=job.id, event=event, site=site)[0][0])
    work.session.run("prune_log_requests", before=request - LOG_REQUESTS_KEPT)
    work.order(site, FetchLogOrder, request=request, job=job.id, event=event)
    work.flush()
    sync.keep_sites(work)
    return request
