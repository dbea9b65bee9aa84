"""What the API and others read: pages, details, sums. Bounded, by keyset, through the indexes; never writes.

A filtered page visits only the (kind, state, site) ranges that the counters say are not empty, whatever is asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from tidemill import clock
from tidemill.errors import did_you_mean
from tidemill.model.campaign import reference
from tidemill.model.failure import Evidence
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.model.pattern import pattern_fault
from tidemill.model.seed import seed
from tidemill.model.state import JobState, Phase
from tidemill.server.archive.parquet import Archive
from tidemill.server.audit import traces
from tidemill.server.core import campaign_names, rights, site_views
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.core.ending import without
from tidemill.server.core.specifications import shortening
from tidemill.server.database.rows import (
    ACTIVE,
    JOB_STATES,
    LEASE_STATES,
    RUNNING,
    JobKind,
    Site,
    StoredCampaign,
    StoredFailure,
    StoredJob,
    StoredLease,
    StoredOutput,
    usage_of,
)
from tidemill.server.database.store import Session, values
from tidemill.server.database.unit_of_work import specs
from tidemill.server.errors import MissingError, RequestError
from tidemill.server.hospital import ward_stays
from tidemill.server.read import archived, job_search
from tidemill.server.read.assigned import LeasedJob, has_unstarted, phases_of, phases_of_running
from tidemill.server.read.job_search import TOP, Filter, Leg, Sort
from tidemill.server.read.waiting import Cause, Known, after_texts, fetching_text, hint_of, waits_for
from tidemill.wire.api import (
    PAGE_MAX,
    AllocationRow,
    Attempt,
    CampaignRow,
    Capacity,
    Counts,
    FailurePage,
    FailureRow,
    JobDetail,
    JobOutput,
    JobPage,
    JobRow,
    KeptOutputs,
    OutputPage,
    OutputRow,
    OwnerRow,
    SiteApplication,
    SiteRow,
)
from tidemill.wire.core_hours import PlacementRow
from tidemill.wire.views import CACHES, REFUSED, SUMS

ATTEMPTS_SHOWN = 100
FAILURES_SHOWN = 100
PHASE_JOBS_MAX = 100
PATTERNS_READ = 200
_OfCampaign = dict[int, dict[str, int]]


def limit_of(limit: int | None, default: int = 100) -> int:
    """A page's size within limits. Raises RequestError."""
    if limit is None:
        return default
    if not 1 <= limit <= PAGE_MAX:
        raise RequestError(f"`limit` is {limit}, legal is 1 to {PAGE_MAX}")
    return limit


def kinds_of(session: Session, jobs: Iterable[StoredJob]) -> dict[int, JobKind]:
    """The kinds of some jobs."""
    numbers = sorted({job.kind for job in jobs})
    return {each.id: each.kind for each in session.rows("kinds_by_id", ids=numbers)} if numbers else {}


def sites(session: Session) -> list[Site]:
    """All sites, those included that are only named by jobs."""
    result = [stored.site for stored in session.rows("sites")]
    down = {row.site: (row.until_us, row.reason) for row in session.rows("down_sites")}
    for each in result:
        each.down_us, each.down_reason = down.get(each.id, (0, ""))
    return result


def jobs(
    session: Session,
    filters: Filter,
    *,
    before: int | None,
    limit: int | None,
    archive: Archive | None = None,
) -> JobPage:
    """A page of jobs, newest first; of the archive if one is named, and for a campaign that is in it."""
    if archive is not None:
        return archived.jobs(session, archive, filters, before=before, limit=limit_of(limit))
    size, top = limit_of(limit), TOP if before is None else before
    legs: set[Leg] | job_search.ManyLegs | None = None
    if filters.by_legs:
        found = job_search.legs_of(session, filters)
        legs = set(found) if isinstance(found, dict) else found
    if filters.name is not None:
        ids = _named(session, filters.name, legs, top, size)
    elif isinstance(legs, job_search.ManyLegs):
        ids, reached = job_search.looked_by_id(session, legs, top, size=size, newest=True)
        return JobPage(jobs=rows_of(session, ids), next=reached)
    else:
        ids = job_search.by_id(session, legs, top, size=size, newest=True)
    return JobPage(jobs=rows_of(session, ids), next=ids[-1] if len(ids) == size else None)


