"""Which jobs a filtered, sorted page shows: keyset pages over the indexes, bounded work whatever is asked for.

A filter is the set of (kind, state, site) whose counters say that there are such jobs: its legs. Where jobs of the
filter are frequent, the next `LOOK` jobs in order fill the page. Where they are rare, each leg is asked for its first
job after the page's start, one index probe each, and only legs whose first job can be on the page are read. A filter
has more than LEGS_MAX legs only if it names no campaign and covers years of history: then up to `ROUNDS` times `LOOK`
jobs are examined, and the page may be short.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from tidemill.errors import did_you_mean
from tidemill.model.state import JobState
from tidemill.server.database.rows import CANCELED, COMPLETED, FAILED, JOB_STATES, PARTIAL, STATE_CODES
from tidemill.server.database.store import Row, Session, values
from tidemill.server.errors import RequestError

TOP = 2**62
LOOK = 5_000  #: jobs examined in one step, in order; about 5 ms
GLANCE = 500  #: jobs examined before that: where jobs of the filter are frequent, they fill the page
ROUNDS = 4  #: such steps for one page, at most
LEGS_MAX = 500  #: as many index probes are made for one page, at most; about 5 ms
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
    """Which jobs; None = any. `campaign`: its number; `name`: exactly; `begins`: how the name begins; `owner`: of the
    campaign."""

    state: str | None = None
    app: str | None = None
    site: str | None = None
    campaign: int | None = None
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
    partial: bool = False  #: the page is short because the search reached its limit; there may be more jobs


def find(session: Session, filters: Filter, sort: Sort, *, after: str | None, size: int) -> IdPage:
    """A page of jobs. Raises RequestError for a state that there is not, or a place that cannot be read."""
    legs = legs_of(session, filters) if filters.by_legs else None
    total = sum(legs.values()) if isinstance(legs, dict) else None
    chosen = set(legs) if isinstance(legs, dict) else legs
    if filters.begins is not None or sort is Sort.NAME:
        return _named(session, filters.begins or "", chosen, sort, (after, size))
    if sort is Sort.ENDED:
        if isinstance(chosen, set):
            chosen = {leg for leg in chosen if leg[1] in ENDED}
        return _ended(session, chosen, after, size)._replace(total=total)
    start = _place(after, 1)[0] if after is not None else TOP if sort is Sort.NEWEST else 0
    if isinstance(chosen, ManyLegs):
        ids, reached = looked_by_id(session, chosen, start, size=size, newest=sort is Sort.NEWEST)
        after = None if reached is None else str(reached)
        return IdPage(ids, after, None, sort, partial=after is not None and len(ids) < size)
    ids = by_id(session, chosen, start, size=size, newest=sort is Sort.NEWEST)
    return IdPage(ids, str(ids[-1]) if len(ids) == size else None, total, sort)


class ManyLegs:
    """A filter with more legs than are followed: decides which of the examined jobs pass. `in` takes a leg."""

    def __init__(self, session: Session, filters: Filter, site: int) -> None:
        self._session, self._filters, self._site = session, filters, site
        self._state = -1 if filters.state is None else STATE_CODES[filters.state]
        self._kinds: dict[int, bool] = {}

    def learn(self, rows: Sequence[Row]) -> None:
        """Look up the kinds of these rows, each once."""
        app, owner = self._filters.app, self._filters.owner
        fresh = {row.kind for row in rows} - self._kinds.keys()
        if app is None and owner is None:
            self._kinds.update(dict.fromkeys(fresh, True))
        elif fresh:
            for kind, of_app, of_owner in self._session.rows("kinds_look", ids=sorted(fresh)):
                self._kinds[kind] = app in (None, of_app) and owner in (None, of_owner)

    def __contains__(self, leg: tuple[Any, ...]) -> bool:
        kind, state, site = leg
        return self._kinds.get(kind, False) and self._state in (-1, state) and self._site in (-1, site)


def passing(rows: list[Row], legs: set[Leg] | ManyLegs | None) -> list[Row]:
    """The rows, of jobs with kind, state and site, that a filter lets pass; None = all."""
    if legs is None:
        return rows
    if isinstance(legs, ManyLegs):
        legs.learn(rows)
    return [row for row in rows if (row.kind, row.state, row.site) in legs]


def looked_by_id(
    session: Session, chosen: ManyLegs, start: int, *, size: int, newest: bool
) -> tuple[list[int], int | None]:
    """The next ids before (`newest`) or after `start` among some thousand jobs, and how far was looked, None = to the
    end."""
    name, key = ("jobs_look_newest", "before") if newest else ("jobs_look_oldest", "after")
    ids: list[int] = []
    for look in (GLANCE, *[LOOK] * ROUNDS):
        rows = session.rows(name, limit=look, **{key: start})
        ids += [row.id for row in passing(rows, chosen)]
        if len(ids) >= size:
            return ids[:size], ids[size - 1]
        if len(rows) < look:
            return ids, None
        start = rows[-1].id
    return ids, start


def legs_of(session: Session, filters: Filter) -> dict[Leg, int] | ManyLegs:
    """The (kind, state, site) of a filter and how many jobs each has; a test of jobs where there are too many."""
    if filters.state is not None and filters.state not in STATE_CODES:
        raise RequestError(
            f"`{filters.state}` is not a state of a job", hint=did_you_mean(filters.state, list(JobState))
        )
    site = -1
    if filters.site is not None:
        found = [row.id for row in session.rows("site_names") if row.name == filters.site]
        if not found:
            return {}
        site = found[0]
    kinds = _kinds(session, filters)
    if kinds is not None and not kinds:
        return {}
    if kinds is not None and len(kinds) > LEGS_MAX and filters.campaign is None:
        return ManyLegs(session, filters, site)
    rows = _counters(session, kinds, -1 if filters.state is None else STATE_CODES[filters.state], site)
    if len(rows) > LEGS_MAX and filters.campaign is None:
        return ManyLegs(session, filters, site)
    return {(kind, state, at): jobs for kind, state, at, jobs in rows}


def _counters(session: Session, kinds: list[int] | None, state: int, site: int) -> list[Row]:
    """Counters of these kinds, or (None) some more than LEGS_MAX of all at most."""
    if kinds is not None:
        return session.rows("counters", kinds=kinds, state=state, site=site)
    rows: list[Row] = []
    for each in range(len(JOB_STATES)) if state < 0 else (state,):
        if site < 0:
            rows += session.rows("counters_of_state", state=each, limit=LEGS_MAX + 1)
        else:
            rows += session.rows("counters_at_site", state=each, site=site, limit=LEGS_MAX + 1)
    return rows


def _kinds(session: Session, filters: Filter) -> list[int] | None:
    """None = any. Without a campaign some more than LEGS_MAX at most."""
    app, owner = filters.app, filters.owner
    if filters.campaign is not None:
        any_app = int(app is None)
        return values(
            session, "kinds_of_campaign", campaign=filters.campaign, app=app or "", any_app=any_app, limit=TOP
        )
    if app is None and owner is None:
        return None
    if app is not None:
        any_owner = int(owner is None)
        return values(
            session, "kinds_of_app", app=app, owner=owner or "", any_owner=any_owner, limit=LEGS_MAX + 1
        )
    return values(session, "kinds_of_owner", owner=owner, limit=LEGS_MAX + 1)


def by_id(session: Session, legs: set[Leg] | None, start: int, *, size: int, newest: bool) -> list[int]:
    """The next ids before (`newest`) or after `start`."""
    if legs is None:
        name, key = ("jobs_newest", "before") if newest else ("jobs_oldest", "after")
        return values(session, name, limit=size, **{key: start})
    if not legs:
        return []
    if len(legs) > LEGS_FEW:
        name, key = ("jobs_look_newest", "before") if newest else ("jobs_look_oldest", "after")
        for look in (GLANCE, LOOK):
            rows = session.rows(name, limit=look, **{key: start})
            ids = [row.id for row in passing(rows, legs)]
            if len(ids) >= size or len(rows) < look:
                return ids[:size]
    return _by_legs(session, legs, start, size=size, newest=newest)


def _by_legs(session: Session, legs: set[Leg], start: int, *, size: int, newest: bool) -> list[int]:
    text = _HEADS.encode(sorted(legs)).decode()
    sign = -1 if newest else 1
    if newest:
        found = session.rows("newest_of_legs", legs=text, before=start)
    else:
        found = session.rows("oldest_of_legs", legs=text, after=start)
    heads = sorted((sign * head, leg) for *leg, head in found if head is not None)
    best: list[int] = []  # in order, as sign * id
    for head, (kind, state, site) in heads[:size]:
        if len(best) == size and head > best[-1]:
            break
        leg = {"kind": kind, "state": state, "site": site, "limit": size}
        name, key = ("jobs_newest_in", "before") if newest else ("jobs_after_in", "after")
        more = [sign * each for each in values(session, name, **leg, **{key: start})]
        best = list(heapq.merge(best, more))[:size]
    return [sign * each for each in best]


def _ended(session: Session, legs: set[Leg] | ManyLegs | None, after: str | None, size: int) -> IdPage:
    """Those that ended last. `after` is `TIME.ID`."""
    ended_us, number = _place(after, 2) if after is not None else (TOP, TOP)
    ids: list[int] = []
    if isinstance(legs, set) and not legs:
        return IdPage([], None, None, Sort.ENDED)
    look = LOOK if legs is not None else size + 1
    for _ in range(ROUNDS):
        rows = session.rows("jobs_look_ended", ended_us=ended_us, id=number, limit=look)
        for row in passing(rows, legs):
            ids.append(row.id)
            if len(ids) == size:
                return IdPage(ids, f"{row.ended_us}.{row.id}", None, Sort.ENDED)
        if len(rows) < look:
            return IdPage(ids, None, None, Sort.ENDED)
        ended_us, number = rows[-1].ended_us, rows[-1].id
    return IdPage(ids, f"{ended_us}.{number}", None, Sort.ENDED, partial=True)


def _named(
    session: Session, prefix: str, legs: set[Leg] | ManyLegs | None, sort: Sort, page: tuple[str | None, int]
) -> IdPage:
    """By name, all those that begin so; in another order if they are few enough to be sorted here."""
    after, size = page
    if sort is not Sort.NAME:
        rows = session.rows("jobs_look_named", name=prefix, id=-1, last=prefix + LAST, limit=LOOK)
        if len(rows) < LOOK:
            return _sorted(session, passing(rows, legs), sort, page)
    name, number = prefix, -1
    if after is not None:
        number = _place(after, 1)[0]
        found = session.rows("jobs_by_id", ids=[number])
        name = found[0].name if found else prefix
    ids: list[int] = []
    look = LOOK if legs is not None else size + 1
    for _ in range(ROUNDS):
        rows = session.rows("jobs_look_named", name=name, id=number, last=prefix + LAST, limit=look)
        for row in passing(rows, legs):
            ids.append(row.id)
            if len(ids) == size:
                return IdPage(ids, str(row.id), None, Sort.NAME)
        if len(rows) < look:
            return IdPage(ids, None, None, Sort.NAME)
        number, name = rows[-1].id, rows[-1].name
    return IdPage(ids, str(number), None, Sort.NAME, partial=True)


def _sorted(session: Session, rows: list[Row], sort: Sort, page: tuple[str | None, int]) -> IdPage:
    after, size = page
    ids: list[int] = [row.id for row in rows]
    start = () if after is None else _place(after, 2 if sort is Sort.ENDED else 1)
    jobs: dict[int, int] = {}
    if sort is Sort.ENDED:
        jobs = {job.id: job.ended_us for job in session.rows("jobs_by_id", ids=ids)} if ids else {}
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
        raise RequestError(f"`{text[:40]}` is not a place in this listing", hint="start from its first page")
    return tuple(map(int, pieces))
