"""Pages of campaigns: the listing, one campaign."""

from __future__ import annotations

from tidemill.model.campaign import reference
from tidemill.model.failure import POLICY, FailureClass
from tidemill.model.identity import Act
from tidemill.server.core import rights
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.read import activity, api_pages, web_pages
from tidemill.server.read.job_search import Filter, Sort
from tidemill.server.web import progress
from tidemill.server.web.files import may_download
from tidemill.server.web.progress import ProgressCounts, ProgressView
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.api import CampaignRow, FailureRow

SORTS = {
    "newest": "newest first", "name": "by name", "jobs": "most jobs", "open": "most events open",
    "failed": "most events failed", "time": "most payload time", "ended": "ended last first",
}  # fmt: skip
NEWEST = 8


def listing(ask: PageRequest, made: Pages) -> str:
    """`/campaigns`: searched and sorted."""
    size, page = ask.query.size(), ask.query.number("page") or 0
    query = web_pages.CampaignQuery(
        text=ask.query.text("q") or "", owner=ask.own(Act.READ), unfinished=ask.query.text("open") == "1",
        archived=ask.query.text("open") == "archived",
        sort=ask.query.choice("sort", tuple(SORTS)), offset=page * size, size=size,
    )  # fmt: skip
    rows, more = web_pages.campaigns(ask.session, query)
    return made.show(
        ask, "campaigns.html", rows=rows, sorts=SORTS, sort=query.sort, page=page, more=more,
        after=web_pages.reached(ask.session),
    )  # fmt: skip


def campaign(ask: PageRequest, made: Pages) -> str:
    """`/campaigns/NAME?owner=OWNER`."""
    owner, name = ask.query.text("owner"), ask.at["name"]
    named = name if owner is None else reference(owner, name)
    key = rights.check_campaign(ask.session, ask.identity, Act.READ, named)
    row = api_pages.campaign(ask.session, key)
    filters = Filter(campaign=key.number)
    failures: list[FailureRow] = []
    if row.archived:
        archive = ask.dispatcher.rules.archive
        newest = web_pages.archived_jobs(ask.session, archive, filters, after=None, size=NEWEST).rows
    else:
        newest = web_pages.jobs(ask.session, filters, Sort.NEWEST, after=None, size=NEWEST).rows
        if row.failures:
            failures = api_pages.failures(ask.session, campaign=key.number, limit=NEWEST).failures
    files, _ = web_pages.delivered(ask.session, campaign=key.number, after=None, size=NEWEST)
    living = sum(row.states.get(each, 0) for each in ("WAITING", "RUNNING"))
    ended = sum(row.states.get(each, 0) for each in ("PARTIAL", "FAILED", "CANCELED"))
    examples = {
        each.evidence.failure: {"evidence": each.evidence, "job": each.job, "event": each.event}
        for each in reversed(failures)
    }
    return made.show(
        ask, "campaign.html", row=row, named=key.reference, examples=examples, newest=newest,
        failures=web_pages.alike(failures), files=files,
        gets=[may_download(ask.identity, each.url) for each in files],
        policy=POLICY, living=living,
        ended=ended, progress=_progress(ask, key, row, living), after=web_pages.reached(ask.session),
        classes=sorted(((FailureClass(name), n) for name, n in row.failures.items()), key=lambda each: -each[1]),
        can={
            "cancel": living > 0 and ask.may(Act.CANCEL, owner=row.owner),
            "retry": ended > 0 and not row.archived and ask.may(Act.RETRY, owner=row.owner),
        },
    )  # fmt: skip


def _progress(ask: PageRequest, key: CampaignKey, row: CampaignRow, living: int) -> ProgressView:
    found = activity.of_campaign(ask.session, ask.dispatcher.rules.archive, key)
    counts = ProgressCounts(
        row.events - row.events_canceled, row.events_done, row.events_failed, row.first_started_us,
        None if living or row.last_ended_us is None else row.last_ended_us, row.usage,
        is_idle=bool(row.phase) or not row.states.get("RUNNING"),
    )  # fmt: skip
    return progress.view(found, counts, ask.now_us)
