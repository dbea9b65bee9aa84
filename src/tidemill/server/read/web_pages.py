"""What the pages for people read besides `api_pages.py`: sorted, searched, by owner. Bounded; never writes."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tidemill.model.campaign import reference
from tidemill.model.failure import cause_of
from tidemill.server.archive.parquet import Archive
from tidemill.server.core import campaign_names, rights, site_views
from tidemill.server.database.rows import JOB_STATES, StoredCampaign
from tidemill.server.database.store import Row, Session, values
from tidemill.server.errors import RequestError
from tidemill.server.read import api_pages, archived, feed, job_search
from tidemill.server.read.job_search import TOP
from tidemill.wire.api import (
    PAGE_MAX,
    AllocationRow,
    CampaignRow,
    Counts,
    FailurePage,
    FailureRow,
    JobRow,
)
from tidemill.wire.views import SiteViews

CAMPAIGN_SORTS = ("newest", "name", "jobs", "open", "failed", "time", "ended")
OFFSET_MAX = 100_000
LOGS_SHOWN = 10
CHOICES_MAX = 1_000
FAILURES_MAX = 100
CAMPAIGNS_LOOK = 5_000  #: newest campaigns that are searched, or sorted by what no index has
CAMPAIGNS_MAX = 100  #: of an owner, in which failures are looked for


class JobsPage(NamedTuple):
    """Rows of a page of jobs, and how they were found."""

    rows: list[JobRow]
    found: job_search.IdPage


def jobs(
    session: Session, filters: job_search.Filter, sort: job_search.Sort, *, after: str | None, size: int
) -> JobsPage:
    """A page of jobs in one of several orders."""
    page = job_search.find(session, filters, sort, after=after, size=size)
    return JobsPage(api_pages.rows_of(session, page.ids), page)


def newest_job(session: Session, campaign: CampaignRow) -> JobRow | None:
    """The job of a campaign that was submitted last; None where the campaign is gone."""
    key = campaign_names.look_up(session, reference(campaign.owner, campaign.name), None)
    if key is None:
        return None
    found = jobs(
        session, job_search.Filter(campaign=key.number), job_search.Sort.NEWEST, after=None, size=1
    ).rows
    return found[0] if found else None


def archived_jobs(
    session: Session, archive: Archive, filters: job_search.Filter, *, after: str | None, size: int
) -> JobsPage:
    """A page of archived jobs, newest first. `after`: the number of the last one seen."""
    if after is not None and not (after.isdecimal() and after.isascii() and len(after) < 19):
        raise RequestError(f"`{after[:40]}` is not a place in this listing", hint="start from its first page")
    page = archived.jobs(session, archive, filters, before=None if after is None else int(after), limit=size)
    ids, token = [row.id for row in page.jobs], None if page.next is None else str(page.next)
    partial = token is not None and len(ids) < size
    return JobsPage(page.jobs, job_search.IdPage(ids, token, None, job_search.Sort.NEWEST, partial))


class CampaignQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which campaigns, in which order. `text`: part of the name, whatever the case. `archived`: those in the archive,
    the newest first."""

    text: str = ""
    owner: str | None = None
    unfinished: bool = False
    archived: bool = False
    sort: str = "newest"
    offset: int = 0
    size: int = 50


def campaigns(session: Session, query: CampaignQuery) -> tuple[list[CampaignRow], bool]:
    """A page of campaigns, and whether there are more."""
    if query.offset > OFFSET_MAX:
        raise RequestError(
            f"only the first {OFFSET_MAX:,} campaigns can be paged through", hint="search by name"
        )
    if query.archived:
        most = min(query.offset + query.size + 1, PAGE_MAX)
        kept = archived.campaigns(session, owner=query.owner, before=None, limit=most)[query.offset :]
        return kept[: query.size], len(kept) > query.size
    rows = _campaign_rows(session, query)
    return api_pages.campaigns_of(session, rows[: query.size]), len(rows) > query.size


