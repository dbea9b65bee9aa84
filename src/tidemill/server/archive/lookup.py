"""What the database knows of archived jobs and campaigns, without their files, and why nothing can change them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from tidemill import clock
from tidemill.server.database.store import Session, row
from tidemill.server.errors import ConflictError, MissingError, RequestError

_BAD = ("FAILED", "CANCELED")


class ArchivedPlace(NamedTuple):
    """Where a job or campaign is. `month` and `batch`: its files."""

    month: str
    batch: int
    number: int  #: of the campaign
    campaign: str
    owner: str
    ended_us: int


def place_of_job(session: Session, job: int) -> ArchivedPlace | None:
    """Where an archived job is; None if it is not in the archive."""
    found = row(session, "archived_range", job=job)
    if found is None or not found.first <= job <= found.last:
        return None
    about = row(session, "archived_place", id=found.campaign)
    return None if about is None else ArchivedPlace(*about)


def place_of_campaign(session: Session, number: int) -> ArchivedPlace | None:
    """Where an archived campaign is; None if it is not in the archive."""
    found = row(session, "archived_place_of", id=number)
    return None if found is None else ArchivedPlace(*found)


def owners_of(session: Session, jobs: Iterable[int]) -> dict[int, str]:
    """Whose these archived jobs are; others are left out. Cost: one statement, whatever it finds."""
    return dict(session.rows("archived_owners", jobs=msgspec.json.encode(list(jobs)).decode()))


def refusal_of_job(session: Session, job: int) -> RequestError | None:
    """Why an archived job cannot be changed; None if it is not in the archive."""
    place = place_of_job(session, job)
    return (
        None if place is None else _unchangeable(f"job {job} of campaign `{place.campaign}`", place.ended_us)
    )


def refusal_of_log(session: Session, job: int) -> MissingError | None:
    """Why the output of an archived job's payloads cannot be asked for; None if it is not in the archive."""
    place = place_of_job(session, job)
    if place is None:
        return None
    return MissingError(
        f"job {job} is in the archive since its campaign `{place.campaign}` ended on {_day(place.ended_us)}: "
        "sites keep nothing that it printed",
        hint=f"`tidemill job show {job}` prints the end of stderr of what failed; an output `stdout` is among "
        f"`tidemill outputs ls {job}`",
    )


def refusal_of_campaign(session: Session, number: int) -> RequestError | None:
    """Why a campaign in the archive cannot be changed; None if it is not there."""
    place = place_of_campaign(session, number)
    return None if place is None else _unchangeable(f"campaign `{place.campaign}`", place.ended_us)


def refuse_closed(session: Session, jobs: Sequence[int]) -> None:
    """Raises RequestError if one of these jobs is on its way into the archive."""
    found = row(session, "closed_jobs", ids=list(jobs)) if jobs else None
    if found is not None:
        raise _unchangeable(f"job {found.id} of campaign `{found.name}`", found.last_ended_us)


def _unchangeable(what: str, ended_us: int) -> RequestError:
    return RequestError(
        f"{what} is in the archive since its campaign ended on {_day(ended_us)}: it cannot be retried, "
        "canceled, accepted or discarded",
        hint="ended campaigns can be retried for `archive.keep_days` (see server.toml); `tidemill job show JOB` prints "
        "what a job was, so that you can submit it again",
    )


def name_taken(name: str, ended_us: int) -> ConflictError:
    """For a submission to a campaign that is in the archive, or on its way there."""
    return ConflictError(
        f"campaign `{name}` ended on {_day(ended_us)} and is in the archive: it takes no more jobs",
        hint="choose another name: an owner uses a name once, also after the campaign is archived",
    )


def check_inputs(session: Session, jobs: Sequence[int], where: str) -> None:
    """Raise RequestError if one of these jobs, whose files are inputs, is on its way into the archive."""
    found = row(session, "closed_jobs", ids=list(jobs)) if jobs else None
    if found is not None:
        raise _no_files(found.id, where)


def _no_files(job: int, where: str) -> RequestError:
    return RequestError(
        f"{where} has an input of job {job}, which is in the archive",
        hint=f"`tidemill job show {job}` prints where its files were delivered: name one by its URL",
    )


def check_after(session: Session, job: int, where: str, *, needs_files: bool, any_end: bool) -> None:
    """Raise RequestError for a job that comes after an archived one, unless all jobs of that campaign ended well or
    `any_end` will do."""
    place = place_of_job(session, job)
    if place is None:
        return
    if needs_files:
        raise _no_files(job, where)
    if any_end:
        return
    bad = bad_of_campaign(session, place.number)
    if bad:
        raise RequestError(
            f"{where} comes after job {job}, which is in the archive; {bad} jobs of its campaign have failed or were "
            "canceled",
            hint=f"`tidemill job show {job}` prints how it ended; leave it out",
        )


def bad_of_campaign(session: Session, number: int) -> int | None:
    """How many jobs of an archived campaign have failed or were canceled; None if it is not in the archive."""
    found = row(session, "archived_campaign", id=number)
    if found is None:
        return None
    states: dict[str, Any] = msgspec.json.decode(found.states)
    return sum(int(states.get(state, 0)) for state in _BAD)


def _day(at_us: int) -> str:
    return clock.utc_text(at_us)[:10]
