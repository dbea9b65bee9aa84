"""The routes of the API as one table: it drives the handlers (`app.py`) and the OpenAPI document (`openapi.py`).
Extensions add theirs below `/v1/NAME`, with the name of their entry point.

Every route is a plain function of a `Call`; those that only read get a reader's connection, the others the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from tidemill import clock, extensions
from tidemill.model.campaign import reference
from tidemill.model.figures.activity import Activity
from tidemill.model.identity import LOCAL, Act, Identity, own_name
from tidemill.model.job import JobSpec
from tidemill.server.audit import payload_times, traces
from tidemill.server.core import rights
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Session
from tidemill.server.errors import RequestError
from tidemill.server.hospital import downtimes
from tidemill.server.read import (
    activity,
    api_pages,
    archived,
    core_hours,
    hospital,
    numbered,
    samples,
    web_pages,
)
from tidemill.server.read.job_search import Filter
from tidemill.wire.api import (
    PAGE_MAX,
    ActionReply,
    ActionRequest,
    AllocationRow,
    AuditRow,
    CampaignRow,
    Counts,
    DrainRequest,
    FailurePage,
    Health,
    JobDetail,
    JobPage,
    OutputPage,
    OwnerRow,
    ResetRequest,
    SharesRequest,
    SiteApplication,
    SiteRow,
    SubmitReply,
    SubmitRequest,
    SyncReply,
    SyncRequest,
    TimesPage,
)
from tidemill.wire.core_hours import CoreHoursPage, PlacementRow
from tidemill.wire.hospital import DowntimeList, WardRow
from tidemill.wire.monitoring import SampleReply


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No query."""


class JobsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Filters and place of a page of jobs."""

    state: str | None = None
    app: str | None = None
    site: str | None = None
    campaign: str | None = None
    name: str | None = None
    before: int | None = None
    limit: int | None = None
    archived: bool = False
    jobs: str | None = None  #: numbers, such as `3,7-12`: these jobs; other filters are ignored
    #: a number of the feed: jobs of the campaign that ended since, as they are now
    ended_after: int | None = None


class TimesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Place from which payload times are wanted."""

    after: int = 0


class OfCampaignQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Query that asks of a job, of a campaign, or of all."""

    campaign: str | None = None
    job: int | None = None
    before: int | None = None
    limit: int | None = None


class OutputsQuery(OfCampaignQuery, forbid_unknown_fields=True):
    """Query that asks for outputs of a campaign, a job, or jobs by number, such as `3,7-12`. `after`: the
    oldest jobs first, after this one."""

    jobs: str | None = None
    after: int | None = None


class PageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Place of a page; `archived`: of the archive."""

    before: int | None = None
    limit: int | None = None
    archived: bool = False


class SiteQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Query that asks of a site, or of all."""

    site: str | None = None
    limit: int | None = None


class SamplesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What came after the `until` of an earlier reply; of a site, where several have an allocation of that name."""

    since: int = 0
    site: str | None = None


class OwnerQuery(msgspec.Struct, forbid_unknown_fields=True):
    """`owner`: of the campaign; none = the one who asks, or, for one who sees all, the only owner of the name."""

    owner: str | None = None


class OwnersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Place of a page: owners after a name."""

    after: str = ""
    limit: int | None = None


class LogQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Query for the log of an event, or of the latest payload."""

    event: int | None = None


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """From a number on, of a campaign or of all."""

    after: int = 0
    campaign: str | None = None


class PlacementsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A site, two times (microseconds since 1970), and the place of a page: allocations after a name."""

    site: str | None = None
    since_us: int = 0
    until_us: int = 1 << 62
    after: str = ""
    limit: int | None = None


class CoreHoursQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Two times (microseconds since 1970), and the place of a page: `next` of the last one."""

    since_us: int = 0
    until_us: int = 1 << 62
    after: str = ""
    limit: int | None = None


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True):
    """An allocation by its id in the batch system, or a node at a time."""

    batch_id: str | None = None
    node: str | None = None
    at_us: int | None = None
    site: str | None = None


