"""The first page, search, and failures."""

from __future__ import annotations

from tidemill.model.failure import POLICY
from tidemill.model.identity import Act
from tidemill.server.read import api_pages, web_pages
from tidemill.server.read.job_search import Filter, Sort
from tidemill.server.web import sites
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.api import CampaignRow, FailureRow, JobRow

CAMPAIGNS_SHOWN = 8
FAILURES_SHOWN = 5
FOUND_MAX = 20


def overview(ask: PageRequest, made: Pages) -> str:
    """`/`: how it goes."""
    reads = ask.may(Act.READ)
    campaigns: list[CampaignRow] = []
    failures: list[FailureRow] = []
    counts = None
    if reads:
        owner = ask.own(Act.READ)
        counts = web_pages.counts(ask.session, owner)
        query = web_pages.CampaignQuery(owner=owner, unfinished=True, size=CAMPAIGNS_SHOWN)
        campaigns = web_pages.campaigns(ask.session, query)[0]
        if len(campaigns) < CAMPAIGNS_SHOWN:
            query = web_pages.CampaignQuery(owner=owner, sort="ended", size=CAMPAIGNS_SHOWN)
            names = {(row.owner, row.name) for row in campaigns}
            ended = web_pages.campaigns(ask.session, query)[0]
            more = [row for row in ended if (row.owner, row.name) not in names]
            campaigns += more[: CAMPAIGNS_SHOWN - len(campaigns)]
        latest = web_pages.failures(
            ask.session, campaign=None, owner=owner, before=None, limit=FAILURES_SHOWN
        )
        failures = latest.failures
    shown = sites.cards(ask, minutes=sites.SPANS["24h"])
    return made.show(
        ask, "home.html", counts=counts, campaigns=campaigns, failures=failures, sites=shown, policy=POLICY,
        after=web_pages.reached(ask.session),
    )  # fmt: skip


def search(ask: PageRequest, made: Pages) -> str:
    """`/search?q=`: jobs by number or the beginning of their name, campaigns, sites, applications."""
    text = ask.query.text("q") or ""
    held = text.lower()
    jobs: list[JobRow] = []
    campaigns: list[CampaignRow] = []
    more = False
    if text and ask.may(Act.READ):
        owner = ask.own(Act.READ)
        number = int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else 0
        of = web_pages.owners(ask.session, [number]).get(number)
        if of is not None and owner in (None, of):
            jobs = api_pages.rows_of(ask.session, [number])
        page = web_pages.jobs(
            ask.session, Filter(begins=text, owner=owner), Sort.NEWEST, after=None, size=FOUND_MAX
        )
        jobs += [row for row in page.rows if row.id != number]
        more = page.found.after is not None
        campaigns = web_pages.campaigns(
            ask.session, web_pages.CampaignQuery(text=text, owner=owner, size=FOUND_MAX)
        )[0]
    own = ask.own(Act.SITES) if ask.may(Act.SITES) else ""
    names = [row.name for row in ask.session.rows("site_names") if text and own in (None, row.name)]
    return made.show(
        ask, "search.html", text=text, jobs=jobs, more=more,
        owners=ask.may(Act.READ) and ask.own(Act.READ) is None, campaigns=campaigns,
        sites=sorted(name for name in names if held in name.lower())[:FOUND_MAX],
        apps=[each for each in sites.offered(ask) if text and held in each.name.lower()][:FOUND_MAX]
        if ask.may(Act.SITES) else [],
        after=web_pages.reached(ask.session),
    )  # fmt: skip


def failures(ask: PageRequest, made: Pages) -> str:
    """`/failures`: newest first, of a campaign or of all."""
    owner, key = ask.own(Act.READ), ask.campaign()
    classes = {} if key is None else api_pages.campaign(ask.session, key).failures
    number = None if key is None else key.number
    page = web_pages.failures(ask.session, campaign=number, owner=owner, before=ask.query.number("after"))
    return made.show(
        ask, "failures.html", page=page, policy=POLICY, classes=classes, names=web_pages.failing(ask.session, owner),
        after=web_pages.reached(ask.session),
    )  # fmt: skip
