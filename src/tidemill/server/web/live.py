"""Live pages: one reader of the feed of changes sends news to all open pages, at most once a second.

News names the jobs and campaigns that changed, not what changed in them: a page that shows one of them reloads itself.
So the cost grows neither with the number of open pages nor, for each page, with the number of changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidemill import clock, log
from tidemill.errors import SiteError
from tidemill.model.identity import Identity, Role
from tidemill.server.api.app import Api
from tidemill.server.read import feed, web_pages

WATCHERS_MAX = 200
OWN_MAX = 50  #: of one person
PAUSE_S = 1.0
BEAT_S = 15.0
JOBS_TOLD_MAX = 200  #: more changed jobs than this are sent as "many"
READS_MAX = 50  #: of the feed for one piece of news; the next one has the rest
_LOG = log.Log("web")


class News(NamedTuple):
    """What changed up to a number. `jobs` None: too many to list."""

    number: int
    jobs: frozenset[int] | None
    campaigns: frozenset[int]


class Hub:
    """Reads the feed while pages are open. Runs in the event loop's thread."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._watchers: dict[asyncio.Queue[News | None], tuple[Role, str]] = {}
        self._task: asyncio.Task[None] | None = None

    def is_full(self, identity: Identity) -> bool:
        """Whether this user can open no further live page: no user can take all places."""
        own = sum(each == (identity.role, identity.name) for each in self._watchers.values())
        return own >= OWN_MAX or len(self._watchers) >= WATCHERS_MAX

    async def watch(
        self, after: int, identity: Identity, sees: Callable[[frozenset[int]], Any]
    ) -> AsyncIterator[bytes]:
        """Server-sent events: `news` whenever something may have changed that this watcher is allowed to know of.

        `after`: what the page has seen; later changes are sent at once. `sees`: awaited with numbers of campaigns,
        returns references of those that this watcher may know of. Ends when the credential expires.
        """
        queue: asyncio.Queue[News | None] = asyncio.Queue(1)
        self._watchers[queue] = (identity.role, identity.name)
        try:
            yield b"retry: 3000\n: pages\n\n"
            reached = await self._api.read(web_pages.reached)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._read(reached))
            if reached > after:
                yield _event(News(reached, None, frozenset()), ())
            while not self._api.closing and self._api.believed(identity):
                try:
                    news = await asyncio.wait_for(queue.get(), _patience_s(identity))
                except TimeoutError:
                    yield b": quiet\n\n"
                    continue
                if news is None or not self._api.believed(identity):
                    break
                allowed: dict[int, str] = await sees(news.campaigns)
                if allowed or not news.campaigns:
                    jobs = news.jobs if allowed.keys() == news.campaigns else None
                    yield _event(news._replace(jobs=jobs), allowed.values())
        finally:
            self._watchers.pop(queue, None)

    async def _read(self, number: int) -> None:
        while self._watchers and not self._api.closing:
            changed = self._api.next_change()
            try:
                news = await self._api.read(partial(_news, after=number))
            except SiteError as error:
                _LOG.warning("pages.stale", reason=error.message)
                news = None
            if news is None:
                await self._api.changed(changed, BEAT_S)
                continue
            number = news.number
            for queue in self._watchers:
                # a slow one: what it has not taken yet is part of what it takes next
                late = queue.get_nowait() if queue.full() else None
                queue.put_nowait(news if late is None else _both(late, news))
            await asyncio.sleep(PAUSE_S)
        for queue in self._watchers:  # the server stops
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)


def _patience_s(identity: Identity) -> float:
    """How long to wait for news before checking again whether this user may receive them."""
    if identity.expires_us is None:
        return BEAT_S
    return min(BEAT_S, max(0.0, (identity.expires_us - clock.now_us()) / 1e6) + 0.01)


def _news(session: Any, *, after: int) -> News | None:
    jobs: set[int] = set()
    campaigns: set[int] = set()
    number = after
    for _ in range(READS_MAX):
        rows = feed.rows_after(session, number)
        if not rows:
            break
        for row in rows:
            jobs.update(each.job for each in row.decoded() if each.number > number)
        campaigns.update(row.campaign for row in rows if row.last > number)
        number = rows[-1].last
    if number == after:
        return None
    return News(number, frozenset(jobs) if len(jobs) <= JOBS_TOLD_MAX else None, frozenset(campaigns))


def _both(one: News, other: News) -> News:
    jobs = None if one.jobs is None or other.jobs is None else one.jobs | other.jobs
    if jobs is not None and len(jobs) > JOBS_TOLD_MAX:
        jobs = None
    return News(max(one.number, other.number), jobs, one.campaigns | other.campaigns)


def _event(news: News, campaigns: Iterable[str]) -> bytes:
    told = {
        "number": news.number,
        "jobs": None if news.jobs is None else sorted(news.jobs),
        "campaigns": sorted(campaigns),
    }
    return b"id: %d\nevent: news\ndata: %b\n\n" % (news.number, msgspec.json.encode(told))