class Call(NamedTuple):
    """One request: `session` reads, `dispatcher` writes; `query`, `body` are decoded, `at` holds parts of the path."""

    session: Session
    dispatcher: Dispatcher
    query: Any
    body: Any
    at: dict[str, Any]
    specs: dict[int, JobSpec]
    identity: Identity = LOCAL

    def own(self, act: Act) -> str | None:
        """The name of the owner, or site, that an answer must be about; None = any."""
        return own_name(self.identity, act)

    def settings(self, name: str) -> Any:
        """What an extension's table `[NAME]` of server.toml says."""
        return self.dispatcher.rules.added[name]

    def silent(self) -> set[str]:
        """Names of sites that have not been heard for a while."""
        names = [row.name for row in self.session.rows("site_names")]
        return self.dispatcher.site_watch.silent(names)

    def unheard(self) -> set[str]:
        """Names of sites that have not been heard for a while, or not since the server started."""
        names = [row.name for row in self.session.rows("site_names")]
        return self.dispatcher.site_watch.unheard(names)


class Route(NamedTuple):
    """`run` None: the route is streamed or waits, and has a handler of its own in `app.py`. `reply` is a type. `act`:
    what the one who asks must have a right to; of whom the thing is, the functions below and the dispatcher look up."""

    method: str
    path: str
    summary: str
    query: type[msgspec.Struct]
    body: type[msgspec.Struct] | None
    reply: Any
    run: Callable[[Call], Any] | None
    act: Act

    @property
    def reads(self) -> bool:
        """Whether the route changes nothing."""
        return self.method == "GET"


def _submit(call: Call) -> SubmitReply:
    return call.dispatcher.handle_submit(call.body, call.identity)


def _jobs(call: Call) -> JobPage:
    query: JobsQuery = call.query
    campaign = _named(call, query.campaign)
    number = None if campaign is None else campaign.number
    if query.jobs is not None:
        numbers = _numbers(call, query.jobs)
        return numbered.jobs(call.session, numbers, call.dispatcher.rules.archive)
    if query.ended_after is not None:
        if number is None:
            raise RequestError("`ended_after` needs `campaign`", hint="add `campaign=NAME`")
        limit = api_pages.limit_of(query.limit, PAGE_MAX)
        return numbered.ended(
            call.session,
            number,
            query.ended_after,
            limit=limit,
            archive=call.dispatcher.rules.archive,
        )
    filters = Filter(
        state=query.state, app=query.app, site=query.site, campaign=number, name=query.name,
        owner=call.own(Act.READ),
    )  # fmt: skip
    kept = query.archived or (campaign is not None and campaign.is_archived)
    archive = call.dispatcher.rules.archive if kept else None
    return api_pages.jobs(call.session, filters, before=query.before, limit=query.limit, archive=archive)


def _numbers(call: Call, text: str) -> list[int]:
    """The numbers in `jobs`, once it is known that the client may read all of these jobs."""
    numbers = numbered.numbers_of(text)
    rights.check_jobs(call.session, call.identity, Act.READ, numbers)
    return numbers


def _named(call: Call, campaign: str | None) -> CampaignKey | None:
    """The campaign that a query means; None = it names none. Raises MissingError."""
    if campaign is None:
        rights.check(call.identity, Act.READ)
        return None
    return rights.check_campaign(call.session, call.identity, Act.READ, campaign)


def _job(call: Call) -> JobDetail:
    rights.check_jobs(call.session, call.identity, Act.READ, [call.at["job"]])
    return api_pages.job(
        call.session,
        call.at["job"],
        cache=call.specs,
        silent=call.unheard(),
        archive=call.dispatcher.rules.archive,
    )


def _times(call: Call) -> TimesPage:
    rights.check_jobs(call.session, call.identity, Act.READ, [call.at["job"]])
    return payload_times.page(call.session, call.at["job"], after=call.query.after)


def _campaign_activity(call: Call) -> Activity:
    return activity.of_campaign(call.session, call.dispatcher.rules.archive, _campaign_key(call))


def _job_activity(call: Call) -> Activity:
    rights.check_jobs(call.session, call.identity, Act.READ, [call.at["job"]])
    return activity.of_job(call.session, call.dispatcher.rules.archive, call.at["job"])


def _failures(call: Call) -> FailurePage:
    query: OfCampaignQuery = call.query
    number, own = _own_number(call, query), call.own(Act.READ)
    if own is not None and query.job is None and number is None:
        limit = api_pages.limit_of(query.limit)
        return web_pages.failures(call.session, campaign=None, owner=own, before=query.before, limit=limit)
    wanted = _archived_rows(call, query, number)
    if wanted is not None:
        return archived.failures(call.session, call.dispatcher.rules.archive, wanted)
    return api_pages.failures(
        call.session, campaign=number, job=query.job, before=query.before, limit=query.limit
    )


