"""What payloads of a campaign or job did over time, from the database or the archive, and what follows from it."""

from __future__ import annotations

from tidemill.model.figures.activity import Activity
from tidemill.server.archive import lookup
from tidemill.server.archive.parquet import Archive
from tidemill.server.audit import activities
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.database.store import Session, value
from tidemill.server.read import archived


def of_campaign(session: Session, archive: Archive, key: CampaignKey) -> Activity:
    """The activity of a campaign, also of an archived one. Raises SiteError."""
    if key.is_archived:
        place = lookup.place_of_campaign(session, key.number)
        return Activity() if place is None else archived.activity(archive, place)
    return activities.read(session, key.number)


def of_job(session: Session, archive: Archive, number: int) -> Activity:
    """The activity of a job of many events, also of an archived one; without intervals for any other. Raises
    SiteError."""
    campaign = value(session, "campaign_of_jobs", ids=[number])
    if campaign is not None:
        return activities.read(session, int(campaign), number)
    place = lookup.place_of_job(session, number)
    return Activity() if place is None else archived.activity(archive, place, number)
