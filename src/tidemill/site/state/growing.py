"""How events that lacked memory or time run again with more of it. Pure.

Each value is a form of the job: another program for its leads. A value is the first one times a power of two, or the
maximum, so a job has few forms however many of its events grow.
"""

from __future__ import annotations

import re

from msgspec import UNSET, structs

from tidemill.model.failure import GROWS, POLICY, FailureClass
from tidemill.model.job import JobSpec
from tidemill.model.quantities import count_text, duration_text
from tidemill.model.retry.growth import next_value
from tidemill.site.state.failures import RetryVerdict, around
from tidemill.site.state.site_state import JobForm, SiteJob, UndonePiece

_USED = re.compile(r"used (\d{1,9}) MB of memory")
"""Part of a slot's message about a payload that it ended (`crates/slot/src/init/payload.rs`)."""


def larger_form(job: SiteJob, form: int, failure: FailureClass, message: str) -> JobForm | None:
    """The larger form in which failed events run again. None = they do not grow: they did not fail for lack of memory
    or time, had the maximum, or ran by an earlier specification."""
    key = POLICY[failure].grows
    has = _has(job, form)
    if not key or has is None or getattr(job.spec.resources, f"{key}_max") is UNSET:
        return None
    used = _USED.search(message) if failure is FailureClass.MEMORY else None
    now = getattr(has, key) or getattr(job.spec.resources, key)
    more = next_value(now, getattr(job.spec.resources, f"{key}_max"), used=int(used[1]) if used else 0)
    return None if more is None else structs.replace(has, **{key: more})


def told_growth(job: SiteJob, form: int, failure: FailureClass, larger: JobForm | None) -> str:
    """The end of a failure's message: how much the events get when they run again, or that they had the maximum.
    Empty = they may not grow."""
    if larger is None:
        key = POLICY[failure].grows
        has_most = bool(key) and getattr(job.spec.resources, f"{key}_max") is not UNSET
        return ", the most that it may grow to" if has_most and _has(job, form) is not None else ""
    if failure is FailureClass.MEMORY:
        return f"{GROWS}{count_text(larger.memory_mb or 0)} MB"
    return f"{GROWS}{duration_text(larger.timeout_s or 0)}"


def again_larger(
    job: SiteJob, larger: JobForm, undone: list[tuple[int, int]], *, form: int, culprit: int | None
) -> RetryVerdict:
    """Run the events of a failed range again, in the larger form. If an event is named as the culprit, only that one
    grows. Nothing uses up a retry, because the events get what they lacked."""
    number = _number(job, larger)
    if culprit is None or not any(first <= culprit < end for first, end in undone):
        return RetryVerdict([UndonePiece(first, end - first, None, number) for first, end in undone], [], [])
    rest = [piece for first, end in undone for piece in around(first, end, culprit)]
    return in_form(
        job, RetryVerdict([*rest, UndonePiece(culprit, 1, 1)], [], []), form=form, other={culprit: number}
    )


def spec_in(job: SiteJob, form: int) -> JobSpec:
    """The job's specification with the limits of a form."""
    has = job.forms.get(form)
    if has is None:
        return job.spec
    given = {key: value for key, value in structs.asdict(has).items() if value is not None}
    return structs.replace(job.spec, resources=structs.replace(job.spec.resources, **given))


def in_form(
    job: SiteJob, verdict: RetryVerdict, *, form: int, other: dict[int, int] | None = None
) -> RetryVerdict:
    """The verdict with its pieces in the form in which they failed, if the job still has that form. `other`: the form
    of some pieces, by their first event."""
    mine = form if form in job.forms else None
    forms = other or {}
    if mine is None and not forms:
        return verdict
    again = [structs.replace(each, form=forms.get(each.first, mine)) for each in verdict.again]
    return structs.replace(verdict, again=again)


def _has(job: SiteJob, form: int) -> JobForm | None:
    """The limits of a form; None = the form is of an earlier specification."""
    return JobForm() if form == job.base_form else job.forms.get(form)


def _number(job: SiteJob, form: JobForm) -> int:
    """The number of a form. Adds the form to the job's if it is new."""
    for number, known in job.forms.items():
        if known == form:
            return number
    number = job.next_form
    job.forms[number] = form
    job.next_form += 1
    return number
