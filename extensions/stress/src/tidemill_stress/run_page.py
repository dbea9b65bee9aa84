"""The page of a stress test: its levels that ended, the one that runs and those to come, and what its payloads do.

A run has no row in the database: each level is a job whose specification names the run and all its levels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tidemill.charts.lines import TimeLine
from tidemill.charts.time import clock_marks
from tidemill.model.identity import Act
from tidemill.model.job import STRESS_REASON, PlannedLevel, StressLevel
from tidemill.model.legal import is_name
from tidemill.server.audit.payload_times import latest
from tidemill.server.errors import MissingError
from tidemill.server.read import api_pages, web_pages
from tidemill.server.web.pages import Page, PageGroup, PageLink
from tidemill.server.web.payloads import STEP_S_MIN, AskedLevels, PayloadChart, drawn, known_until_s, valid
from tidemill.server.web.query import to, with_values
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.api import CampaignRow, JobDetail, JobRow, PayloadTime

CAMPAIGNS_MAX = 1_000  #: of a run, those of interrupted levels included
LEVELS_DRAWN = 24  #: the newest
PAYLOADS_MAX = 20_000  #: of all of them that one page reads
STEPS = 120  #: points of a line
EVERY_S = 5  #: the page asks for itself as often while the run goes on
QUIET_US = 600_000_000  #: a run in which nothing happens for this time is over, or was broken off
_LEVEL = re.compile(r"stress-(.+)-([0-9]{1,6})-[0-9a-f]{8,16}")


class LevelRow(NamedTuple):
    """A level of the table. `campaign`, `job` None = it has not begun."""

    planned: PlannedLevel
    state: str  #: `running`, `ended`, `planned`, `not run`
    campaign: CampaignRow | None = None
    job: JobRow | None = None

    @property
    def reason(self) -> str:
        """Why it ended, as the run gave it when it canceled the rest of the job."""
        if self.job is None or self.state != "ended":
            return ""
        return self.job.reason.removeprefix(STRESS_REASON)


class LevelTimes(NamedTuple):
    """What is known of a level's payloads, by their ends."""

    planned: PlannedLevel
    times: list[PayloadTime]
    is_over: bool


class SiteCharts(NamedTuple):
    """The charts of a site, and the times on their axis."""

    site: str
    charts: list[PayloadChart]
    marks: list[str]


def run_of(campaign: str) -> tuple[str, int] | None:
    """The run and the number of the level that a campaign is of, by its name; None = of none."""
    match = _LEVEL.fullmatch(campaign)
    return (match[1], int(match[2])) if match else None


def page(ask: PageRequest, made: Pages) -> str:
    """`/stress/RUN?owner=OWNER`; without an owner the one whose level of this name is the newest."""
    run = ask.at["run"]
    newest = _campaigns(ask, run) if is_name(run) else {}
    jobs = {
        number: web_pages.newest_job(ask.session, row)
        for number, row in sorted(newest.items())[-LEVELS_DRAWN:]
    }
    of = next((level for job in reversed(jobs.values()) if job and (level := _level(ask, job, run))), None)
    if of is None:
        raise MissingError(
            f"stress test `{run}` does not exist",
            hint="`result.json` and `page.html` of the run's directory have what was measured",
        )
    rows = levels(of.planned, newest, jobs, now_us=ask.now_us)
    goes_on = any(each.state in ("running", "planned") for each in rows)
    known = _times(ask, rows)
    return made.show(
        ask, "stress/run.html", run=run, rows=rows, goes_on=goes_on, every=EVERY_S if goes_on else 0,
        views=views(known, now_us=ask.now_us), payloads=sum(len(each.times) for each in known),
        ended=sum(each.state == "ended" for each in rows), running=[each for each in rows if each.state == "running"],
        after=web_pages.reached(ask.session),
    )  # fmt: skip


def _campaigns(ask: PageRequest, run: str) -> dict[int, CampaignRow]:
    """The newest campaign of each level: a run that goes on after an interruption starts its level again."""
    own = ask.own(Act.READ)
    owner = ask.query.text("owner") if own is None else own
    query = web_pages.CampaignQuery(text=f"stress-{run}-", owner=owner, size=CAMPAIGNS_MAX)
    found: dict[int, CampaignRow] = {}
    for row in web_pages.campaigns(ask.session, query)[0]:
        of = run_of(row.name)
        if of is not None and of[0] == run and owner in (None, row.owner):
            owner = row.owner
            found.setdefault(of[1], row)
    return found