def _audit(call: Call) -> list[AuditRow]:
    query: AuditQuery = call.query
    rights.check(call.identity, Act.AUDIT, site=query.site)
    if query.batch_id is None and (not query.node or query.at_us is None):
        raise RequestError("name a batch id, or a node and a time", hint="`batch_id`, or `node` with `at_us`")
    question = traces.TraceQuestion(
        batch_id=query.batch_id, node=query.node, at_us=query.at_us, site=query.site or call.own(Act.AUDIT)
    )
    return traces.find(call.session, question, archived.OfSites(call.session, call.dispatcher.rules.archive))


def _own_number(call: Call, query: OfCampaignQuery) -> int | None:
    """The number of the campaign that a query names, once it is known that the client may read that and the job."""
    campaign = _named(call, query.campaign)
    if query.job is not None:
        rights.check_jobs(call.session, call.identity, Act.READ, [query.job])
    return None if campaign is None else campaign.number


def _archived_rows(call: Call, query: OfCampaignQuery, campaign: int | None) -> archived.RowsWanted | None:
    """None for a job or campaign that is not in the archive."""
    place = archived.place_of(call.session, campaign, query.job)
    if place is None:
        return None
    return archived.RowsWanted(place, query.job, query.before, api_pages.limit_of(query.limit))


def _campaign(call: Call) -> CampaignRow:
    return api_pages.campaign(call.session, _campaign_key(call))


def _campaign_key(call: Call) -> CampaignKey:
    """The campaign of a path, and `owner` of its query."""
    query: OwnerQuery = call.query
    name = call.at["name"] if query.owner is None else reference(query.owner, call.at["name"])
    return rights.check_campaign(call.session, call.identity, Act.READ, name)


def _campaigns(call: Call) -> list[CampaignRow]:
    query: PageQuery = call.query
    if query.archived:
        limit = api_pages.limit_of(query.limit, PAGE_MAX)
        return archived.campaigns(call.session, owner=call.own(Act.READ), before=query.before, limit=limit)
    return api_pages.campaigns(
        call.session, owner=call.own(Act.READ), before=query.before, limit=query.limit or PAGE_MAX
    )


def _owners(call: Call) -> list[OwnerRow]:
    query: OwnersQuery = call.query
    return api_pages.owners(call.session, call.own(Act.READ), after=query.after, limit=query.limit)


def _sites(call: Call) -> list[SiteRow]:
    own = call.own(Act.SITES)
    rows = api_pages.site_rows(call.session, call.silent(), owner=call.own(Act.READ))
    return [each for each in rows if own in (None, each.name)]


def _wards(call: Call) -> list[WardRow]:
    return hospital.ward_rows(call.session, call.dispatcher.rules.wards)


def _downtimes(call: Call) -> DowntimeList:
    own, dispatcher = call.own(Act.SITES), call.dispatcher
    result = downtimes.listed(
        call.session, dispatcher.rules.downtimes, now_us=dispatcher.server_clock.now_us()
    )
    result.downtimes = [each for each in result.downtimes if own in (None, each.site)]
    if own is not None:
        result.sources = []
    return result


def _applications(call: Call) -> list[SiteApplication]:
    own = call.own(Act.SITES)
    return [each for each in api_pages.applications(call.session) if own in (None, each.site)]


def _allocations(call: Call) -> list[AllocationRow]:
    query: SiteQuery = call.query
    rights.check(call.identity, Act.ALLOCATIONS, site=query.site)
    return api_pages.allocations(
        call.session, site=query.site or call.own(Act.ALLOCATIONS), limit=query.limit
    )


def _samples(call: Call) -> SampleReply:
    query: SamplesQuery = call.query
    rights.check(call.identity, Act.ALLOCATIONS, site=query.site)
    site = query.site or call.own(Act.ALLOCATIONS)
    return samples.samples(
        call.session, call.dispatcher.node_samples, call.at["name"], site=site, since=query.since
    )


