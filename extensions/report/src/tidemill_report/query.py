"""What a report says, asked from the server through its API. Computes, formats nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill import clock
from tidemill.client.causes import CauseGroup, group_failures
from tidemill.client.client import Client
from tidemill.errors import JobError
from tidemill.model.figures.activity import REPORTED_S, Course, counted, course
from tidemill.wire.api import AllocationRow, CampaignRow, FailureRow, SiteRow
from tidemill.wire.hospital import WardRow
from tidemill.wire.server_connection import NotFoundError
from tidemill_report.core_hours import CoreHoursReport, core_hours

JOBS_MAX = 20_000  #: newest jobs of a data frame
CAMPAIGNS_MAX = 200  #: newest campaigns that the timeline is made of
FAILURES_MAX = 10_000
ALLOCATIONS_MAX = 1_000
TIME_US_MAX = 1 << 62  #: later than anything
BINS = 72


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened when, of payloads that ended. `known`: events done in all that time; `events`: done of all
    campaigns at any time, so that a report says what it does not show."""

    course: Course | None
    known: int
    events: int
    partial: bool  #: there were more campaigns than CAMPAIGNS_MAX


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report shows."""

    title: str
    made_us: int
    since_us: int | None
    until_us: int | None
    server_version: str
    campaigns: list[CampaignRow]
    failures: list[CauseGroup]
    timeline: Timeline | None
    allocations: list[AllocationRow]
    sites: list[SiteRow]
    wards: list[WardRow] = []  #: of the hospital, over all campaigns
    core_hours: CoreHoursReport | None = None  #: None: the server is of an earlier version


def gather(
    client: Client,
    *,
    campaign: str | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
) -> ReportData:
    """A report of one campaign or of all that ran between two times. Raises JobError if there is none."""
    if campaign is not None:
        found = [client.campaign(campaign)]
    else:
        found = client.campaigns() + client.campaigns(archived=True)
    campaigns = [row for row in found if _overlaps(row, since_us, until_us)]
    if not campaigns:
        raise JobError("there is no campaign to report on", hint="`tidemill jobs` lists what there is")
    failures = client.failures(campaign=campaign, limit=FAILURES_MAX)
    started = [row.first_started_us for row in campaigns if row.first_started_us is not None]
    first_us = max(min(started), since_us or 0) if started else since_us
    return ReportData(
        title=campaign or ("all campaigns" if len(campaigns) > 1 else campaigns[0].name),
        made_us=clock.now_us(),
        since_us=since_us,
        until_us=until_us,
        server_version=client.health().version,
        campaigns=campaigns,
        failures=group_failures(_within(each, since_us, until_us) for each in failures),
        timeline=timeline(client, campaigns, since_us=since_us, until_us=until_us),
        allocations=[
            each
            for each in client.allocations(limit=ALLOCATIONS_MAX)
            if (first_us is None or each.at_us >= first_us) and (until_us is None or each.at_us <= until_us)
        ]
        if campaign is None
        else [],
        sites=client.sites() if campaign is None else [],
        wards=client.wards() if campaign is None else [],
        core_hours=_core_hours(client, campaign, since_us=since_us, until_us=until_us),
    )


def _core_hours(
    client: Client, campaign: str | None, *, since_us: int | None, until_us: int | None
) -> CoreHoursReport | None:
    try:
        found = list(client.core_hours(since_us=since_us or 0, until_us=until_us or TIME_US_MAX))
    except NotFoundError:  # of the route: a server of an earlier version
        return None
    return core_hours(found, campaign=campaign)


def timeline(
    client: Client, campaigns: Sequence[CampaignRow], *, since_us: int | None, until_us: int | None
) -> Timeline | None:
    """What happened over time in these campaigns; None if nothing has run, or the server is too old to know."""
    shown = [row for row in campaigns if row.first_started_us is not None][:CAMPAIGNS_MAX]
    try:
        found = [client.activity(row.reference) for row in shown]
    except NotFoundError:  # of the route: a server of an older version
        return None
    runs = any(row.states.get(each) for row in shown for each in ("WAITING", "RUNNING"))
    drawn = course(
        found,
        bins_max=BINS,
        since_s=None if since_us is None else since_us / 1e6,
        until_s=None if until_us is None else until_us / 1e6,
        open_at_s=clock.now_us() / 1e6 - REPORTED_S if runs else None,
    )
    return Timeline(
        course=drawn, known=counted(found), events=sum(row.events_done for row in shown),
        partial=len(campaigns) > CAMPAIGNS_MAX,
    ) if shown else None  # fmt: skip


def _within(row: FailureRow, since_us: int | None, until_us: int | None) -> FailureRow | None:
    at = row.evidence.at_us
    inside = (since_us is None or at >= since_us) and (until_us is None or at <= until_us)
    return row if inside else None


def _overlaps(row: CampaignRow, since_us: int | None, until_us: int | None) -> bool:
    ended = row.last_ended_us if row.last_ended_us is not None else clock.now_us()
    return (since_us is None or ended >= since_us) and (until_us is None or row.created_us <= until_us)
