"""Jobs and outputs by numbers of jobs, many in one reply, for clients that follow their jobs or collect results.

Bounded: a request names up to PAGE_MAX jobs, and outputs come in pages, ordered by job.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.model.intervals import IntervalSet
from tidemill.server.archive.parquet import Archive
from tidemill.server.core import rights
from tidemill.server.database.store import Session
from tidemill.server.errors import RequestError
from tidemill.server.read import api_pages, archived, feed
from tidemill.server.read.job_search import TOP
from tidemill.wire.api import PAGE_MAX, JobPage, JobRow, OutputPage


def numbers_of(text: str) -> list[int]:
    """The numbers of jobs in a text such as `3,7-12`, ascending. Raises RequestError for more than PAGE_MAX."""
    try:
        named = IntervalSet.parse(text)
    except ValueError as error:
        raise RequestError(f"`jobs` cannot be read: {error}", hint="such as `jobs=3,7-12`") from error
    if not 1 <= len(named) <= PAGE_MAX:
        raise RequestError(
            f"`jobs` names {len(named)} jobs; it may name 1 to {PAGE_MAX}", hint="split the request"
        )
    numbers = [number for first, end in named for number in range(first, end)]
    if numbers[-1] > TOP:
        raise RequestError(f"`jobs` names job {numbers[-1]}; the largest possible number is {TOP}")
    return numbers


def jobs(session: Session, numbers: Sequence[int], archive: Archive) -> JobPage:
    """Jobs by number, newest first, archived jobs included. Raises MissingError unless all exist."""
    reached = feed.reached(session)
    found = _known(session, numbers, archive)
    for number in numbers:
        if number not in found:
            raise rights.missing_job(number)
    return JobPage(jobs=[found[each] for each in sorted(found, reverse=True)], next=None, reached=reached)


def ended(session: Session, campaign: int, after: int, *, limit: int, archive: Archive) -> JobPage:
    """Jobs of a campaign that ended after a number of the feed, as they are now, in the order of their ends. Archived
    jobs are included."""
    found = feed.ended_jobs(session, campaign, after, limit=limit)
    known = _known(session, found.jobs, archive)
    rows = [known[each] for each in found.jobs if each in known]
    return JobPage(jobs=rows, next=found.reached if found.more else None, reached=found.reached)


def _known(session: Session, numbers: Sequence[int], archive: Archive) -> dict[int, JobRow]:
    """The jobs that exist, in the database or in the archive, by number."""
    result = {each.id: each for each in api_pages.rows_of(session, list(numbers))}
    if missing := [each for each in numbers if each not in result]:
        result |= {each.id: each for each in archived.jobs_of(session, archive, missing)}
    return result


def outputs(
    session: Session, numbers: Sequence[int], archive: Archive, *, after: int, limit: int
) -> OutputPage:
    """Delivered files of those jobs that come after one, by whole jobs, oldest job first. Archived jobs are
    included."""
    wanted = [each for each in numbers if each > after]
    known = {row.id for row in session.rows("states_by_id", ids=wanted)} if wanted else set()
    rows = session.rows("outputs_among", ids=sorted(known), limit=limit + 1) if known else []
    page = api_pages.whole_jobs(session, rows, limit)
    if missing := [each for each in wanted if each not in known and (page.next is None or each <= page.next)]:
        page.outputs += archived.outputs_of(session, archive, missing)
        page.outputs.sort(key=lambda each: each.job)
    return page


def campaign_outputs(session: Session, campaign: int | None, *, after: int, limit: int) -> OutputPage:
    """Delivered files of a campaign's jobs after one, by whole jobs, oldest job first."""
    if campaign is None:
        raise RequestError("`after` needs `campaign` or `jobs`")
    rows = session.rows("outputs_of_campaign_from", campaign=campaign, after=after, limit=limit + 1)
    return api_pages.whole_jobs(session, rows, limit)
