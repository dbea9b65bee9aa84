"""Cancels or retries some events of one job.

A canceled event counts as ended: it is neither done nor failed, and no site gets it. Its site is ordered to stop it. A
result that was on its way then counts, as if it had come before: no work is thrown away, and who cancels loses nothing
by it. Events that have ended stay what they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from tidemill.model.identity import Act, Identity
from tidemill.model.intervals import IntervalSet
from tidemill.model.quantities import counted_text
from tidemill.server.archive import lookup
from tidemill.server.audit import audit_log
from tidemill.server.core import actions, ending
from tidemill.server.core.specifications.shortening import shortened
from tidemill.server.core.writer import Writer
from tidemill.server.database.rows import (
    ACTIVE,
    JOB_STATES,
    LOST,
    RELEASED,
    RUNNING,
    StoredJob,
    clean,
)
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.errors import ConflictError, RequestError
from tidemill.wire.api import ActionReply, ActionRequest, CancelEventsOrder

EVENTS_CHARS_MAX = 100_000
"""Of a list of events in a request: some 15,000 intervals, each of which the site's agent takes out by itself."""

CANCELED_GAPS_MAX = 100_000
"""Intervals of a job's canceled events: each result of the job writes all of them again."""

SHOWN_MAX = 60  #: characters of a list of events in a message
Change = Callable[[UnitOfWork, StoredJob, IntervalSet], int]
"""Changes events of a job; how many it changed."""


def act_on_events(
    writer: Writer, request: ActionRequest, change: Change, by: tuple[Identity, Act]
) -> ActionReply:
    """Change some events of one job in one transaction; the reply counts events.

    Raises RequestError, MissingError, or ConflictError for a key that was used for another action.
    """
    if request.campaign is not None or len(set(request.jobs)) != 1:
        raise RequestError(
            f"`events` are those of one job, and this names {_named(request)}",
            hint="events are numbered within a job: name one job",
        )
    events, number = _parsed(request.events), request.jobs[0]
    key = actions.key_of(request, *by)
    writer.write(partial(actions.check_exist, jobs=[number]))

    def act(work: UnitOfWork) -> ActionReply:
        known = actions.known(work, key)
        if known is not None:
            return known
        lookup.refuse_closed(work.session, [number])
        work.load([number])
        job = work.jobs[number]
        _check_range(job, events)
        changed = change(work, job, events)
        if changed:
            facts: dict[str, Any] = {"events": clean(str(events)), "changed": changed}
            audit_log.note(work, *by, f"job {number}", reason=request.reason, **facts)
        reply = ActionReply(changed=changed, unchanged=len(events) - changed)
        actions.keep_answer(work, key, reply)
        return reply

    return writer.write(act)


def _named(request: ActionRequest) -> str:
    if request.campaign is not None:
        return f"campaign `{request.campaign}`"
    return counted_text(len(set(request.jobs)), "job")


def _parsed(text: str) -> IntervalSet:
    """Raises RequestError."""
    if len(text) > EVENTS_CHARS_MAX:
        raise RequestError(
            f"the list of events has {len(text)} characters, at most {EVENTS_CHARS_MAX}",
            hint="name ranges, or fewer events at once",
        )
    try:
        events = IntervalSet.parse(text)
    except ValueError as error:
        raise RequestError(
            f"the list of events cannot be read: {error}", hint="such as `100-199,205`"
        ) from error
    if not events:
        raise RequestError(f"the list `{text[:SHOWN_MAX]}` names no event", hint="such as `100-199,205`")
    return events


def _check_range(job: StoredJob, events: IntervalSet) -> None:
    outside = ending.without(events, f"0-{job.events - 1}")
    if outside:
        raise RequestError(
            f"job {job.id} has no event {shown(outside)}",
            hint=f"its events are 0 to {job.events - 1}" if job.events > 1 else "its only event is 0",
        )


def shown(events: IntervalSet) -> str:
    """A list of events for a message."""
    text = str(events)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX].rpartition(',')[0]},..."


# ---- cancel ------------------------------------------------------------------------------------------------------


def cancel(
    work: UnitOfWork, job: StoredJob, events: IntervalSet, request: ActionRequest, *, half_life_s: float
) -> int:
    """Cancel those of the events that have not ended; how many that were. Raises ConflictError for a job that has
    ended or is about to."""
    if job.state > RUNNING or job.ends:
        state = JOB_STATES[job.state] if job.state > RUNNING else f"about to end as {JOB_STATES[job.ends]}"
        raise ConflictError(
            f"events of job {job.id} cannot be canceled: the job is {state}",
            hint=f"`tidemill job show {job.id}` says what became of its events",
        )
    sets = work.sets(job)
    todo = IntervalSet(piece for span in events for piece in sets.undone(*span))
    if not todo:
        return 0
    work.load_leases([job.id])
    _take_back(work, job, todo)
    sets.canceled.add_all(todo)
    _keep(work, job)
    if (
        not job.n_leased and job.home and not job.kept
    ):  # nothing of it is anywhere: any site may have the rest
        job.home, job.place, job.told = 0, job.berth, 0
    if job.n_canceled == job.events:
        job.reason = clean(request.reason)
    ending.settle(work, job)
    actions.finish(work, half_life_s)
    return len(todo)