def _campaign_rows(session: Session, query: CampaignQuery) -> list[StoredCampaign]:
    """By an index where one has the order; else those that are open, or CAMPAIGNS_LOOK of the newest, sorted."""
    held = query.text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
    page = {"limit": query.size + 1, "offset": query.offset}
    if query.unfinished:
        return session.rows(
            "campaigns_unfinished", pattern=f"%{held}%", owner=query.owner or "", sort=query.sort, **page
        )
    if not held and query.sort == "newest":
        if query.owner is None:
            return session.rows("campaigns_newest", **page)
        return session.rows("campaigns_newest_of", owner=query.owner, **page)
    if not held and query.sort == "ended" and query.owner is None:
        return session.rows("campaigns_ended", **page)
    words = {"pattern": f"%{held}%", "sort": query.sort, "look": CAMPAIGNS_LOOK, **page}
    if query.owner is None:
        return session.rows("campaigns_sorted", **words)
    return session.rows("campaigns_sorted_of", owner=query.owner, **words)


def counts(session: Session, owner: str | None) -> Counts:
    """Jobs by state and sums, of all or of one owner."""
    if owner is None:
        return api_pages.counts(session)
    return api_pages.counts_of(dict(session.rows("totals_of_owner", owner=owner)))


def campaign_choices(session: Session, owner: str | None) -> list[str]:
    """References of campaigns to choose from, the newest thousand."""
    if owner is None:
        return _references(session.rows("campaign_known"))
    return _references(session.rows("campaigns_owned", owner=owner, limit=CHOICES_MAX))


def _references(rows: list[Row]) -> list[str]:
    return sorted(reference(owner, name) for name, owner in rows)


def failing(session: Session, owner: str | None) -> list[str]:
    """The names of campaigns in which something failed."""
    if owner is None:
        rows = session.rows("campaigns_failing", limit=CHOICES_MAX)
    else:
        rows = session.rows("campaigns_failing_of", owner=owner, limit=CHOICES_MAX)
    return _references(rows)


def references(session: Session, owner: str | None, numbers: frozenset[int]) -> dict[int, str]:
    """How those of these campaigns are named that are an owner's (None = all), by number."""
    rows = session.rows("campaign_owners", ids=sorted(numbers)) if numbers else []
    return {number: reference(of, name) for number, name, of in rows if owner in (None, of)}


def owners(session: Session, jobs: list[int]) -> dict[int, str]:
    """Whose each of these jobs is; those that there are not are left out."""
    return rights.owners_of(session, jobs)


def failures(
    session: Session,
    *,
    campaign: int | None,
    owner: str | None,
    before: int | None,
    limit: int = FAILURES_MAX,
) -> FailurePage:
    """Failures, newest first; only those in an owner's newest campaigns if an owner is named."""
    if campaign is not None or owner is None:
        return api_pages.failures(session, campaign=campaign, before=before, limit=limit)
    numbers = values(session, "campaigns_of_owner", owner=owner, limit=CAMPAIGNS_MAX)
    top = TOP if before is None else before
    found: list[int] = []
    for number in numbers:
        found += values(session, "failure_ids_of_campaign", campaign=number, before=top, limit=limit)
    ids = heapq.nlargest(limit, found)
    return api_pages.failure_page(session, session.rows("failures_by_id", ids=ids) if ids else [], limit)


class SiteActivity(NamedTuple):
    """Jobs of a site by state, and what it last showed."""

    jobs: dict[str, int]
    seen_us: int
    view: SiteViews


def running(session: Session) -> dict[str, SiteActivity]:
    """The activity of each site, by its name."""
    names: dict[int, str] = dict(session.rows("site_names"))
    states: dict[int, dict[str, int]] = defaultdict(dict)
    for name, jobs in session.rows("totals"):
        kind, _, place = name.partition("/")
        if kind == "site" and jobs:
            site, state = map(int, place.split("/"))
            states[site][JOB_STATES[state]] = jobs
    told = site_views.last_views(session)
    return {
        name: SiteActivity(states[site], *told.get(site, (0, SiteViews()))) for site, name in names.items()
    }


class AllocationsPage(NamedTuple):
    """Rows, and where the next page starts."""

    rows: list[AllocationRow]
    after: str | None


