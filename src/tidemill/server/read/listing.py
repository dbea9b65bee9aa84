"""Which jobs a filtered, sorted page shows: keyset pages over the indexes, bounded work whatever is asked for.

A filter is the set of (kind, state, site) whose counters say that there are such jobs: its legs. Where jobs of the
filter are frequent, the next `LOOK` jobs in order fill the page. Where they are rare, each leg is asked for its first
job after the page's start, one index probe each, and only legs whose first job can be on the page are read.
"""

from __future__ import annotations

import heapq
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from tidemill.errors import did_you_mean
from tidemill.model.state import JobState
from tidemill.server.database.rows import CANCELED, COMPLETED, FAILED, PARTIAL, STATE_CODES
from tidemill.server.database.store import Session
from tidemill.server.errors import RequestError

TOP = 2**62
LOOK = 5_000  #: jobs looked at in one step, by order; about 5 ms
ROUNDS = 4  #: such steps for one page, at most
LEGS_FEW = 16  #: up to this many legs are read at once, without a first pass
LAST = "\U0010ffff"  #: above every name, in both databases
ENDED = (COMPLETED, PARTIAL, FAILED, CANCELED)
Leg = tuple[int, int, int]
_HEADS = msgspec.json.Encoder()


class Sort(StrEnum):
    """Orders of a listing of jobs."""

    NEWEST = "newest"
    OLDEST = "oldest"
    ENDED = "ended"
    NAME = "name"


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs; None = any. `name`: exactly; `begins`: how the name begins; `owner`: of the campaign."""

    state: str | None = None
    app: str | None = None
    site: str | None = None
    campaign: str | None = None
    name: str | None = None
    begins: str | None = None
    owner: str | None = None

    @property
    def by_legs(self) -> bool:
        """Whether anything but the name is asked for."""
        return (self.state, self.app, self.site, self.campaign, self.owner) != (None,) * 5


class IdPage(NamedTuple):
    """Ids of a page. `after`: where the next page starts, None = this is the last; `total`: None = not counted."""

    ids: list[int]
    after: str | None
    total: int | None
    sort: Sort
    partial: bool = False  #: the page is short because enough was looked at, not because there is no more


def find(session: Session, filters: Filter, sort: Sort, *, after: str | None, size: int) -> IdPage:
    """A page of jobs. Raises RequestError for a state that there is not, or a place that cannot be read."""
    legs = legs_of(session, filters) if filters.by_legs else None
    total = None if legs is None else sum(legs.values())
    chosen = None if legs is None else set(legs)
    if filters.begins is not None or sort is Sort.NAME:
        return _named(session, filters.begins or "", chosen, sort, (after, size))
    if sort is Sort.ENDED:
        if chosen is not None:
            chosen = {leg for leg in chosen if leg[1] in ENDED}
        return _ended(session, chosen, after, size)._replace(total=total)
    start = _place(after, 1)[0] if after is not None else TOP if sort is Sort.NEWEST else 0
    ids = by_id(session, chosen, start, size=size, newest=sort is Sort.NEWEST)
    return IdPage(ids, str(ids[-1]) if len(ids) == size else None, total, sort)


def legs_of(session: Session, filters: Filter) -> dict[Leg, int]:
    """The (kind, state, site) of a filter and how many jobs each has."""
    if filters.state is not None and filters.state not in STATE_CODES:
        raise RequestError(
            f"`{filters.state}` is no state of a job", hint=did_you_mean(filters.state, list(JobState))
        )
    site = -1
    if filters.site is not None:
        found = [row[0] for row in session.rows("site_names") if row[1] == filters.site]
        if not found:
            return {}
        site = found[0]
    kinds = _kinds(session, filters)
    if kinds is not None and not kinds:
        return {}
    rows = session.rows(
        "counts_in", every=int(kinds is None), kinds=kinds or [], site=site,
        state=-1 if filters.state is None else STATE_CODES[filters.state],
    )  # fmt: skip
    return {(kind, state, at): jobs for kind, state, at, jobs in rows}


def _kinds(session: Session, filters: Filter) -> list[int] | None:
    if filters.campaign is None and filters.app is None and filters.owner is None:
        return None
    campaign = 0
    if filters.campaign is not None:
        rows = session.rows("campaign_by_name", name=filters.campaign)
        campaign = rows[0][0] if rows else -1
    rows = session.rows(
        "kinds_found", campaign=campaign,
        owner=filters.owner or "", any_owner=int(filters.owner is None),
        app=filters.app or "", any_app=int(filters.app is None),
    )  # fmt: skip
    return [row[0] for row in rows]


def by_id(session: Session, legs: set[Leg] | None, start: int, *, size: int, newest: bool) -> list[int]:
    """The next ids before (`newest`) or after `start`."""
    if legs is None:
        name, key = ("jobs_newest", "before") if newest else ("jobs_oldest", "after")
        return [row[0] for row in session.rows(name, limit=size, **{key: start})]
    if not legs:
        return []
    if len(legs) > LEGS_FEW:
        name, key = ("jobs_look_newest", "before") if newest else ("jobs_look_oldest", "after")
        rows = session.rows(name, limit=LOOK, **{key: start})
        ids = [row[0] for row in rows if row[1:4] in legs]
        if len(ids) >= size or len(rows) < LOOK:
            return ids[:size]
    return _by_legs(session, legs, start, size=size, newest=newest)


def _by_legs(session: Session, legs: set[Leg], start: int, *, size: int, newest: bool) -> list[int]:
    text = _HEADS.encode(sorted(legs)).decode()
    sign = -1 if newest else 1
    if newest:
        found = session.rows("newest_of_legs", legs=text, before=start)
    else:
        found = session.rows("oldest_of_legs", legs=text, after=start)
    heads = sorted((sign * row[3], row[:3]) for row in found if row[3] is not None)
    best: list[int] = []  # in order, as sign * id
    for head, (kind, state, site) in heads[:size]:
        if len(best) == size and head > best[-1]:
            break
        leg = {"kind": kind, "state": state, "site": site, "limit": size}
        name, key = ("jobs_newest_in", "before") if newest else ("jobs_after_in", "after")
        more = [sign * row[0] for row in session.rows(name, **leg, **{key: start})]
        best = list(heapq.merge(best, more))[:size]
    return [sign * each for each in best]


def _ended(session: Session, legs: set[Leg] | None, after: str | None, size: int) -> IdPage:
    """Those that ended last. `after` is `TIME.ID`."""
    ended_us, number = _place(after, 2) if after is not None else (TOP, TOP)
    ids: list[int] = []
    if legs is not None and not legs:
        return IdPage([], None, None, Sort.ENDED)
    look = LOOK if legs is not None else size + 1
    for _ in range(ROUNDS):
        rows = session.rows("jobs_look_ended", ended_us=ended_us, id=number, limit=look)
        for row in rows:
            ended_us, number = row[4], row[0]
            if legs is None or row[1:4] in legs:
                ids.append(row[0])
                if len(ids) == size:
                    return IdPage(ids, f"{ended_us}.{number}", None, Sort.ENDED)
        if len(rows) < look:
            return IdPage(ids, None, None, Sort.ENDED)
    return IdPage(ids, f"{ended_us}.{number}", None, Sort.ENDED, partial=True)


def _named(
    session: Session, prefix: str, legs: set[Leg] | None, sort: Sort, page: tuple[str | None, int]
) -> IdPage:
    """By name, all those that begin so; in another order if they are few enough to be sorted here."""
    after, size = page
    if sort is not Sort.NAME:
        rows = session.rows("jobs_look_named", name=prefix, id=-1, last=prefix + LAST, limit=LOOK)
        if len(rows) < LOOK:
            return _sorted(session, [row for row in rows if legs is None or row[1:4] in legs], sort, page)
    name, number = prefix, -1
    if after is not None:
        number = _place(after, 1)[0]
        found = session.rows("jobs_by_id", ids=[number])
        name = found[0][22] if found else prefix
    ids: list[int] = []
    look = LOOK if legs is not None else size + 1
    for _ in range(ROUNDS):
        rows = session.rows("jobs_look_named", name=name, id=number, last=prefix + LAST, limit=look)
        for row in rows:
            number, name = row[0], row[4]
            if legs is None or row[1:4] in legs:
                ids.append(number)
                if len(ids) == size:
                    return IdPage(ids, str(number), None, Sort.NAME)
        if len(rows) < look:
            return IdPage(ids, None, None, Sort.NAME)
    return IdPage(ids, str(number), None, Sort.NAME, partial=True)


def _sorted(session: Session, rows: list[Any], sort: Sort, page: tuple[str | None, int]) -> IdPage:
    after, size = page
    ids: list[int] = [row[0] for row in rows]
    start = () if after is None else _place(after, 2 if sort is Sort.ENDED else 1)
    jobs: dict[int, int] = {}
    if sort is Sort.ENDED:
        jobs = {row[0]: row[20] for row in session.rows("jobs_by_id", ids=ids)} if ids else {}
        ids = [each for each in ids if jobs.get(each)]

    def place_of(each: int) -> tuple[int, ...]:
        if sort is Sort.ENDED:
            return (-jobs[each], -each)
        return (-each if sort is Sort.NEWEST else each,)

    past = start if sort is Sort.OLDEST else tuple(-each for each in start)
    ids.sort(key=place_of)
    rest = [each for each in ids if not past or place_of(each) > past]
    chosen = rest[:size]
    more = len(rest) > size
    token = None
    if more:
        token = f"{jobs[chosen[-1]]}.{chosen[-1]}" if sort is Sort.ENDED else str(chosen[-1])
    return IdPage(chosen, token, len(ids), sort)


def _place(text: str, parts: int) -> tuple[int, ...]:
    pieces = text.split(".")
    if len(pieces) != parts or not all(each.isdecimal() and len(each) < 19 for each in pieces):
        raise RequestError(f"`{text[:40]}` is no place in this listing", hint="start from its first page")
    return tuple(map(int, pieces))