def _level(ask: PageRequest, job: JobRow, run: str) -> StressLevel | None:
    """Which level of the run a job says that it is."""
    detail = api_pages.job(
        ask.session, job.id, cache=ask.specs, silent=ask.unheard(), archive=ask.dispatcher.rules.archive
    )
    of = detail.spec.stress
    return of if of is not msgspec.UNSET and of.run == run else None


def levels(
    planned: Sequence[PlannedLevel],
    campaigns: dict[int, CampaignRow],
    jobs: dict[int, JobRow | None],
    *,
    now_us: int,
) -> list[LevelRow]:
    """The table: each level with its state. Pure."""
    latest_us = max((row.last_ended_us or row.created_us for row in campaigns.values()), default=0)
    runs = {number for number, row in campaigns.items() if _is_open(row)}
    rest = "planned" if runs or now_us - latest_us < QUIET_US else "not run"
    return [
        LevelRow(each, "running" if number in runs else "ended", campaigns[number], jobs.get(number))
        if number in campaigns
        else LevelRow(each, rest)
        for number, each in enumerate(planned, 1)
    ]


def _is_open(row: CampaignRow) -> bool:
    return any(row.states.get(state) for state in ("WAITING", "RUNNING"))


def _times(ask: PageRequest, rows: Sequence[LevelRow]) -> list[LevelTimes]:
    """Payloads of the levels that began last, bounded over all."""
    found: list[LevelTimes] = []
    left = PAYLOADS_MAX
    for row in reversed(rows):
        if row.job is None or left <= 0:
            continue
        times = valid(latest(ask.session, row.job.id))[-left:]
        left -= len(times)
        found.append(LevelTimes(row.planned, times, row.state != "running"))
    return [each for each in reversed(found) if each.times]


def views(known: Sequence[LevelTimes], *, now_us: int) -> list[SiteCharts]:
    """Charts over all levels, of each site, on one axis of time. Pure."""
    if not known:
        return []
    ends = {id(each): known_until_s(each.times, now_us=now_us, is_over=each.is_over) for each in known}
    begin = min(_begin_s(each) for each in known)
    span = (begin, max(*ends.values(), begin + STEP_S_MIN))
    marks = clock_marks(span[0], span[1] - span[0])
    result = []
    for site in dict.fromkeys(each.planned.site for each in known):
        here = [each for each in known if each.planned.site == site]
        members = [
            TimeLine(
                f"level {each.planned.title}",
                [(at, float(each.planned.level)) for at in (_begin_s(each), ends[id(each)])],
            )
            for each in here
        ]
        charts = drawn(
            [one for each in here for one in each.times], span,
            AskedLevels(members, "The thin lines are the levels that were asked for"),
            until_s=max(ends[id(each)] for each in here), steps=STEPS,
        )  # fmt: skip
        result.append(SiteCharts(site, charts, marks))
    return result


def _begin_s(level: LevelTimes) -> float:
    return min(each.started_us for each in level.times) / 1e6


def link_of_job(job: JobDetail) -> PageLink | None:
    """The link from the page of a level's job."""
    of = job.spec.stress
    if of is msgspec.UNSET:
        return None
    return _link(f"Level {of.number} of {len(of.planned)} of the stress test", of.run, job.row.owner)


def link_of_campaign(row: CampaignRow) -> PageLink | None:
    """The link from the page of a level's campaign."""
    of = run_of(row.name)
    return None if of is None else _link(f"Level {of[1]} of the stress test", of[0], row.owner)


def _link(text: str, run: str, owner: str) -> PageLink:
    return PageLink(text, run, with_values(to("stress", run), owner=owner))


PAGES = PageGroup(
    (Page("/stress/{run:str}", page),),
    "tidemill_stress",
    of_job=link_of_job,
    of_campaign=link_of_campaign,
)
"""Pages of this extension."""