def allocations(
    session: Session, *, site: str | None, state: str, after: str | None, size: int
) -> AllocationsPage:
    """Allocations of a site or of all, newest first. `after`: `TIME.NAME` of the last one seen."""
    names: dict[int, str] = dict(session.rows("site_names"))
    time, _, name = (after or "").partition(".")
    if after is not None and not (time.isdecimal() and time.isascii() and len(time) < 19):
        raise RequestError(f"`{after[:40]}` is not a place in this listing", hint="start from its first page")
    before = int(time) if after else TOP
    only = {"state": state} if state else {}
    query = "allocations_newest_in" if state else "allocations_newest"
    legs = [
        session.rows(query, site=number, before=before, name=name, limit=size + 1, **only)
        for number, each in names.items()
        if site is None or each == site
    ]
    rows = list(heapq.merge(*legs, key=lambda row: (-row.at_us, row.name)))
    shown = [AllocationRow(**{**row._asdict(), "site": names[row.site]}) for row in rows[:size]]
    return AllocationsPage(shown, f"{shown[-1].at_us}.{shown[-1].name}" if len(rows) > size else None)


def allocation_states(session: Session) -> dict[str, dict[str, tuple[int, int]]]:
    """By site and state: number of allocations, and of nodes."""
    names: dict[int, str] = dict(session.rows("site_names"))
    found: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for site, state, number, nodes in session.rows("allocations_states"):
        found[names[site]][state] = (int(number), int(nodes))
    return found


class DeliveredFile(msgspec.Struct, frozen=True):
    """A delivered file."""

    job: int
    number: int
    campaign: str
    owner: str
    name: str
    url: str
    size_bytes: int
    place: int  #: among those of its job, in the order in which they were delivered


def delivered(
    session: Session, *, campaign: int | None, after: str | None, size: int
) -> tuple[list[DeliveredFile], str | None]:
    """Delivered files, those of the newest jobs first, and where the next page starts."""
    job, number = (int(each) for each in after.split(".")) if after and _is_place(after) else (TOP, TOP)
    if campaign is None:
        rows = session.rows("outputs_newest", job=job, number=number, limit=size + 1)
    else:
        rows = session.rows("outputs_newest_of", campaign=campaign, job=job, number=number, limit=size + 1)
    known = session.rows("campaign_owners", ids=sorted({row.campaign for row in rows})) if rows else []
    names = {number: (name, owner) for number, name, owner in known}
    shown = [
        DeliveredFile(
            row.job, row.number, *names.get(row.campaign, ("", "")), row.name, row.url, row.size_bytes, row.place
        )
        for row in rows[:size]
    ]  # fmt: skip
    return shown, f"{shown[-1].job}.{shown[-1].number}" if len(rows) > size else None


def _is_place(text: str) -> bool:
    pieces = text.split(".")
    return len(pieces) == 2 and all(each.isdecimal() and each.isascii() and len(each) < 19 for each in pieces)


class LikeFailures(NamedTuple):
    """Failures of one class and cause: the newest, and the others."""

    newest: FailureRow
    others: list[FailureRow]


def alike(failures: Sequence[FailureRow]) -> list[LikeFailures]:
    """Failures, newest first, with those that differ in numbers only as one group."""
    found: dict[tuple[str, str], LikeFailures] = {}
    for each in failures:
        key = (str(each.evidence.failure), cause_of(each.evidence))
        if key in found:
            found[key].others.append(each)
        else:
            found[key] = LikeFailures(each, [])
    return list(found.values())


class LogText(NamedTuple):
    """What came of a request for a payload's output."""

    event: int | None
    answered: bool
    found: bool
    stdout: str
    stderr: str


def log(session: Session, job: int, request: int) -> LogText | None:
    """A request of this job; None if there is no such, or not any more."""
    rows = session.rows("log_of_job", id=request, job=job)
    if not rows:
        return None
    event, answered, found, stdout, stderr = rows[0]
    texts = (bytes(each or b"").decode(errors="replace") for each in (stdout, stderr))
    return LogText(event, bool(answered), bool(found), *texts)


def logs(session: Session, job: int) -> list[tuple[int, int | None, bool, bool]]:
    """The latest requests of a job: number, event, whether answered, whether found."""
    return [
        (number, event, bool(answered), bool(found))
        for number, event, answered, found in session.rows("logs_of_job", job=job, limit=LOGS_SHOWN)
    ]


def reached(session: Session) -> int:
    """The number of the last change."""
    return feed.reached(session)
