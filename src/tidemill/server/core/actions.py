"""What owners and operators do: cancel and retry jobs, drain a site, ask for a payload's output.

A cancel or retry that comes with a key counts once: what was answered is kept in the transaction that ended it.
Messages come twice, and clients ask again when they heard no answer. Without this the second `retry` would start what
has failed since, and the second `cancel` would end what was retried since.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidemill.model.identity import Act, Identity
from tidemill.model.intervals import IntervalSet
from tidemill.server.archive import lookup
from tidemill.server.audit import audit_log
from tidemill.server.core import ending, leasing, rights, silent_sites, site_records, submission
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.core.specifications.shortening import shortened
from tidemill.server.core.submission import KEY_MAX
from tidemill.server.core.writer import Writer
from tidemill.server.database.rows import (
    CANCELED,
    FAILED,
    LOST,
    PARTIAL,
    RELEASED,
    RUNNING,
    WAITING,
    StoredJob,
    clean,
)
from tidemill.server.database.store import row, value, values
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.errors import ConflictError, RequestError
from tidemill.server.hospital import ward_stays
from tidemill.wire.api import (
    ActionReply,
    ActionRequest,
    CancelOrder,
    DrainOrder,
    DrainRequest,
    FetchLogOrder,
)

PIECE = 5_000  #: jobs per transaction, so that a large campaign does not delay other requests
LOG_REQUESTS_KEPT = 1_000
ANSWERS_KEPT_US = 30 * 86_400_000_000
NUMBER_MAX = 2**62
EPOCH_FIRST = 1  #: of any agent
CANCELABLE = (WAITING, RUNNING)
ENDED_WITHOUT_SUCCESS = (PARTIAL, FAILED, CANCELED)
RETRIABLE = (RUNNING, *ENDED_WITHOUT_SUCCESS)  #: of running jobs those that are about to end
CHANGEABLE = (WAITING, *RETRIABLE)  #: of those that go on, what is leased from now on
ACCEPTABLE = (FAILED, CANCELED)
Change = Callable[[UnitOfWork, list[int]], int]  #: changes jobs by their ids; returns how many it changed
_ENCODER = msgspec.json.Encoder()


class ActionKey(NamedTuple):
    """The key of a cancel or retry, unique to its sender, and the digest of what it asks for."""

    key: str
    digest: bytes


def act_in_pieces(
    writer: Writer,
    request: ActionRequest,
    change: Change,
    *,
    states: tuple[int, ...],
    by: tuple[Identity, Act],
) -> ActionReply:
    """Change the jobs that are named, or those of a campaign in these states, PIECE of them in each transaction.

    Raises RequestError, MissingError, or ConflictError for a key that was used for another action.
    """
    if (request.campaign is None) == (not request.jobs):
        raise RequestError("name either jobs or a campaign")
    key = key_of(request, *by)
    named = sorted(set(request.jobs))
    writer.write(partial(check_exist, jobs=named))
    # once: while its jobs are changed, another owner may begin a campaign of this name
    campaign = (
        None
        if request.campaign is None
        else writer.write(partial(campaign_of, reference=request.campaign, by=by))
    )

    def piece(work: UnitOfWork, so_far: ActionReply, after: int) -> tuple[ActionReply, int | None]:
        before = known(work, key) if after == 0 else None
        if before is not None:
            return before, None
        if campaign is None:
            jobs = named[bisect_right(named, after) :][:PIECE]
        else:
            jobs = members(work, campaign.number, states, after)
        done = change(work, jobs) if jobs else 0
        if done:
            on = f"jobs {IntervalSet((each, each + 1) for each in jobs)}"
            if campaign is not None:
                on = f"campaign {campaign.reference}"
            facts: dict[str, Any] = {} if request.changes is None else {"changes": request.changes.names}
            audit_log.note(work, *by, on, changed=done, reason=request.reason, **facts)
        gone = len(shortened(work.session, jobs)) if by[1] is Act.RETRY else 0
        reply = ActionReply(
            changed=so_far.changed + done,
            unchanged=so_far.unchanged + len(jobs) - done,
            gone=so_far.gone + gone,
        )
        if jobs and jobs[-1:] != named[-1:]:
            return reply, jobs[-1]
        keep_answer(work, key, reply)
        return reply, None

    reply, after = ActionReply(changed=0, unchanged=0), 0
    while True:
        reply, last = writer.write(partial(piece, so_far=reply, after=after))
        if last is None:
            return reply
        after = last


def key_of(request: ActionRequest, identity: Identity, act: Act) -> ActionKey | None:
    """None without a key. Raises RequestError."""
    if not request.key:
        return None
    if len(request.key) > KEY_MAX or "\0" in request.key:
        raise RequestError(f"key `{request.key[:50]}` is longer than {KEY_MAX}")
    content = _ENCODER.encode([act, request])
    return ActionKey(f"{identity.role}/{identity.name}/{request.key}", hashlib.sha256(content).digest())


def known(work: UnitOfWork, key: ActionKey | None) -> ActionReply | None:
    """What was answered to the key. Raises ConflictError if that was for other content."""
    rows = [] if key is None else work.session.rows("act_by_key", key=key.key)
    if key is None or not rows:
        return None
    digest, changed, unchanged = rows[0]
    if bytes(digest) != key.digest:
        raise ConflictError(
            f"key `{key.key.partition('/')[2].partition('/')[2]}` was used for another cancel or retry",
            hint="a new request needs a new key",
        )
    return ActionReply(changed=int(changed), unchanged=int(unchanged), repeated=True)


def keep_answer(work: UnitOfWork, key: ActionKey | None, reply: ActionReply) -> None:
    """Remember in this transaction what is answered to the key; nothing without one."""
    if key is None:
        return
    work.session.run(
        "insert_act", key=key.key, digest=key.digest, changed=reply.changed, unchanged=reply.unchanged,
        now_us=work.now_us,
    )  # fmt: skip
    work.session.run("prune_acts", before_us=work.now_us - ANSWERS_KEPT_US)


def campaign_of(work: UnitOfWork, reference: str, by: tuple[Identity, Act]) -> CampaignKey:
    """The campaign that a reference means for the one who asks, if it can be changed. Raises ForbiddenError,
    MissingError, RequestError."""
    key = rights.check_campaign(work.session, *by, reference)
    refused = lookup.refusal_of_campaign(work.session, key.number) if key.is_archived else None
    if refused is not None:
        raise refused
    return key


def check_exist(work: UnitOfWork, jobs: Sequence[int]) -> None:
    """Raises MissingError unless all of these jobs exist."""
    if not all(0 < each < NUMBER_MAX for each in jobs):
        raise rights.missing_job(next(each for each in jobs if not 0 < each < NUMBER_MAX))
    missing = set(jobs) - {row.id for row in work.session.rows("states_by_id", ids=jobs)}
    if missing:
        raise lookup.refusal_of_job(work.session, min(missing)) or rights.missing_job(min(missing))


def members(work: UnitOfWork, campaign: int, states: Iterable[int], after: int) -> list[int]:
    """The next jobs of a campaign in these states, by id, at most PIECE."""
    wanted = set(states)
    found: list[int] = []
    for kind, state, site in work.session.rows("counts_of_campaign", campaign=campaign):
        if state in wanted:
            leg = {"kind": kind, "state": state, "site": site}
            found += values(work.session, "jobs_after_in", **leg, after=after, limit=PIECE)
    return sorted(found)[:PIECE]


def cancel(work: UnitOfWork, jobs: Sequence[int], request: ActionRequest, *, half_life_s: float) -> int:
    """Cancel jobs that have not ended; how many that were."""
    reason = clean(request.reason) or "canceled by its owner"
    work.load(jobs)
    work.load_leases(jobs)
    changed = 0
    for number in dict.fromkeys(jobs):
        job = work.jobs.get(number)
        if job is not None and job.state in CANCELABLE:
            ending.cancel(work, job, reason, unneeded=request.unneeded)
            changed += 1
    finish(work, half_life_s)
    return changed


def retry(
    work: UnitOfWork,
    jobs: Sequence[int],
    *,
    half_life_s: float,
    check: Callable[[UnitOfWork, list[StoredJob]], None] | None = None,
    alone: bool = False,
) -> int:
    """Let jobs that ended without success, or are about to, run again; how many that were.

    Done events stay done while their outputs are delivered or at a site that is there. A job of which only the delivery
    failed is delivered again. One whose inputs, predecessors or specification are gone stays as it is, and holds up no
    other. Raises RequestError for it if it was asked for `alone`.
    """
    lookup.refuse_closed(work.session, jobs)
    work.load(jobs)
    if check is not None:  # whether the submitter may have these jobs open too: raises QuotaError
        check(
            work,
            [job for each in dict.fromkeys(jobs) if (job := work.jobs.get(each)) and job.state in RETRIABLE],
        )
    changed = 0
    forget_lost(work, jobs)
    outcomes, gone = outcomes_of(work, jobs), shortened(work.session, list(jobs))
    for number in dict.fromkeys(jobs):
        job = work.jobs.get(number)
        if job is None:
            continue
        if number in gone:
            if alone:
                raise shortened_error(number)
            continue
        if job.state == RUNNING:
            changed += _go_on(work, job)
        elif job.state in ENDED_WITHOUT_SUCCESS:
            try:
                changed += again(work, job, outcome=outcomes.get(number))
            except RequestError:
                if alone:
                    raise
    finish(work, half_life_s)
    return changed


def shortened_error(job: int) -> RequestError:
    """Why a job cannot run again whose specification is gone."""
    return RequestError(
        f"job {job} was canceled before it ran, and its specification has been removed since: it cannot be retried",
        hint="submit it again: a large specification is kept for 30 days after a cancellation, for one day where room "
        "is short",
    )


def deliver_elsewhere(work: UnitOfWork, jobs: Sequence[int]) -> None:
    """Order again the deliveries that are under way. Their jobs have just got another directory, which the site would
    otherwise learn with the next delivery."""
    for number in dict.fromkeys(jobs):
        job = work.jobs.get(number)
        if job is not None and job.delivering:
            is_all = job.ends == PARTIAL or (not job.ends and ending.is_settled(job))
            ending.deliver(work, job, complete=is_all)


def accept(work: UnitOfWork, jobs: Sequence[int], *, half_life_s: float) -> int:
    """Take what is done of jobs that failed or were canceled for all there is: merge steps run, everything that is done
    is delivered, and the jobs become PARTIAL; how many that were."""
    lookup.refuse_closed(work.session, jobs)
    work.load(jobs)
    changed, outcomes = 0, outcomes_of(work, jobs)
    for number in dict.fromkeys(jobs):
        job = work.jobs.get(number)
        if job is None or job.state not in ACCEPTABLE or not job.n_done:
            continue
        if number in outcomes:
            ward_stays.go_on(work, job, outcomes[number])
        work.enter(job, RUNNING)
        job.reason = f"{job.n_done} of {job.events} events are done, and accepted by the owner"
        job.ended_us = None
        if ending.undelivered(work, job):
            job.ends = PARTIAL
            ending.deliver(work, job, complete=True)
        else:
            ending.end(work, job, PARTIAL)
        changed += 1
    finish(work, half_life_s)
    return changed


def discard(work: UnitOfWork, jobs: Sequence[int], *, half_life_s: float) -> int:
    """Have sites delete what they keep of jobs that have ended and is not delivered; how many that were. Those events
    are not done any more."""
    lookup.refuse_closed(work.session, jobs)
    work.load(jobs)
    changed = 0
    for number in dict.fromkeys(jobs):
        job = work.jobs.get(number)
        if job is None or job.state not in ENDED_WITHOUT_SUCCESS or not job.kept:
            continue
        sets = work.sets(job)
        sets.done.remove_all(ending.undelivered(work, job))
        work.keep_sets(job)
        work.order(job.place, CancelOrder, job=job.id, reason="its owner discards what is kept")
        job.kept = job.home = 0
        job.ward, job.place = 0, job.pin
        changed += 1
    finish(work, half_life_s)
    return changed


def forget_lost(work: UnitOfWork, jobs: Sequence[int]) -> None:
    """Lost sites have orders to stop the jobs that have ended, or are about to: when they return, they run nothing of
    these jobs that could be taken up again."""
    over = [each for each in jobs if (job := work.jobs.get(each)) and (job.state > RUNNING or job.ends)]
    over = [each for each in over if work.jobs[each].attempts]
    if not over:
        return
    work.load_leases(over)
    for number in over:
        for lease in work.leases_of(number):
            if lease.state == LOST:
                work.end_lease(lease, RELEASED, "the job had ended")


def _go_on(work: UnitOfWork, job: StoredJob) -> bool:
    """A job that is about to end goes on, after the delivery that is under way."""
    if not (job.ends or (job.delivering and job.n_failed)):
        return False
    job.ends, job.reason = 0, ""
    _clear_failed(work, job)
    ending.settle(work, job)
    return True


def outcomes_of(work: UnitOfWork, jobs: Iterable[int]) -> dict[int, int]:
    """How the last stays of loaded jobs ended that were treated in a ward, by job."""
    found = [job for each in dict.fromkeys(jobs) if (job := work.jobs.get(each)) is not None and job.ward]
    return ward_stays.outcomes_of(work.session, found) if found else {}


def again(work: UnitOfWork, job: StoredJob, *, outcome: int | None = None, whole: bool = True) -> bool:
    """Whether a job that has ended runs again. `outcome`: of its stay, where it ended in a ward; `whole`: with all that
    failed. What its owner has canceled stays so, unless nothing else would run."""
    spec = work.spec(job)
    waits, why = submission.resolve_after(
        work, spec, f"job {job.id}", upto=job.id - 1, whose=submission.Whose(work.owner_of(job))
    )
    if why:
        return False
    _drop_gone(work, job)
    job.reason, job.ended_us, job.refusals, job.refused = "", None, 0, ""
    is_delivery = job.state == FAILED and ending.is_settled(job) and ending.undelivered(work, job)
    if whole and not (is_delivery and job.n_failed <= spec.failed_max):
        _clear_failed(work, job)
        if job.n_canceled and not job.n_left and not ending.undelivered(work, job):
            _clear_canceled(work, job)
    if not job.kept:
        job.home = job.outputs = 0
        job.ward, job.place = 0, job.pin
    elif outcome is not None:
        ward_stays.go_on(work, job, outcome)
    is_settled = ending.is_settled(job)
    job.blocked = 0 if is_settled else len(waits)
    if job.blocked:
        work.change_rows["insert_deps"] += [(job.id, *each) for each in waits]
        work.memory.waited_for = True
    if is_settled:
        work.enter(job, RUNNING)
        ending.settle(work, job)
    else:
        ending.open_again(work, job)
    return True


def _clear_failed(work: UnitOfWork, job: StoredJob) -> None:
    """Events that failed run again: none of their failures is final any more."""
    work.sets(job).failed = IntervalSet()
    work.keep_sets(job)
    work.change_rows["reopen_failures"].append((job.id,))


def _clear_canceled(work: UnitOfWork, job: StoredJob) -> None:
    """Canceled events are to run after all."""
    work.sets(job).canceled = IntervalSet()
    work.keep_sets(job)


def _drop_gone(work: UnitOfWork, job: StoredJob) -> None:
    """Events whose outputs are neither delivered nor at a site that is there are not done any more."""
    site = work.memory.sites.get(job.place) if job.home else None
    if not job.outputs or (job.kept and site is not None and not site.lost):
        return
    if job.kept:
        silent_sites.lose_kept(work, job)
        return
    sets = work.sets(job)
    sets.done.remove_all(ending.without(sets.done, job.delivered))
    work.keep_sets(job)


def drain(work: UnitOfWork, name: str, request: DrainRequest) -> bool | None:
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
    site_records.keep_sites(work)
    return True


def reset_epoch(work: UnitOfWork, name: str, *, half_life_s: float) -> int | None:
    """Let the next agent that speaks for a site serve it, whatever its epoch is; how many leases were taken back, None
    if no such site has joined.

    For a site whose credential another has used: that one said a high epoch, acknowledged orders that the site's own
    agent never got, and may have numbered reports so that the agent's own are taken for old ones. So the leases end for
    good and reports count from the start; late results of the agent are welcome, as ever.
    """
    site = work.memory.sites.get(work.memory.site_ids.get(name, 0))
    if site is None or not site.epoch:
        return None
    leases = 0
    if not site.lost:
        reason = "an operator has reset the site's epoch"
        leases = silent_sites.lose(work, site, reason, state=RELEASED)
    site.epoch, site.host, site.acked = EPOCH_FIRST, "", 0
    ending.pass_on(work)
    leasing.charge(work, half_life_s)
    work.flush()
    site_records.write(work, site)
    return leases


def set_shares(work: UnitOfWork, owner: str, shares: float) -> bool | None:
    """Give an owner a weight; whether that changed anything, None if there is no such owner of campaigns."""
    known = row(work.session, "owner_shares", names=[owner])
    if known is None:
        return None
    if known.shares == shares:
        return False
    work.session.run("set_owner_shares", name=owner, shares=shares)
    return True


def finish(work: UnitOfWork, half_life_s: float) -> None:
    """What follows from changes of jobs, then write all of it."""
    ending.pass_on(work)
    leasing.charge(work, half_life_s)
    work.flush()
    site_records.keep_sites(work)


def ask_log(work: UnitOfWork, number: int, event: int | None) -> tuple[int, bool] | None:
    """Ask the site that last had a job (or this event) for the output: the request, and whether it is new;
    None if no site had it. Who asks while the site has not answered waits for the same answer: clients ask again and
    again, and each order is an entry in the site's log. Raises MissingError, RequestError for an archived job."""
    work.load([number])
    job = work.jobs.get(number)
    if job is None:
        raise lookup.refusal_of_log(work.session, number) or rights.missing_job(number)
    leases = [lease for lease in work.leases_of(number) if event is None or lease.first <= event < lease.end]
    if not leases:
        return None
    site = leases[-1].site
    known = -1 if event is None else event
    pending = value(work.session, "open_log_request", job=job.id, event=known, site=site)
    if pending is not None:
        return int(pending), False
    request = int(value(work.session, "insert_log_request", job=job.id, event=event, site=site))
    work.session.run("prune_log_requests", before=request - LOG_REQUESTS_KEPT)
    work.order(site, FetchLogOrder, request=request, job=job.id, event=event)
    work.flush()
    site_records.keep_sites(work)
    return request, True
