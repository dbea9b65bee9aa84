"""The routes of the API as one table: it drives the handlers (`app.py`) and the OpenAPI document (`openapi.py`).

Every route is a plain function of a `Call`; those that only read get a reader's connection, the others the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tidemill import __version__, clock
from tidemill.model.job import JobSpec
from tidemill.server import pages
from tidemill.server.dispatcher import SILENT_S, Dispatcher
from tidemill.server.store import Session
from tidemill.wire.api import (
    PAGE_MAX,
    ActionReply,
    ActionRequest,
    AllocationRow,
    CampaignRow,
    Counts,
    DrainRequest,
    FailurePage,
    Health,
    JobDetail,
    JobPage,
    OutputPage,
    SiteApplication,
    SiteRow,
    SubmitReply,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)


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


class OfCampaignQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Of a job, of a campaign, or of all."""

    campaign: str | None = None
    job: int | None = None
    before: int | None = None
    limit: int | None = None


class PageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Place of a page."""

    before: int | None = None
    limit: int | None = None


class SiteQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Of a site, or of all."""

    site: str | None = None
    limit: int | None = None


class LogQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Of an event, or of the latest payload."""

    event: int | None = None


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """From a number on, of a campaign or of all."""

    after: int = 0
    campaign: str | None = None


class Call(NamedTuple):
    """One request: `session` reads, `dispatcher` writes; `query`, `body` are decoded, `at` holds parts of the path."""

    session: Session
    dispatcher: Dispatcher
    query: Any
    body: Any
    at: dict[str, Any]
    specs: dict[int, JobSpec]

    def silent(self) -> set[str]:
        """Names of sites that have not been heard for a while."""
        names = [row[1] for row in self.session.rows("sites")]
        return {name for name in names if self.dispatcher.silent_s(name) > SILENT_S}


class Route(NamedTuple):
    """`run` None: the route is streamed or waits, and has a handler of its own in `app.py`. `reply` is a type."""

    method: str
    path: str
    summary: str
    query: type[msgspec.Struct]
    body: type[msgspec.Struct] | None
    reply: Any
    run: Callable[[Call], Any] | None

    @property
    def reads(self) -> bool:
        """Whether the route changes nothing."""
        return self.method == "GET"


def _submit(call: Call) -> SubmitReply:
    return call.dispatcher.handle_submit(call.body)


def _jobs(call: Call) -> JobPage:
    query: JobsQuery = call.query
    filters = pages.Filter(
        state=query.state, app=query.app, site=query.site, campaign=query.campaign, name=query.name
    )
    return pages.jobs(call.session, filters, before=query.before, limit=query.limit)


def _job(call: Call) -> JobDetail:
    return pages.job(call.session, call.at["job"], cache=call.specs, silent=call.silent())


def _failures(call: Call) -> FailurePage:
    query: OfCampaignQuery = call.query
    return pages.failures(
        call.session, campaign=query.campaign, job=query.job, before=query.before, limit=query.limit
    )


def _outputs(call: Call) -> OutputPage:
    query: OfCampaignQuery = call.query
    return pages.outputs(
        call.session, campaign=query.campaign, job=query.job, before=query.before, limit=query.limit
    )


def _health(call: Call) -> Health:
    database = str(call.session.dialect)
    status = "full" if call.dispatcher.full else "ok"
    return Health(status=status, version=__version__, database=database, now_us=clock.now_us())


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/jobs", "Submit jobs, all or none, once per key", NoQuery, SubmitRequest, SubmitReply, _submit),
    Route("GET", "/v1/jobs", "Jobs, newest first", JobsQuery, None, JobPage, _jobs),
    Route("GET", "/v1/jobs/{job:int}", "Everything about a job", NoQuery, None, JobDetail, _job),
    Route("GET", "/v1/jobs/{job:int}/log", "Stdout and stderr of a payload", LogQuery, None, None, None),
    Route(
        "POST", "/v1/cancel", "Cancel jobs or a campaign", NoQuery, ActionRequest, ActionReply,
        lambda call: call.dispatcher.handle_cancel(call.body),
    ),
    Route(
        "POST", "/v1/retry", "Run jobs again that ended without success", NoQuery, ActionRequest, ActionReply,
        lambda call: call.dispatcher.handle_retry(call.body),
    ),
    Route(
        "GET", "/v1/campaigns", "Campaigns, newest first", PageQuery, None, list[CampaignRow],
        lambda call: pages.campaigns(call.session, before=call.query.before, limit=call.query.limit or PAGE_MAX),
    ),
    Route(
        "GET", "/v1/campaigns/{name:str}", "One campaign", NoQuery, None, CampaignRow,
        lambda call: pages.campaign(call.session, call.at["name"]),
    ),
    Route("GET", "/v1/failures", "Failures, newest first", OfCampaignQuery, None, FailurePage, _failures),
    Route("GET", "/v1/outputs", "Delivered files, newest first", OfCampaignQuery, None, OutputPage, _outputs),
    Route(
        "GET", "/v1/counts", "Jobs by state, and sums", NoQuery, None, Counts, lambda call: pages.counts(call.session)
    ),
    Route("GET", "/v1/changes", "State changes as server-sent events", ChangesQuery, None, None, None),
    Route(
        "GET", "/v1/sites", "Sites", NoQuery, None, list[SiteRow],
        lambda call: pages.site_rows(call.session, call.silent()),
    ),
    Route(
        "POST", "/v1/sites/{name:str}/drain", "Let a site take no more work, or take work again", NoQuery, DrainRequest,
        ActionReply, lambda call: call.dispatcher.handle_drain(call.at["name"], call.body),
    ),
    Route(
        "GET", "/v1/applications", "Applications by site", NoQuery, None, list[SiteApplication],
        lambda call: pages.applications(call.session),
    ),
    Route(
        "GET", "/v1/allocations", "Allocations, newest first", SiteQuery, None, list[AllocationRow],
        lambda call: pages.allocations(call.session, site=call.query.site, limit=call.query.limit),
    ),
    Route("GET", "/v1/health", "Whether the server works; needs no secret", NoQuery, None, Health, _health),
    Route(
        "POST", "/v1/sync", "A site's reports in, its orders out", NoQuery, SyncRequest, SyncReply,
        lambda call: call.dispatcher.handle_sync(call.body),
    ),
)  # fmt: skip