def _take_back(work: UnitOfWork, job: StoredJob, todo: IntervalSet) -> None:
    """No lease holds these events any more, and the sites that may run some of them stop them."""
    at_sites: dict[int, IntervalSet] = defaultdict(IntervalSet)
    for lease in work.leases_of(job.id):
        if lease.state not in (ACTIVE, LOST):
            continue
        mine = IntervalSet(piece for piece in todo.within(lease.first, lease.end))
        if lease.state == ACTIVE:
            held = ending.remove_events(
                work, job, lease, list(mine), emptied=(RELEASED, "its events were canceled")
            )
            mine = IntervalSet(held)
            if held and lease.state == ACTIVE:
                work.returned(lease).add_all(mine)
                work.change_lease(lease)
        at_sites[lease.site].add_all(mine)
    for number, events in sorted(at_sites.items()):
        if events:
            work.order(number, CancelEventsOrder, job=job.id, events=str(events))


# ---- retry -------------------------------------------------------------------------------------------------------


def retry(
    work: UnitOfWork,
    job: StoredJob,
    events: IntervalSet,
    *,
    half_life_s: float,
    check: Callable[[UnitOfWork, list[StoredJob]], None] | None = None,
) -> int:
    """Let these events run again, which failed, were canceled, or had not run when their job ended; how many they are.
    What else had not run then counts as canceled. Raises RequestError, ConflictError."""
    if shortened(work.session, [job.id]):
        raise actions.shortened_error(job.id)
    has_ended = job.state > RUNNING
    if check is not None and has_ended:
        check(work, [job])
    if job.ends or job.delivering:
        raise ConflictError(
            f"events of job {job.id} cannot be retried now: its outputs are being delivered, or it is about to end",
            hint="try again when it has ended: `tidemill wait`",
        )
    sets = work.sets(job)
    _check_retriable(job, events, done=sets.done, open_=_open_of(work, job, events, has_ended=has_ended))
    other_failed = ending.without(sets.failed, str(events))
    failed_max = work.spec(job).failed_max
    if len(other_failed) > failed_max:
        raise ConflictError(
            f"job {job.id} would fail again at once: {counted_text(len(other_failed), 'other event')} of it failed, "
            f"and its failed_max is {failed_max}",
            hint=f"retry these, too: {shown(other_failed)}; or all: `tidemill job retry {job.id}`",
        )
    if has_ended:
        left = IntervalSet(sets.undone(0, job.events))
        left.remove_all(events)
        sets.canceled.add_all(left)
    sets.failed.remove_all(events)
    sets.canceled.remove_all(events)
    _keep(work, job)
    _reopen_failures(work, job, events)
    if not has_ended:
        _forget_lost(work, job, events)
        ending.settle(work, job)
    else:
        actions.forget_lost(work, [job.id])
        outcome = actions.outcomes_of(work, [job.id]).get(job.id)
        if not actions.again(work, job, outcome=outcome, whole=False):
            raise ConflictError(
                f"events of job {job.id} cannot be retried: a job that it comes after has failed or was canceled",
                hint="retry that one first",
            )
    actions.finish(work, half_life_s)
    return len(events)


def _keep(work: UnitOfWork, job: StoredJob) -> None:
    """Count the job's sets and write them at the end. Raises ConflictError for too many pieces of canceled events."""
    if work.sets(job).canceled.gaps > CANCELED_GAPS_MAX:
        raise ConflictError(
            f"the canceled events of job {job.id} would be in more than {CANCELED_GAPS_MAX} separate pieces",
            hint="name fewer and longer ranges, or cancel or retry the job as a whole",
        )
    work.keep_sets(job)


def _reopen_failures(work: UnitOfWork, job: StoredJob, events: IntervalSet) -> None:
    """These events run again: none of their failures so far is final."""
    rows = work.session.rows("final_failures_of_job", job=job.id)
    work.change_rows["reopen_failures_by_id"] += [
        (number,) for number, first, count in rows if events.covers(first, first + count)
    ]


def _forget_lost(work: UnitOfWork, job: StoredJob, events: IntervalSet) -> None:
    """A lost site may have an order to stop these events: when it returns, it has no lease of them to go on with."""
    for lease in work.leases_of(job.id):
        if lease.state == LOST and events.touches(lease.first, lease.end):
            work.end_lease(lease, RELEASED, "events of it were canceled, then retried")


def _open_of(work: UnitOfWork, job: StoredJob, events: IntervalSet, *, has_ended: bool) -> IntervalSet:
    """Those of the events that run or wait: none of a job that has ended."""
    if has_ended:
        return IntervalSet()
    return IntervalSet(piece for span in events for piece in work.sets(job).undone(*span))


def _check_retriable(job: StoredJob, events: IntervalSet, *, done: IntervalSet, open_: IntervalSet) -> None:
    is_done = IntervalSet(piece for span in events for piece in done.within(*span))
    if is_done:
        raise ConflictError(
            f"events of job {job.id} are done and cannot be retried: {shown(is_done)}",
            hint=f"name those that failed or were canceled: `tidemill job explain {job.id} --events LIST` says which",
        )
    if open_:
        raise ConflictError(
            f"events of job {job.id} have not ended and cannot be retried: {shown(open_)}",
            hint="they run or wait already",
        )