def _named(
    session: Session, name: str, legs: set[Leg] | job_search.ManyLegs | None, top: int, size: int
) -> list[int]:
    ids: list[int] = []
    while len(ids) < size:
        rows = session.rows("jobs_newest_named", name=name, before=top, limit=PAGE_MAX)
        ids += [row.id for row in job_search.passing(rows, legs)]
        if len(rows) < PAGE_MAX:
            break
        top = rows[-1].id
    return ids[:size]


def _inputs_first(
    session: Session,
    job: StoredJob,
    waits: tuple[Cause, str | None],
    having: set[int],
    of_site: dict[int, str],
) -> tuple[Cause, str | None]:
    """What a job that sites have waits for, where it waits for inputs before anything else."""
    room = site_views.awaited_inputs(session, job.id, having)
    if room is not None:
        site, text = room
        return Cause.STAGE_FULL, hint_of(Cause.STAGE_FULL, f"site {of_site.get(site, '')}: {text}")
    cause, _ = waits
    if cause is Cause.RUNNING and job.n_done:
        return waits
    fetched = site_views.fetched_inputs(session, job.id, having)
    if fetched is None:
        return waits
    site, files = fetched
    return Cause.FETCHING, hint_of(Cause.FETCHING, fetching_text(of_site.get(site, ""), files))


def rows_of(session: Session, ids: list[int]) -> list[JobRow]:
    """Jobs as rows of a listing, in the order of `ids`."""
    found = {job.id: job for job in session.rows("jobs_by_id", ids=ids)} if ids else {}
    known = kinds_of(session, found.values())
    campaigns = {known[job.kind].campaign for job in found.values()}
    names = _campaigns_of(session, campaigns)
    of_site: dict[int, str] = dict(session.rows("site_names"))
    is_any = any(job.state == RUNNING for job in found.values())
    phases = phases_of(session, found.values(), sites(session)) if is_any else {}
    return [_row(found[each], known, names, of_site, phases) for each in ids if each in found]


