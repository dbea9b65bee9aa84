"""What payloads of a campaign or job did over time, from the database or the archive, and what follows from it."""

from __future__ import annotations

from tidemill.model.figures.activity import Activity
from tidemill.server.archive import lookup
from tidemill.server.archive.parquet import Archive
from tidemill.server.audit import activities
from tidemill.server.database.store import Session
from tidemill.server.read import archived
from tidemill.wire.api import CampaignRow


def of_campaign(session: Session, archive: Archive, row: CampaignRow) -> Activity:
    """Of a campaign, also of an archived one. Raises SiteError."""
    if row.archived:
        place = lookup.place_of_campaign(session, row.name)
        return Activity() if place is None else archived.activity(archive, place)
    found = session.rows("campaign_by_name", name=row.name)
    return activities.read(session, int(found[0][0])) if found else Activity()


def of_job(session: Session, archive: Archive, number: int) -> Activity:
    """Of a job of many events, also of an archived one; without intervals for any other. Raises SiteError."""
    found = session.rows("campaign_of_jobs", ids=[number])
    if found:
        return activities.read(session, int(found[0][0]), number)
    place = lookup.place_of_job(session, number)
    return Activity() if place is None else archived.activity(archive, place, number)
