"""How jobs end, and what follows from it: orders to sites, and the jobs that come after them.

Every end of a job goes through `end`, whichever way it came. Works on a `UnitOfWork`; writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Deliver
from tidemill.model.quantities import counted_text
from tidemill.server.database.rows import (
    ACTIVE,
    CANCELED,
    COMPLETED,
    FAILED,
    LOST,
    PARTIAL,
    RELEASED,
    RUNNING,
    SETTLED,
    WAITING,
    StoredJob,
    StoredLease,
    clean,
)
from tidemill.server.database.store import values
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.hospital import ward_stays
from tidemill.wire.api import CancelOrder, DeliverOrder, ForgetOrder

EVIDENCE_JOB_MAX = 1_000  #: failures kept per job; more are only counted
OUTPUTS_PER_DELIVERY = 1 << 20
"""More than a request may hold: files of a job are numbered in order of delivery. In the upper half of the numbers of
the delivery that is to come: what arrived before it."""


def settle(work: UnitOfWork, job: StoredJob) -> None:
    """Give a job the state that its counts of events call for; call it after every change of its sets."""
    if job.state > RUNNING or job.delivering:
        return
    if job.ends:
        if not job.n_leased:
            _conclude(work, job)
    elif job.n_failed and job.n_failed > work.spec(job).failed_max:
        fail(work, job, _too_many_text(job, work.spec(job).failed_max))
    elif job.n_canceled == job.events:
        job.reason = job.reason or "all of its events were canceled by their owner"
        end(work, job, CANCELED)
    elif is_settled(job):
        work.enter(job, RUNNING)  # it waits where late results of a lease that is over are its first
        if undelivered(work, job):
            deliver(work, job, complete=True)
        else:
            finish(work, job)
    else:
        open_again(work, job)


def is_settled(job: StoredJob) -> bool:
    """Whether every event is done, failed or canceled."""
    return not job.n_left


def open_again(work: UnitOfWork, job: StoredJob) -> None:
    """WAITING or RUNNING, and ready to be leased if it has free events."""
    work.enter(job, RUNNING if job.n_done or job.n_failed or job.n_leased else WAITING)
    free = job.n_left - job.n_leased
    was_ready, job.ready = job.ready, 1 if free and not job.blocked else 0
    if job.ready and not was_ready and job.id not in work.given_back:  # one that a site refused waits on
        job.waits_us = work.now_us
    if job.ready and job.place < 0:
        work.memory.occupy(job.kind, -job.place)
    work.touch(job)


def finish(work: UnitOfWork, job: StoredJob) -> None:
    """Every event is kept or failed, and outputs are delivered."""
    said = [_failed_text(job)] if job.n_failed else []
    if job.n_canceled:
        said.append(f"{counted_text(job.n_canceled, 'event')} canceled by the owner")
    job.reason = ", ".join(said)
    end(work, job, PARTIAL if job.n_failed else COMPLETED)


def fail(
    work: UnitOfWork,
    job: StoredJob,
    reason: str,
    *,
    evidence: Evidence | None = None,
    keep_files: bool = False,
) -> None:
    """End a job that cannot go on. `keep_files`: its outputs stay at the site, so that delivery can be tried again."""
    if evidence is not None:
        record(work, job, evidence, where=Where(job.site), final=True)
    if keep_files:
        state = job.ends if job.ends == CANCELED else FAILED
        job.reason = clean(f"{job.reason}; {reason}" if job.ends == CANCELED else reason)
        end(work, job, state)
    elif not job.ends:
        job.reason = clean(reason)
        _wind_up(work, job, FAILED)


def cancel(work: UnitOfWork, job: StoredJob, reason: str, *, unneeded: bool = False) -> None:
    """End a job because its owner wants so. A second time, it ends at once: what is kept of it stays at its site.
    `unneeded`: nothing is missing where no event of it has ended, so it is COMPLETED then."""
    is_repeated = bool(job.ends)
    job.reason = clean(reason)
    if unneeded and not (is_repeated or job.n_done or job.n_failed):
        job.kept = 0
        _stop(work, job)
        end(work, job, COMPLETED)
    elif is_repeated:
        _stop(work, job)
        end(work, job, CANCELED)
    else:
        _wind_up(work, job, CANCELED)


def end(work: UnitOfWork, job: StoredJob, state: int) -> None:
    """Put a job into a final state. Sites forget it unless they keep outputs of it; `pass_on` frees or fails the
    jobs that come after it."""
    work.enter(job, state)
    job.ended_us = work.now_us
    job.ready = job.delivering = job.told = job.ends = 0
    if job.ward:
        ward_stays.ended(work, job)
    if not job.kept:
        _forget(work, job)
    work.touch(job)
    work.ended.append(job.id)


# ---- what is done is delivered before a job ends -----------------------------------------------------------------


def undelivered(work: UnitOfWork, job: StoredJob) -> IntervalSet:
    """The done events whose outputs lie at the job's home and are not all delivered."""
    return without(work.sets(job).done, job.delivered) if job.kept else IntervalSet()


