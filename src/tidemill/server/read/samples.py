"""One allocation, and what its nodes do: a row of the database with samples that the server holds in memory."""

from __future__ import annotations

from tidemill.server.database.store import Session
from tidemill.server.errors import MissingError
from tidemill.server.monitoring.window import SampleWindow
from tidemill.server.read import api_pages
from tidemill.wire.api import AllocationRow
from tidemill.wire.monitoring import SampleReply


def allocation(session: Session, name: str, *, site: str | None) -> AllocationRow:
    """The allocation of this name, of a site or of any: the newest where several have one. Raises MissingError."""
    rows = [
        AllocationRow(**{**row._asdict(), "site": each.name})
        for each in api_pages.sites(session)
        if site in (None, each.name)
        for row in session.rows("allocation_named", site=each.id, name=name)
    ]
    if not rows:
        where = "" if site is None else f" of site `{site}`"
        raise MissingError(
            f"there is no allocation `{name}`{where}",
            hint="`GET /v1/allocations` lists those of the last weeks",
        )
    return max(rows, key=lambda row: row.at_us)


def samples(
    session: Session, window: SampleWindow, name: str, *, site: str | None, since: int
) -> SampleReply:
    """What its nodes did, as far as the server holds it. Raises MissingError."""
    row = allocation(session, name, site=site)
    return window.reply(row.site, row.name, since=since)