def _campaigns_of(session: Session, numbers: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Names and owners of campaigns."""
    ids = sorted(set(numbers))
    rows = session.rows("campaign_owners", ids=ids) if ids else []
    return {number: (name, owner) for number, name, owner in rows}


def _row(
    job: StoredJob,
    known: dict[int, JobKind],
    names: dict[int, tuple[str, str]],
    of_site: dict[int, str],
    phases: dict[int, Phase],
) -> JobRow:
    kind = known[job.kind]
    campaign, owner = names[kind.campaign]
    return JobRow(
        id=job.id, campaign=campaign, owner=owner, name=job.name, app=kind.app, state=JOB_STATES[job.state],
        site=of_site.get(job.site), events=job.events, events_done=job.n_done, events_failed=job.n_failed,
        events_leased=job.n_leased, priority=-job.rank, created_us=job.created_us, started_us=job.started_us,
        ended_us=job.ended_us, reason=job.reason, ends=JOB_STATES[job.ends] if job.ends else "",
        phase=phases.get(job.id, ""), events_canceled=job.n_canceled,
    )  # fmt: skip


def _kept(job: StoredJob, of_site: dict[int, str]) -> KeptOutputs | None:
    """What is done of a job and not delivered."""
    if not job.kept:
        return None
    return KeptOutputs(
        job=job.id, site=of_site.get(job.place, ""), sent=job.sent, under_way=bool(job.delivering),
        events=str(without(IntervalSet.parse(job.done), job.delivered)),
    )  # fmt: skip


def job(
    session: Session,
    number: int,
    *,
    cache: dict[int, JobSpec],
    silent: set[str],
    archive: Archive | None = None,
) -> JobDetail:
    """Everything about one job, which may be in the archive. Raises MissingError."""
    stored = session.rows("jobs_by_id", ids=[number])
    if not stored:
        detail = archived.job(session, archive or Archive(), number)
        if detail is None:
            raise rights.missing_job(number)
        return detail
    found: StoredJob = stored[0]
    all_sites = sites(session)
    known = kinds_of(session, [found])
    kind = known[found.kind]
    of_site = {site.id: site.name for site in all_sites}
    spec = msgspec.structs.replace(
        specs(session, cache, [found.spec])[found.spec], events=found.events, priority=-found.rank,
        name=found.name or None,
    )  # fmt: skip
    deps = session.rows("deps_of", job=number)
    names = _campaigns_of(session, [kind.campaign, *(row.on_campaign for row in deps)])
    _, own = names[kind.campaign]
    awaited = {each: name if of == own else reference(of, name) for each, (name, of) in names.items()}
    leases = session.rows("leases_of_job", job=number, limit=ATTEMPTS_SHOWN)
    more = Known(
        spec, after_texts(deps, awaited, spec), silent, leases, _ward_of(session, found), clock.now_us(), own
    )
    cause, hint = waits_for(found, kind, all_sites, more)
    having = {each.site for each in leases if each.state == ACTIVE}
    if cause in (Cause.RUNNING, Cause.NO_ALLOCATION, Cause.ASSIGNED):
        cause, hint = _inputs_first(session, found, (cause, hint), having, of_site)
    phases = phases_of(session, [found], all_sites)
    return JobDetail(
        row=_row(found, known, names, of_site, phases), spec=spec, seed_base=found.seed_base, done=found.done,
        failed=found.failed, canceled=found.canceled, leased=found.leased, usage=usage_of(found.usage),
        attempts=[_attempt(each, of_site) for each in reversed(leases)],
        failures=failures(session, job=number, limit=FAILURES_SHOWN).failures,
        outputs=[_output(row) for row in session.rows("outputs_of_jobs", ids=[number])], waits_for=cause,
        waits_hint=hint, remark=_remark(session, number) or _shortened(session, number), kept=_kept(found, of_site),
        routes=site_views.routes_of(session, number, {each.site for each in leases})
        if any(each.is_routed for each in spec.inputs)
        else [],
        stays=ward_stays.stays_of(session, [number]).get(number, []),
    )  # fmt: skip


def _ward_of(session: Session, job: StoredJob) -> str:
    """The name of the ward in which a job waits; empty = it waits in none."""
    wards: dict[int, str] = dict(session.rows("wards")) if job.place < 0 else {}
    return wards.get(job.ward, "")


def _remark(session: Session, number: int) -> str:
    rows = session.rows("submitter_of", job=number)
    return str(rows[0].remark) if rows and number < rows[0].first_job + rows[0].count else ""


def _shortened(session: Session, number: int) -> str:
    is_short = number in shortening.shortened(session, [number])
    return "most of its specification was removed, as it was canceled before it ran" if is_short else ""


def _attempt(lease: StoredLease, of_site: dict[int, str]) -> Attempt:
    return Attempt(
        lease=lease.lease, site=of_site.get(lease.site, ""), state=LEASE_STATES[lease.state], first=lease.first,
        count=lease.count, leased_us=lease.leased_us, ended_us=lease.ended_us, reason=lease.reason,
    )  # fmt: skip


def _output(output: StoredOutput) -> OutputRow:
    return OutputRow(
        name=output.name,
        url=output.url,
        size_bytes=output.size_bytes,
        sha256=output.sha256,
        events=output.events,
    )


# ---- campaigns --------------------------------------------------------------------------------------------------


def campaigns(
    session: Session, *, owner: str | None = None, before: int | None = None, limit: int | None = None
) -> list[CampaignRow]:
    """Campaigns of an owner or of all, newest first."""
    place = {"before": TOP if before is None else before, "limit": limit_of(limit, PAGE_MAX)}
    rows = (
        session.rows("campaigns", **place)
        if owner is None
        else session.rows("campaigns_of", owner=owner, **place)
    )
    return campaigns_of(session, rows)


def campaign(session: Session, key: CampaignKey) -> CampaignRow:
    """One campaign, also from the archive. Raises MissingError if it does not exist any more.

    Its sums are at least as new as its states, for the writer may commit between two queries: who waits for the last
    job to end finds all events in the same answer.
    """
    counts = _counts_of(session, [key.number])
    rows: list[StoredCampaign] = session.rows("campaign_whole", id=key.number)
    row = None if rows else archived.campaign(session, key.number)
    if row is not None:
        return row
    if not rows:
        raise campaign_names.missing(session, key.reference, key.owner)
    return _with_phases(session, {key.number: _with_counts(rows, *counts)[0]})[0]


def campaigns_of(session: Session, rows: list[StoredCampaign]) -> list[CampaignRow]:
    """Rows of `campaigns` with their jobs by state and failures by class."""
    numbers = [each.id for each in rows]
    found = _with_counts(rows, *_counts_of(session, numbers))
    return _with_phases(session, dict(zip(numbers, found, strict=True)))


def _with_phases(session: Session, found: dict[int, CampaignRow]) -> list[CampaignRow]:
    """The rows with the phase of those whose RUNNING jobs, the newest PHASE_JOBS_MAX of them, do not run."""
    running = {number: row for number, row in found.items() if row.states.get(JobState.RUNNING)}
    known = sites(session) if running else []
    if not any(map(has_unstarted, known)):
        return list(found.values())
    ids = {
        number: job_search.find(
            session,
            Filter(campaign=number, state=JobState.RUNNING),
            Sort.NEWEST,
            after=None,
            size=PHASE_JOBS_MAX,
        ).ids
        for number in running
    }
    leased = session.rows("leased_of_jobs", ids=[job for of_campaign in ids.values() for job in of_campaign])
    phases = phases_of_running(session, [LeasedJob(*row) for row in leased], known)
    for number, row in running.items():
        shown = {phases.get(job, "") for job in ids[number]}
        if shown and "" not in shown:
            row.phase = Phase.ASSIGNED if Phase.ASSIGNED in shown else Phase.WAITING
    return list(found.values())


def _counts_of(session: Session, ids: list[int]) -> tuple[_OfCampaign, _OfCampaign]:
    """The jobs by state, and failures by class, of each campaign."""
    states: _OfCampaign = defaultdict(dict)
    for number, state, jobs in session.rows("counts_of_campaigns", ids=ids):
        states[number][JOB_STATES[state]] = int(jobs)
    classes: _OfCampaign = defaultdict(dict)
    for number, failure, count in session.rows("failure_counts", ids=ids):
        classes[number][failure] = count
    return states, classes


def _with_counts(rows: list[StoredCampaign], states: _OfCampaign, classes: _OfCampaign) -> list[CampaignRow]:
    return [
        CampaignRow(
            name=each.name, owner=each.owner, shares=each.shares, created_us=each.created_us, jobs=each.jobs,
            states=states.get(each.id, {}), events=each.events, events_done=each.events_done,
            events_failed=each.events_failed, usage=each.usage, failures=classes.get(each.id, {}),
            first_started_us=each.first_started_us, last_ended_us=each.last_ended_us,
            events_canceled=each.events_canceled,
        )
        for each in rows
    ]  # fmt: skip


def owners(session: Session, own: str | None, *, after: str, limit: int | None) -> list[OwnerRow]:
    """What owners have had of the fair share and what they store, by name; `own` only, None = of all."""
    if own is None:
        rows = session.rows("owners_after", after=after, limit=limit_of(limit, PAGE_MAX))
    else:
        rows = session.rows("owner_row", name=own)
    return [
        OwnerRow(owner=name, shares=shares, used_core_s=used, at_us=at_us, stored_bytes=stored)
        for name, shares, used, at_us, stored in rows
    ]


def counts(session: Session) -> Counts:
    """Jobs by state, and sums."""
    return counts_of(dict(session.rows("totals")))


def counts_of(totals: dict[str, int]) -> Counts:
    """Sums by name, as `UnitOfWork` keeps them, for the API."""
    return Counts(
        jobs=totals.get("jobs", 0),
        states={str(state): totals.get(f"state/{code}", 0) for code, state in enumerate(JOB_STATES)},
        events=totals.get("events", 0), events_done=totals.get("events_done", 0),
        events_failed=totals.get("events_failed", 0), campaigns=totals.get("campaigns", 0),
        events_canceled=totals.get("events_canceled", 0),
    )  # fmt: skip


# ---- failures and outputs ----------------------------------------------------------------------------------------


def failures(
    session: Session,
    *,
    campaign: int | None = None,
    job: int | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> FailurePage:
    """Failures of a job, a campaign or all, newest first."""
    size, top = limit_of(limit), TOP if before is None else before
    if job is not None:
        rows = session.rows("failures_of_job", job=job, before=top, limit=size)
    elif campaign is not None:
        rows = session.rows("failures_of_campaign", campaign=campaign, before=top, limit=size)
    else:
        rows = session.rows("failures_newest", before=top, limit=size)
    return failure_page(session, rows, size)


def failure_page(session: Session, rows: list[StoredFailure], size: int) -> FailurePage:
    """Rows of `failures` as a page; full ones have a next."""
    of_site: dict[int, str] = dict(session.rows("site_names"))
    bases: dict[int, int] = (
        dict(session.rows("seed_bases", ids=sorted({each.job for each in rows}))) if rows else {}
    )
    page = [
        FailureRow(
            job=each.job, event=each.event, seed=None if each.event is None else seed(bases[each.job], each.event),
            site=of_site.get(each.site, ""), final=bool(each.final),
            evidence=msgspec.json.decode(each.evidence, type=Evidence),
        )
        for each in rows
    ]  # fmt: skip
    return FailurePage(failures=page, next=rows[-1].id if len(rows) == size else None)


def outputs(
    session: Session,
    *,
    campaign: int | None = None,
    job: int | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> OutputPage:
    """Delivered files of a job, or of a campaign by whole jobs, newest first."""
    size = limit_of(limit)
    if job is not None:
        rows = session.rows("outputs_of_jobs", ids=[job])
        kept = _kept_of(session, [job])
        return OutputPage(
            outputs=[JobOutput(job=each.job, output=_output(each)) for each in rows], next=None, kept=kept
        )
    if campaign is None:
        raise RequestError("name a job or a campaign whose outputs are to be listed")
    rows = session.rows(
        "outputs_of_campaign", campaign=campaign, before=TOP if before is None else before, limit=size + 1
    )
    page = whole_jobs(session, rows, size)
    page.kept = _kept_of_campaign(session, campaign) if before is None else []
    return page


def whole_jobs(session: Session, rows: list[StoredOutput], size: int) -> OutputPage:
    """A page of files, from up to `size + 1` rows. It ends between two jobs; `next` is its last job, None on the last
    page."""
    more = len(rows) > size
    if more and rows[0].job != rows[-1].job:
        rows = [each for each in rows if each.job != rows[-1].job]
    elif more:  # one job has more files than a page: all of them
        rows = session.rows("outputs_of_jobs", ids=[rows[0].job])
    return OutputPage(
        outputs=[JobOutput(job=each.job, output=_output(each)) for each in rows],
        next=rows[-1].job if more else None,
    )


def _kept_of_campaign(session: Session, campaign: int) -> list[KeptOutputs]:
    of_campaign = {"campaign": campaign, "any_app": 1, "app": "", "limit": job_search.TOP}
    kinds = sorted(values(session, "kinds_of_campaign", **of_campaign))
    return _kept_of(session, values(session, "jobs_kept", kinds=kinds, limit=PAGE_MAX))


def _kept_of(session: Session, ids: list[int]) -> list[KeptOutputs]:
    of_site: dict[int, str] = dict(session.rows("site_names"))
    jobs = session.rows("jobs_by_id", ids=ids) if ids else []
    jobs.sort(key=lambda job: -job.id)
    return [kept for job in jobs if (kept := _kept(job, of_site)) is not None]


# ---- sites ------------------------------------------------------------------------------------------------------


def site_rows(
    session: Session, silent: set[str], *, counts_leased: bool = True, owner: str | None = None
) -> list[SiteRow]:
    """Sites that have joined. `silent`: those that have not been heard for a while. Leased events are counted over all
    running jobs: without `counts_leased` they are 0, and of what sites show nothing is. `owner`: whose own troubles are
    among those shown; None = those of all."""
    leased: dict[int, int] = defaultdict(int)
    running: set[int] = set()
    if counts_leased:
        running = set(values(session, "kinds_running"))
    for site, events in session.rows("leased_events", kinds=sorted(running)) if running else ():
        leased[site] += int(events)
    views = site_views.last_views(session) if counts_leased else {}
    caches = {
        site: [msgspec.structs.replace(each, datasets=[]) for each in CACHES.decode(view.raw)]
        for site, (_, view) in views.items()
    }
    return [
        SiteRow(
            name=site.name, state=_state(site, silent), epoch=site.epoch,
            host=site.host, version=site.version, seen_us=site.seen_us, capacity=_shown_capacity(site.capacity, owner),
            allocations=site.allocations, applications=sorted(site.offers), leased_events=leased[site.id],
            remarks=unused_patterns(site), caches=caches.get(site.id, []),
            sums=SUMS.decode(views[site.id][1].raw) if site.id in views else None,
            refused=REFUSED.decode(views[site.id][1].raw) if site.id in views else [],
        )
        for site in sites(session)
        if site.capacity is not None
    ]  # fmt: skip


def _shown_capacity(capacity: Capacity, owner: str | None) -> dict[str, Any]:
    """Without what may be other owners': the numbers of jobs that wait, and troubles that concern one owner."""
    shown: dict[str, Any] = msgspec.to_builtins(capacity)
    shown["troubles"] = [each for each in shown["troubles"] if owner is None or each["owner"] in ("", owner)]
    for each in shown["troubles"]:
        del each["examples"], each["passed_over"]
    return shown


def unused_patterns(site: Site) -> list[str]:
    """Which of a site's first PATTERNS_READ patterns the server does not use, as RE2 does not take them."""
    patterns = (
        (offer.name, name, parameter.pattern)
        for offer in site.offers.values()
        for name, parameter in offer.parameters.items()
        if parameter.pattern is not None
    )
    found = [(app, name, pattern_fault(pattern)) for app, name, pattern in islice(patterns, PATTERNS_READ)]
    return [
        f"application `{app}`: the pattern of parameter `{name}` is not used: {fault.text}"
        + (f" ({fault.hint})" if fault.hint else "")
        for app, name, fault in found
        if fault is not None
    ]


def _state(site: Site, silent: set[str]) -> str:
    if site.lost:
        return "LOST"
    if site.name in silent:
        return "SILENT"
    if site.down_us:
        return "DOWN"
    return "DRAINED" if site.drained else "UP"


def applications(session: Session) -> list[SiteApplication]:
    """Every application of every site."""
    return [
        SiteApplication(site=site.name, app=offer)
        for site in sites(session)
        for offer in site.offers.values()
    ]


def allocations(session: Session, *, site: str | None, limit: int | None) -> list[AllocationRow]:
    """Allocations of a site, or of all, newest first."""
    size = limit_of(limit)
    found = [each for each in sites(session) if site is None or each.name == site]
    if site is not None and not found:
        raise MissingError(
            f"there is no site `{site}`", hint=did_you_mean(site, [each.name for each in sites(session)])
        )
    rows = [
        AllocationRow(**{**row._asdict(), "site": each.name})
        for each in found
        for row in session.rows("allocations_of", site=each.id, limit=size)
    ]
    return sorted(rows, key=lambda row: -row.at_us)[:size]


def placements(session: Session, site: str | None, question: traces.PlacementQuestion) -> list[PlacementRow]:
    """Allocations of a site that held nodes between two times, by name. Raises MissingError."""
    names = [each.name for each in sites(session)]
    found = next((each for each in sites(session) if each.name == site), None)
    if found is None:
        raise MissingError(f"there is no site `{site or ''}`", hint=did_you_mean(site or "", names))
    rows = traces.between(session, found.id, question)
    return [
        PlacementRow(
            site=found.name,
            name=name,
            batch_id=batch_id,
            nodes=nodes,
            cores=cores,
            started_us=start_us,
            ended_us=end_us,
        )
        for name, batch_id, nodes, cores, start_us, end_us in rows
    ]