def _placements(call: Call) -> list[PlacementRow]:
    query: PlacementsQuery = call.query
    rights.check(call.identity, Act.ALLOCATIONS, site=query.site)
    question = traces.PlacementQuestion(
        since_us=query.since_us,
        until_us=query.until_us,
        after=query.after,
        limit=api_pages.limit_of(query.limit),
    )
    return api_pages.placements(call.session, query.site or call.own(Act.ALLOCATIONS), question)


def _core_hours(call: Call) -> CoreHoursPage:
    query: CoreHoursQuery = call.query
    question = core_hours.CoreHoursQuestion(
        since_us=query.since_us,
        until_us=query.until_us,
        owner=call.own(Act.READ),
        after=query.after,
        limit=api_pages.limit_of(query.limit),
        now_us=clock.now_us(),
        silent=frozenset(call.silent()),
    )
    return core_hours.page(call.session, question)


def _outputs(call: Call) -> OutputPage:
    query: OutputsQuery = call.query
    number = _own_number(call, query)
    archive = call.dispatcher.rules.archive
    limit = api_pages.limit_of(query.limit)
    if query.jobs is not None:
        numbers = _numbers(call, query.jobs)
        return numbered.outputs(call.session, numbers, archive, after=query.after or 0, limit=limit)
    wanted = _archived_rows(call, query, number)
    if wanted is not None:
        return archived.outputs(call.session, archive, wanted._replace(after=query.after))
    if query.after is not None:
        return numbered.campaign_outputs(call.session, number, after=query.after, limit=limit)
    return api_pages.outputs(
        call.session, campaign=number, job=query.job, before=query.before, limit=query.limit
    )


ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/jobs", "Submit jobs, all or none, once per key", NoQuery, SubmitRequest, SubmitReply, _submit,
        Act.SUBMIT,
    ),
    Route("GET", "/v1/jobs", "Jobs, newest first", JobsQuery, None, JobPage, _jobs, Act.READ),
    Route("GET", "/v1/jobs/{job:int}", "Everything about a job", NoQuery, None, JobDetail, _job, Act.READ),
    Route(
        "GET", "/v1/jobs/{job:int}/times", "When and where payloads of a timed job ran", TimesQuery, None, TimesPage,
        _times, Act.READ,
    ),
    Route(
        "GET", "/v1/jobs/{job:int}/activity", "What payloads of a job of 200 events or more did over time",
        NoQuery, None, Activity, _job_activity, Act.READ,
    ),
    Route("GET", "/v1/jobs/{job:int}/log", "Stdout and stderr of a payload", LogQuery, None, None, None, Act.LOG),
    Route(
        "POST", "/v1/cancel", "Cancel jobs or a campaign", NoQuery, ActionRequest, ActionReply,
        lambda call: call.dispatcher.handle_cancel(call.body, call.identity), Act.CANCEL,
    ),
    Route(
        "POST", "/v1/retry", "Run jobs again that ended without success", NoQuery, ActionRequest, ActionReply,
        lambda call: call.dispatcher.handle_retry(call.body, call.identity), Act.RETRY,
    ),
    Route(
        "POST", "/v1/accept", "Deliver what is done of jobs that failed or were canceled, and end them as PARTIAL",
        NoQuery, ActionRequest, ActionReply,
        lambda call: call.dispatcher.handle_accept(call.body, call.identity), Act.ACCEPT,
    ),
    Route(
        "POST", "/v1/discard", "Delete what sites keep of ended jobs and is not delivered", NoQuery, ActionRequest,
        ActionReply, lambda call: call.dispatcher.handle_discard(call.body, call.identity), Act.DISCARD,
    ),
    Route("GET", "/v1/campaigns", "Campaigns, newest first", PageQuery, None, list[CampaignRow], _campaigns, Act.READ),
    Route("GET", "/v1/campaigns/{name:str}", "One campaign", OwnerQuery, None, CampaignRow, _campaign, Act.READ),
    Route(
        "GET", "/v1/campaigns/{name:str}/activity", "What payloads of a campaign did over time", OwnerQuery, None,
        Activity, _campaign_activity, Act.READ,
    ),
    Route("GET", "/v1/failures", "Failures, newest first", OfCampaignQuery, None, FailurePage, _failures, Act.READ),
    Route("GET", "/v1/outputs", "Delivered files, newest first", OutputsQuery, None, OutputPage, _outputs, Act.READ),
    Route(
        "GET", "/v1/counts", "Jobs by state, and sums", NoQuery, None, Counts,
        lambda call: web_pages.counts(call.session, call.own(Act.READ)), Act.READ,
    ),
    Route("GET", "/v1/changes", "State changes as server-sent events", ChangesQuery, None, None, None, Act.READ),
    Route("GET", "/v1/sites", "Sites", NoQuery, None, list[SiteRow], _sites, Act.SITES),
    Route("GET", "/v1/wards", "Wards of the hospital, with outcomes", NoQuery, None, list[WardRow], _wards, Act.SITES),
    Route("GET", "/v1/downtimes", "Downtimes of sites", NoQuery, None, DowntimeList, _downtimes, Act.SITES),
    Route(
        "POST", "/v1/sites/{name:str}/drain", "Let a site take no more work, or take work again", NoQuery, DrainRequest,
        ActionReply, lambda call: call.dispatcher.handle_drain(call.at["name"], call.body, call.identity), Act.DRAIN,
    ),
    Route(
        "POST", "/v1/sites/{name:str}/reset-epoch", "Let the next agent that speaks for a site serve it", NoQuery,
        ResetRequest, ActionReply,
        lambda call: call.dispatcher.handle_reset(call.at["name"], call.body, call.identity), Act.RESET,
    ),
    Route(
        "GET", "/v1/owners", "What owners have had of the fair share, by name", OwnersQuery, None, list[OwnerRow],
        _owners, Act.READ,
    ),
    Route(
        "POST", "/v1/owners", "Give an owner a weight in the fair share", NoQuery, SharesRequest, ActionReply,
        lambda call: call.dispatcher.handle_shares(call.body, call.identity), Act.SHARES,
    ),
    Route(
        "GET", "/v1/applications", "Applications by site", NoQuery, None, list[SiteApplication], _applications,
        Act.SITES,
    ),
    Route(
        "GET", "/v1/allocations", "Allocations, newest first", SiteQuery, None, list[AllocationRow], _allocations,
        Act.ALLOCATIONS,
    ),
    Route(
        "GET", "/v1/allocations/{name:str}/samples", "What nodes of an allocation did, as they measured it",
        SamplesQuery, None, SampleReply, _samples, Act.ALLOCATIONS,
    ),
    Route(
        "GET", "/v1/placements", "When allocations of a site held nodes", PlacementsQuery, None, list[PlacementRow],
        _placements, Act.ALLOCATIONS,
    ),
    Route(
        "GET", "/v1/core-hours", "Core-hours: what allocations held, and what payloads used of it",
        CoreHoursQuery, None, CoreHoursPage, _core_hours, Act.READ,
    ),
    Route(
        "GET", "/v1/audit", "Who ran what in an allocation, or on a node at a time", AuditQuery, None, list[AuditRow],
        _audit, Act.AUDIT,
    ),
    Route(
        "GET", "/v1/health", "Whether the server works; needs no credential", NoQuery, None, Health, None, Act.HEALTH
    ),
    Route(
        "POST", "/v1/sync", "A site's reports in, its orders out", NoQuery, SyncRequest, SyncReply,
        lambda call: call.dispatcher.handle_sync(call.body, call.identity), Act.SYNC,
    ),
)  # fmt: skip


@cache
def served() -> tuple[Route, ...]:
    """All routes: the core's, and those of extensions. What the core has stays the core's."""
    taken = {route.path.split("/")[2] for route in ROUTES}
    found = list(ROUTES)
    for extension, name, added in extensions.entries(extensions.ROUTES):
        if name in taken:
            extensions.warn(extension, f"its routes `/v1/{name}` are left out: that name is taken")
        elif not _is_served(name, added):
            extensions.warn(extension, f"its routes are left out: not all are functions below `/v1/{name}`")
        else:
            taken.add(name)
            found += added
    return tuple(found)


def _is_served(name: str, added: Any) -> bool:
    """Whether these are routes below `/v1/NAME`, of types that the document of the API can have."""
    if not (extensions.is_name(name) and isinstance(added, tuple)):
        return False
    above = f"/v1/{name}/"
    if not all(isinstance(each, Route) and each.run and f"{each.path}/".startswith(above) for each in added):
        return False
    types = [each for route in added for each in (route.query, route.body, route.reply) if each is not None]
    try:
        msgspec.json.schema_components(types)
    except Exception:  # noqa: BLE001 -- an extension's types may be anything
        return False
    return True
