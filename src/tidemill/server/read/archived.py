"""What pages and the API show of the archive: campaigns from the database, the rest from its files. Bounded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tidemill.errors import SiteError
from tidemill.model.failure import Evidence
from tidemill.model.figures.activity import Activity
from tidemill.model.job import JobSpec
from tidemill.model.state import JobState
from tidemill.server.archive import lookup
from tidemill.server.archive.lookup import ArchivedPlace
from tidemill.server.archive.parquet import Archive
from tidemill.server.audit import activities
from tidemill.server.database.rows import ArchivedCampaign
from tidemill.server.database.store import Session, row
from tidemill.server.read.job_search import LOOK, ROUNDS, TOP, Filter
from tidemill.wire.api import (
    Attempt,
    CampaignRow,
    FailurePage,
    FailureRow,
    JobDetail,
    JobOutput,
    JobPage,
    JobRow,
    OutputPage,
    OutputRow,
    PayloadUsage,
)

ATTEMPTS_SHOWN = 100
TRACED_JOBS = 2_000
TRACED_FILES = 20
RANGES = 1_000  #: ranges of jobs examined in one step
_COLUMNS = {"app": "app", "state": "state", "site": "site", "name": "name", "owner": "owner"}
Range = tuple[int, int, int, str]
"""First and last job, batch and month."""


def campaign(session: Session, number: int) -> CampaignRow | None:
    """A campaign of the archive; None if it is not there."""
    found = row(session, "archived_campaign", id=number)
    return None if found is None else _campaign(found)


def campaigns(session: Session, *, owner: str | None, before: int | None, limit: int) -> list[CampaignRow]:
    """Campaigns of the archive, of an owner or of all, the newest first."""
    place = {"before": TOP if before is None else before, "limit": limit}
    rows = session.rows("archived_campaigns", owner=owner or "", any_owner=int(owner is None), **place)
    return [_campaign(each) for each in rows]


def _campaign(archived: ArchivedCampaign) -> CampaignRow:
    return CampaignRow(
        name=archived.name, owner=archived.owner, shares=archived.shares, created_us=archived.created_us,
        jobs=archived.jobs, states=msgspec.json.decode(archived.states), events=archived.events,
        events_done=archived.events_done, events_failed=archived.events_failed, usage=archived.usage,
        failures=msgspec.json.decode(archived.failures), first_started_us=archived.first_started_us,
        last_ended_us=archived.last_ended_us, archived=True, events_canceled=archived.events_canceled,
    )  # fmt: skip


def job(session: Session, archive: Archive, number: int) -> JobDetail | None:
    """Everything about an archived job; None if it is not in the archive. Raises SiteError."""
    place = lookup.place_of_job(session, number)
    if place is None:
        return None
    found = _rows(archive, place, "jobs", [number], key="id")
    if not found:
        return None
    (own,) = found
    leases = _rows(archive, place, "leases", [number])[-ATTEMPTS_SHOWN:]
    failed = sorted(_rows(archive, place, "failures", [number]), key=lambda each: -each["evidence_at"])
    spec = msgspec.structs.replace(
        msgspec.json.decode(own["spec"], type=JobSpec), events=own["events"], priority=own["priority"],
        name=own["name"] or None,
    )  # fmt: skip
    return JobDetail(
        row=_row(own), spec=spec, seed_base=own["seed_base"], done=own["done"], failed=own["failed"],
        canceled=own.get("canceled", ""),
        usage=PayloadUsage(**{name: own[name] for name in PayloadUsage.__struct_fields__}),
        attempts=[_attempt(each) for each in leases], failures=[_failure(each) for each in failed][:ATTEMPTS_SHOWN],
        outputs=[_output(each).output for each in _rows(archive, place, "outputs", [number])],
        waits_for=None, waits_hint=None, remark=own["remark"], archived=True,
    )  # fmt: skip


def activity(archive: Archive, place: ArchivedPlace, number: int = 0) -> Activity:
    """What happened in an archived campaign (0) or one of its larger jobs over time; nothing of a batch that an older
    version wrote. Raises SiteError."""
    if not archive.path(place.month, place.batch, "activity").exists():
        return Activity()
    wanted = [("campaign", "==", place.campaign), ("job", "==", number)]
    rows = archive.matching(place.month, place.batch, "activity", wanted)
    return activities.of_rows(rows)


def jobs(session: Session, archive: Archive, filters: Filter, *, before: int | None, limit: int) -> JobPage:
    """A page of archived jobs, newest first; short pages with a next are for filters that few jobs pass."""
    found: list[JobRow] = []
    top = TOP if before is None else before
    for _ in range(ROUNDS):
        ranges = _ranges(session, filters, top)
        if not ranges:
            return JobPage(jobs=found, next=None)
        for row_ in _read(archive, ranges):
            if _passes(row_, filters):
                found.append(_row(row_))
                if len(found) == limit:
                    return JobPage(jobs=found, next=row_["id"])
        top = ranges[-1][0]
    return JobPage(jobs=found, next=top)


def _ranges(session: Session, filters: Filter, top: int) -> list[Range]:
    """The next ranges of archived jobs before one, the newest first: LOOK jobs at most."""
    if filters.campaign is not None:
        place = lookup.place_of_campaign(session, filters.campaign)
        if place is None:
            return []
        rows = session.rows("archived_ranges_of", campaign=filters.campaign, before=top, limit=RANGES)
        found = [(first, last, place.batch, place.month) for first, last in rows]
    else:
        any_owner = int(filters.owner is None)
        found = session.rows(
            "archived_ranges", owner=filters.owner or "", any_owner=any_owner, before=top, limit=RANGES
        )
    chosen: list[Range] = []
    left = LOOK
    for first, last, batch, month in found:
        last = min(last, top - 1)
        begin = max(first, last - left + 1)
        chosen.append((begin, last, batch, month))
        left -= last - begin + 1
        if left <= 0 or begin > first:
            break
    return chosen


def _read(archive: Archive, ranges: list[Range]) -> list[dict[str, Any]]:
    """Rows of the jobs in some ranges, the newest first."""
    by_file: dict[tuple[str, int], list[int]] = defaultdict(list)
    for first, last, batch, month in ranges:
        by_file[(month, batch)] += range(first, last + 1)
    rows = [
        each
        for (month, batch), ids in by_file.items()
        for each in archive.rows(month, batch, "jobs", key="id", values=ids)
    ]
    return sorted(rows, key=lambda each: -each["id"])


def _passes(found: dict[str, Any], filters: Filter) -> bool:
    if filters.begins is not None and not found["name"].startswith(filters.begins):
        return False
    return all(getattr(filters, key) in (None, found[column]) for key, column in _COLUMNS.items())


class RowsWanted(NamedTuple):
    """Which rows of an archived job or its campaign: of jobs before a number (newest first), or after one (oldest
    first)."""

    place: ArchivedPlace
    job: int | None
    before: int | None
    limit: int
    after: int | None = None


def place_of(session: Session, campaign: int | None, job: int | None) -> ArchivedPlace | None:
    """Where the job or the campaign is that a request names; None if that is not in the archive."""
    if job is not None:
        return lookup.place_of_job(session, job)
    return None if campaign is None else lookup.place_of_campaign(session, campaign)


def failures(session: Session, archive: Archive, wanted: RowsWanted) -> FailurePage:
    """Failures, newest jobs first."""
    rows, reached = _wanted(session, archive, wanted, table="failures")
    rows.sort(key=lambda each: (-each["job"], -each["evidence_at"]))
    return FailurePage(failures=[_failure(each) for each in rows], next=reached)


def outputs(session: Session, archive: Archive, wanted: RowsWanted) -> OutputPage:
    """Delivered files by whole jobs, newest first, or oldest first after a job."""
    rows, reached = _wanted(session, archive, wanted, table="outputs")
    sign = -1 if wanted.after is None else 1
    rows.sort(key=lambda each: (sign * each["job"], each["number"]))
    return OutputPage(outputs=[_output(each) for each in rows], next=reached)


def jobs_of(session: Session, archive: Archive, numbers: Sequence[int]) -> list[JobRow]:
    """The jobs with these numbers that are in the archive."""
    return [_row(each) for each in _of_numbers(session, archive, numbers, table="jobs", key="id")]


def outputs_of(session: Session, archive: Archive, numbers: Sequence[int]) -> list[JobOutput]:
    """Delivered files of the jobs with these numbers that are in the archive, the oldest job first."""
    rows = _of_numbers(session, archive, numbers, table="outputs", key="job")
    return [_output(each) for each in sorted(rows, key=lambda each: (each["job"], each["number"]))]


def _of_numbers(
    session: Session, archive: Archive, numbers: Sequence[int], *, table: str, key: str
) -> list[dict[str, Any]]:
    by_file: dict[tuple[str, int], list[int]] = defaultdict(list)
    place: ArchivedPlace | None = None
    last = -1
    for number in sorted(numbers):
        if number > last:  # not in the range of the number before
            found = row(session, "archived_range", job=number)
            held = found is not None and found.first <= number <= found.last
            last = found.last if found is not None and held else number
            place = lookup.place_of_job(session, number) if held else None
        if place is not None:
            by_file[place.month, place.batch].append(number)
    return [
        each
        for (month, batch), ids in by_file.items()
        for each in archive.rows(month, batch, table, key=key, values=ids)
    ]


class OfSites:
    """Campaign, owner and application of archived jobs that a site had: call it. In one answer, `jobs_max` jobs of
    `files_max` batches are read; jobs beyond, and those of files that cannot be read, have None."""

    def __init__(
        self,
        session: Session,
        archive: Archive,
        *,
        jobs_max: int = TRACED_JOBS,
        files_max: int = TRACED_FILES,
    ) -> None:
        self._session, self._archive = session, archive
        self._jobs, self._files = jobs_max, files_max

    def __call__(self, site: str, jobs: Sequence[int]) -> dict[int, tuple[str, str, str] | None]:
        """By job; one that is not in the archive, or that the site never had, is left out."""
        found: dict[int, tuple[str, str, str] | None] = {}
        by_file: dict[tuple[str, int], dict[int, ArchivedPlace]] = defaultdict(dict)
        for number in jobs[: self._jobs]:
            place = lookup.place_of_job(self._session, number)
            if place is not None:
                by_file[place.month, place.batch][number] = place
        found |= dict.fromkeys(jobs[self._jobs :])
        self._jobs -= min(len(jobs), self._jobs)
        for places in by_file.values():
            found |= self._of_file(site, places) if self._files > 0 else dict.fromkeys(places)
            self._files -= 1
        return found

    def _of_file(self, site: str, places: dict[int, ArchivedPlace]) -> dict[int, tuple[str, str, str] | None]:
        place, numbers = next(iter(places.values())), sorted(places)
        try:
            had = {
                each["job"] for each in _rows(self._archive, place, "leases", numbers) if each["site"] == site
            }
            rows = _rows(self._archive, place, "jobs", sorted(had), key="id") if had else []
        except SiteError:  # the allocation is known all the same
            return dict.fromkeys(places)
        return {each["id"]: (each["campaign"], each["owner"], each["app"]) for each in rows}


def _wanted(
    session: Session, archive: Archive, wanted: RowsWanted, *, table: str
) -> tuple[list[dict[str, Any]], int | None]:
    """Rows of a job, or of the next jobs of the campaign, whole jobs until there are `limit` rows; where to go on."""
    place = wanted.place
    if wanted.job is not None:
        return _rows(archive, place, table, [wanted.job]), None
    found: list[dict[str, Any]] = []
    at = wanted.after
    if at is None:
        at = TOP if wanted.before is None else wanted.before
    next_jobs = _jobs_before if wanted.after is None else _jobs_after
    for _ in range(ROUNDS):
        ids = next_jobs(session, place.number, at)
        if not ids:
            return found, None
        found += _rows(archive, place, table, ids)
        at = ids[-1]
        if len(found) >= wanted.limit:
            break
    return found, at


def _jobs_before(session: Session, campaign: int, top: int) -> list[int]:
    """The next archived jobs of a campaign before one, the newest first: LOOK at most."""
    ranges = _ranges(session, Filter(campaign=campaign), top)
    return [each for first, last, _, _ in ranges for each in range(last, first - 1, -1)]


def _jobs_after(session: Session, campaign: int, after: int) -> list[int]:
    """The next archived jobs of a campaign after one, the oldest first: LOOK at most."""
    ids: list[int] = []
    for first, last in session.rows("archived_ranges_from", campaign=campaign, after=after, limit=RANGES):
        ids += range(max(first, after + 1), last + 1)[: LOOK - len(ids)]
        if len(ids) >= LOOK:
            break
    return ids


def _rows(
    archive: Archive, place: ArchivedPlace, table: str, jobs: Sequence[int], *, key: str = "job"
) -> list[dict[str, Any]]:
    rows = archive.rows(place.month, place.batch, table, key=key, values=jobs)
    if table == "failures":
        for each in rows:
            each["evidence"] = msgspec.json.decode(each["evidence"], type=Evidence)
            each["evidence_at"] = each["evidence"].at_us
    return rows


def _row(found: dict[str, Any]) -> JobRow:
    return JobRow(
        id=found["id"], campaign=found["campaign"], owner=found["owner"], name=found["name"], app=found["app"],
        state=JobState(found["state"]), site=found["site"] or None, events=found["events"],
        events_done=found["events_done"], events_failed=found["events_failed"], events_leased=0,
        priority=found["priority"],
        created_us=found["created_us"], started_us=found["started_us"], ended_us=found["ended_us"],
        reason=found["reason"], events_canceled=found.get("events_canceled", 0),
    )  # fmt: skip


def _attempt(found: dict[str, Any]) -> Attempt:
    return Attempt(
        lease=found["lease"], site=found["site"], state=found["state"], first=found["first"], count=found["count"],
        leased_us=found["leased_us"], ended_us=found["ended_us"], reason=found["reason"],
    )  # fmt: skip


def _failure(found: dict[str, Any]) -> FailureRow:
    return FailureRow(
        job=found["job"], event=found["event"], seed=found["seed"], site=found["site"], final=bool(found["final"]),
        evidence=found["evidence"],
    )  # fmt: skip


def _output(found: dict[str, Any]) -> JobOutput:
    output = OutputRow(
        name=found["name"], url=found["url"], size_bytes=found["size_bytes"], sha256=found["sha256"],
        events=found["events"],
    )  # fmt: skip
    return JobOutput(job=found["job"], output=output)
