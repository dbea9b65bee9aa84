"""The stored feed of state changes: what changed after a number, in all campaigns or in one. Never writes.

A row holds consecutive changes of one campaign in one transaction, `ROW_CHANGES_MAX` at most. So the cost of reading a
campaign grows with that campaign only, and a page needs bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tidemill.model.state import JOB_FINAL
from tidemill.server.database.store import Session, row
from tidemill.wire.api import Change

ROWS = 200  #: rows per read, 170 KB each at most
STREAM_ROWS = 4  #: rows per read for a follower that is behind
_CHANGES = msgspec.json.Decoder(list[Change])
_FINAL = frozenset(str(state) for state in JOB_FINAL)


class FeedRow(NamedTuple):
    """A row of the feed. `campaign`: its number, 0 = several campaigns; `body`: JSON, a list of `Change`."""

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
    """The next rows with changes after a number: all rows, or those that may hold changes of a campaign."""
    if campaign is None:
        return [FeedRow(*each) for each in session.rows("changes_after", after=after, limit=limit)]
    found = session.rows("changes_of_campaign", after=after, campaign=campaign, limit=limit)
    return [FeedRow(*each) for each in found]


def campaign_number(session: Session, name: str) -> int | None:
    """The number of a campaign, which may be in the archive; None if no campaign has this name."""
    found = row(session, "campaign_by_name", name=name) or row(session, "archived_campaign", name=name)
    return None if found is None else int(found[0])


def changes(session: Session, after: int, campaign: str | None) -> tuple[list[Change], int]:
    """The next state changes after a number, and the number that is reached; that is `after` if there are none."""
    number = None if campaign is None else campaign_number(session, campaign)
    if campaign is not None and number is None:
        return [], after
    found: list[Change] = []
    reached = after
    for each in rows_after(session, after, campaign=number):
        reached = each.last
        found += _wanted(each, after, campaign)
    return found, reached


def _wanted(found: FeedRow, after: int, campaign: str | None) -> Iterator[Change]:
    for change in found.decoded():
        if change.number > after and campaign in (None, change.campaign):
            yield change


def reached(session: Session) -> int:
    """The number of the last change."""
    return int(session.rows("changes_end")[0][0])


def ended_jobs(session: Session, campaign: str, after: int, *, limit: int) -> EndedAfter:
    """Jobs of a campaign that ended after a number of the feed, each once, up to `limit`. The cost grows with the
    campaign's changes since that number."""
    head = reached(session)
    if after >= head:
        return EndedAfter([], head)
    if after + 1 < int(session.rows("changes_begin")[0][0]):
        return EndedAfter([], None)
    number = campaign_number(session, campaign)
    found: dict[int, None] = {}
    at = after
    while number is not None:
        rows = rows_after(session, at, campaign=number, limit=STREAM_ROWS)
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


def is_owned(session: Session, campaign: str, owner: str) -> bool:
    """Whether a campaign belongs to an owner."""
    return session.rows("campaign_owner", name=campaign) == [(owner,)]