def without(events: IntervalSet, taken: str) -> IntervalSet:
    """The events but for those of an interval text."""
    left = events.copy()
    left.remove_all(IntervalSet.parse(taken))
    return left


def arrived_from(job: StoredJob) -> int:
    """Number of the first output of which files have arrived while the job goes on."""
    return job.deliveries * OUTPUTS_PER_DELIVERY + OUTPUTS_PER_DELIVERY // 2


def drop_arrived(work: UnitOfWork, job: StoredJob) -> None:
    """What has arrived is delivered now, or lost with the job's home."""
    if job.events > 1:
        first = arrived_from(job)
        work.change_rows["delete_arrived"].append((job.id, first, first + OUTPUTS_PER_DELIVERY // 2))


def is_kept_well(work: UnitOfWork, job: StoredJob) -> bool:
    """Whether the job's home is there, and keeps what is done when a job is stopped."""
    site = work.memory.sites.get(job.place) if job.home else None
    return site is not None and not site.lost and site.capacity is not None


def deliver(work: UnitOfWork, job: StoredJob, *, complete: bool) -> None:
    """Order the delivery of what is done and not delivered. `complete`: merge steps are run for it, too."""
    due = undelivered(work, job)
    fresh = str(without(due, job.sent)) if job.sent else None
    job.delivering, job.ready = 1, 0
    work.order(
        job.place, DeliverOrder, job=job.id, done=str(due), fresh=fresh, merge=complete,
        delivery=job.deliveries + 1, output_dir=None if job.told else work.spec(job).output_dir,
    )  # fmt: skip
    work.touch(job)


def _wind_up(work: UnitOfWork, job: StoredJob, state: int) -> None:
    """Stop a job. Where its home may have finished outputs of it, it ends in `state` once these are delivered."""
    if not (is_kept_well(work, job) and (job.kept or job.n_leased)):
        job.kept = 0
        _stop(work, job)
        end(work, job, state)
        return
    job.ends, job.ready = state, 0
    elsewhere: set[int] = set()
    for lease in work.leases_of(job.id):
        if lease.site != job.place and lease.state in (ACTIVE, LOST):
            elsewhere.add(lease.site)
            if lease.state == ACTIVE:
                give_back(work, job, lease, "the job has ended")
    for site in sorted(elsewhere):
        work.order(site, CancelOrder, job=job.id, reason=job.reason)
    work.order(job.place, CancelOrder, job=job.id, reason=job.reason, keep=True)
    if job.delivering:  # without the steps that may take long
        deliver(work, job, complete=False)
    elif not job.n_leased:
        _conclude(work, job)
    work.touch(job)


def _conclude(work: UnitOfWork, job: StoredJob) -> None:
    """Nothing runs any more of a job that is to end: deliver what is done, or end it."""
    spec = work.spec(job)
    if is_settled(job) and job.n_failed <= spec.failed_max:
        job.ends, job.reason = 0, ""
        settle(work, job)
    elif spec.deliver is not Deliver.COMPLETE and without(undelivered(work, job), job.sent):
        deliver(work, job, complete=False)
    else:
        end(work, job, job.ends)


def complete(work: UnitOfWork, job: StoredJob, lease: StoredLease) -> None:
    """The only event of a job is done, and it keeps no outputs: by far the most frequent end. The long way, by `settle`
    and `finish`, comes to the same."""
    work.enter(job, COMPLETED)
    work.singles.complete(job, lease, work.now_us)
    if job.ward:
        ward_stays.ended(work, job)
    _forget(work, job)
    work.ended.append(job.id)


def _forget(work: UnitOfWork, job: StoredJob) -> None:
    if job.attempts == 1:
        work.order(job.site, ForgetOrder, job=job.id)
    elif job.attempts:
        for site in sorted({lease.site for lease in work.leases_of(job.id)}):
            work.order(site, ForgetOrder, job=job.id)


def _stop(work: UnitOfWork, job: StoredJob) -> None:
    """Cancel a job at every site that may still run it. Its home keeps what is `kept`."""
    if not job.attempts:
        return
    sites = {job.place} if job.home else set()
    for lease in work.leases_of(job.id):
        if lease.state in (ACTIVE, LOST):
            sites.add(lease.site)
        if lease.state == ACTIVE:
            give_back(work, job, lease, "the job has ended")
    for site in sorted(sites):
        keep = bool(job.kept) and site == job.place
        work.order(site, CancelOrder, job=job.id, reason=job.reason, keep=keep)
    sets = work.sets(job)
    sets.leased = IntervalSet()
    work.keep_sets(job)


def remove_events(
    work: UnitOfWork,
    job: StoredJob,
    lease: StoredLease,
    events: Iterable[tuple[int, int]],
    *,
    emptied: tuple[int, str] = (SETTLED, ""),
) -> list[tuple[int, int]]:
    """Take events away from an active lease; which of them it held. The campaign is no longer charged for them.
    `emptied`: state and reason of a lease that holds nothing any more.

    Active leases of a job hold no event together. What else a lease holds costs nothing here: a site with 100,000
    payloads may leave as many gaps in one lease, and reports each event alone."""
    leased, returned = work.sets(job).leased, work.returned(lease)
    spans = [(max(first, lease.first), min(end, lease.end)) for first, end in events]
    held = [piece for span in spans for piece in leased.within(*span)]
    if returned:  # another lease may hold those now
        spans = held = [own for piece in held for own in returned.missing(*piece)]
    count = leased.remove_all(IntervalSet(spans))
    work.sums[work.campaign_of(job)].core_s -= count * lease.event_s * lease.cores
    if not leased.exceeds(returned, lease.first, lease.end):
        work.end_lease(lease, *emptied)
    return held


def give_back(
    work: UnitOfWork, job: StoredJob, lease: StoredLease, reason: str, *, state: int = RELEASED
) -> None:
    """End a lease: what it held is free again."""
    remove_events(work, job, lease, [(lease.first, lease.end)], emptied=(state, clean(reason)))
    work.keep_sets(job)


class Where(NamedTuple):
    """What failed where: events (0 of them: the job as a whole) and the number of the site."""

    site: int
    first: int = 0
    events: int = 0


def _failed_text(job: StoredJob) -> str:
    return f"{counted_text(job.n_failed, 'event')} failed"


def _too_many_text(job: StoredJob, failed_max: int) -> str:
    """Why failed events end a job. Where all have failed, a bound says nothing: `run` sets one below their number."""
    if job.n_failed == job.events:
        return {1: "its event failed", 2: "both events failed"}.get(
            job.events, f"all {job.events} events failed"
        )
    return f"{_failed_text(job)}, failed_max is {failed_max}"


def record(work: UnitOfWork, job: StoredJob, evidence: Evidence, *, where: Where, final: bool) -> None:
    """Keep evidence of a failure within the limit per job; count it always."""
    campaign = work.campaign_of(job)
    work.failures[(campaign, str(evidence.failure))] += 1
    if job.evidences < EVIDENCE_JOB_MAX:
        job.evidences += 1
        event = where.first if where.events == 1 else None
        text = msgspec.json.encode(evidence)
        work.change_rows["insert_failures"].append(
            (job.id, campaign, where.first, where.events, event, where.site, int(final), text)
        )
    work.touch(job)


# ---- jobs that come after others -------------------------------------------------------------------------------


def pass_on(work: UnitOfWork) -> None:
    """Free or fail the jobs that come after those that have ended; goes on until nothing more ends."""
    if work.memory.waited_for is None:
        work.memory.waited_for = bool(work.session.rows("deps_any"))
    if not work.memory.waited_for:
        return
    seen: set[int] = set()
    while fresh := [each for each in work.ended if each not in seen]:
        seen.update(fresh)
        rows = work.session.rows("deps_on_jobs", ids=fresh)
        work.load(row.job for row in rows)
        for waiting, on_job, _, _ in rows:
            on = work.jobs[on_job]
            bad = on.state in (FAILED, CANCELED)
            _over(work, work.jobs[waiting], (on_job, 0), _why(on_job, on) if bad else "")
        _pass_on_campaigns(work, fresh)


def _pass_on_campaigns(work: UnitOfWork, ended: list[int]) -> None:
    for campaign in sorted({work.campaign_of(work.jobs[each]) for each in ended}):
        rows = work.session.rows("deps_on_campaign", campaign=campaign)
        if not rows:
            continue
        work.load(row.job for row in rows)
        oldest_open = oldest(work, campaign, (WAITING, RUNNING))
        oldest_bad = oldest(work, campaign, (FAILED, CANCELED))
        for waiting, _, _, upto in rows:
            if oldest_open is None or oldest_open > upto:
                bad = oldest_bad is not None and oldest_bad <= upto
                why = f"job {oldest_bad}, which it comes after, has failed or was canceled" if bad else ""
                _over(work, work.jobs[waiting], (0, campaign), why)


def oldest(work: UnitOfWork, campaign: int, states: Iterable[int]) -> int | None:
    """The lowest id of a campaign's jobs in these states, as they will be after this transaction."""
    wanted = set(states)
    best = min(
        (job.id for job in work.jobs.values() if job.state in wanted and work.campaign_of(job) == campaign),
        default=None,
    )
    for kind, state, site in work.session.rows("counts_of_campaign", campaign=campaign):
        if state in wanted:
            at = 0
            while at >= 0:
                at = _first_stored(work, (kind, state, site), wanted, at)
                if at > 0:
                    best = at if best is None else min(best, at)
                    break
    return best


def _first_stored(work: UnitOfWork, leg: tuple[int, int, int], wanted: set[int], after: int) -> int:
    """The first stored job of a leg after an id whose state is not changed by this transaction; -1 if there is none."""
    kind, state, site = leg
    while numbers := values(
        work.session, "jobs_after_in", kind=kind, state=state, site=site, after=after, limit=1000
    ):
        for number in numbers:
            job = work.jobs.get(number)
            if job is None or job.state in wanted:
                return int(number)
        after = numbers[-1]
    return -1


def _over(work: UnitOfWork, job: StoredJob, on: tuple[int, int], why: str) -> None:
    work.change_rows["delete_deps"].append((job.id, *on))
    if job.state > RUNNING or not job.blocked:
        return
    job.blocked -= 1  # one of which events are done already is RUNNING while it waits: it was retried
    work.touch(job)
    if job.ends:
        return
    if why and not work.spec(job).after_any:
        fail(work, job, why)
    else:
        open_again(work, job)


def _why(number: int, job: StoredJob) -> str:
    text = "was canceled" if job.state == CANCELED else "failed"
    return f"job {number}, which it comes after, {text}" + (f": {job.reason}" if job.reason else "")


def stage_in_evidence(message: str, now_us: int) -> Evidence:
    """Evidence for an input that the server cannot resolve."""
    return Evidence(failure=FailureClass.STAGE_IN, message=message, at_us=now_us)
