"""The stored feed of state changes: what changed after a number, in all campaigns or in one. Never writes.

A row holds consecutive changes of one campaign in one transaction, `ROW_CHANGES_MAX` at most. So the cost of reading a
campaign grows with that campaign only, and a page needs bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from tidemill.model.state import JOB_FINAL
from tidemill.server.database.store import Session, value
from tidemill.wire.api import Change

ROWS = 200  #: rows per read, 170 KB each at most
STREAM_ROWS = 4  #: rows per read for a follower that is behind
_CHANGES = msgspec.json.Decoder(list[Change])
_FINAL = frozenset(str(state) for state in JOB_FINAL)


class FeedRow(NamedTuple):
    """Changes of one campaign. `campaign`: its number, 0 = it is not known any more; `body`: JSON, a list of
    `Change`."""

    first: int
    last: int
    campaign: int
    body: bytes

    def decoded(self) -> list[Change]:
        """The changes of the row."""
        return _CHANGES.decode(self.body)


class EndedAfter(NamedTuple):
    """Jobs that ended after a number. `reached`: the number up to which `jobs` is complete; None = the feed no longer
    holds all changes after the requested number. `more`: there are further jobs."""

    jobs: list[int]
    reached: int | None
    more: bool = False


def rows_after(
    session: Session, after: int, *, campaign: int | None = None, limit: int = ROWS
) -> list[FeedRow]:
    """The next rows with changes after a number: of all campaigns, or those that may hold changes of one."""
    if campaign is None:
        found = session.rows("changes_after", after=after, limit=limit)
    else:
        found = session.rows("changes_of_campaign", after=after, campaign=campaign, limit=limit)
    return [FeedRow(*each) for each in found]


def changes(session: Session, after: int, campaign: int | None) -> tuple[list[Change], int]:
    """The next state changes after a number, and the number that is reached; that is `after` if there are none."""
    rows = rows_after(session, after, campaign=campaign)
    found = [change for each in rows for change in _wanted(each, after, campaign)]
    return found, rows[-1].last if rows else after


def _wanted(row: FeedRow, after: int, campaign: int | None) -> Iterator[Change]:
    if campaign in (None, row.campaign):
        yield from (change for change in row.decoded() if change.number > after)


def reached(session: Session) -> int:
    """The number of the last change."""
    return int(value(session, "changes_end"))


def ended_jobs(session: Session, campaign: int, after: int, *, limit: int) -> EndedAfter:
    """Jobs of a campaign that ended after a number of the feed, each once, up to `limit`. The cost grows with the
    campaign's changes since that number."""
    head = reached(session)
    if after >= head:
        return EndedAfter([], head)
    if after + 1 < int(value(session, "changes_begin")):
        return EndedAfter([], None)
    found: dict[int, None] = {}
    at = after
    while True:
        rows = rows_after(session, at, campaign=campaign, limit=STREAM_ROWS)
        for each in rows:
            for change in _wanted(each, at, campaign):
                if len(found) == limit:
                    return EndedAfter(list(found), change.number - 1, more=True)
                if change.state in _FINAL and not change.progress:
                    found[change.job] = None
            at = each.last
        if len(rows) < STREAM_ROWS:
            break
    return EndedAfter(list(found), max(at, head))


def owned(session: Session, campaigns: Iterable[int], owner: str) -> frozenset[int]:
    """Which of these campaigns belong to an owner."""
    numbers = sorted(set(campaigns))
    rows = session.rows("campaign_owners", ids=numbers) if numbers else []
    return frozenset(number for number, _, of in rows if of == owner)
