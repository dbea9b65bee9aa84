"""Followers of the feed of state changes: the server has one reader, which turns the feed into lines once for all.

The newest lines stay in memory, up to `RECENT_BYTES_MAX`. A follower that is further behind reads its own rows from the
store, a few at a time, until it has caught up. So a slow follower loses nothing, and costs no memory.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from tidemill import log
from tidemill.errors import SiteError
from tidemill.server.database.store import Session
from tidemill.server.read import feed
from tidemill.server.read.feed import FeedRow

FOLLOWERS_MAX = 200
BEAT_S = 15.0  #: interval of comment lines in a quiet feed: they reveal dead connections
PAUSE_S = 0.02  #: between two reads of the feed, whatever the rate of commits
READ_ROWS = 20  #: rows of the feed per read, 170 KB each at most
RECENT_BYTES_MAX = 16_000_000  #: lines in memory, for followers that are nearly up to date
LINES_BYTES_MAX = 1_000_000  #: recent lines that a follower gets at once
OWNED_MAX = 10_000  #: campaigns whose ownership a follower remembers
T = TypeVar("T")
_LOG = log.Log("server")
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_LINE = b"id: %d\ndata: %b\n\n"


class FeedSource(Protocol):
    """What followers need of the server."""

    closing: bool

    async def read(self, act: Callable[[Session], T]) -> T:
        """Run `act` in one of the reading threads, and return its result."""

    def next_change(self) -> asyncio.Event:
        """An event that is set at the next commit."""

    async def changed(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a commit after the call that returned `event`."""


class Interest(NamedTuple):
    """The changes that a follower gets: of a campaign by its number (None = of any), of an owner (None = of any)."""

    campaign: int | None = None
    owner: str | None = None


class Lines(NamedTuple):
    """Changes of one campaign in the form that is sent, with all numbers from `first` to `last`."""

    first: int
    last: int
    campaign: int
    text: bytes

    def since(self, after: int) -> Lines:
        """The changes after a number."""
        if after < self.first:
            return self
        left = self.text.split(b"\n\n")[after + 1 - self.first :]
        return Lines(after + 1, self.last, self.campaign, b"\n\n".join(left))


def lines_of(row: FeedRow) -> Lines:
    """The lines of a row of the feed. Pure."""
    text = b"".join(_LINE % pair for pair in enumerate(_RAW.decode(row.body), row.first))
    return Lines(row.first, row.last, row.campaign, text)


class _Follower:
    def __init__(self, interest: Interest, after: int) -> None:
        self.interest, self.after = interest, after
        self.awake = asyncio.Event()
        self.owned: dict[int, bool] = {}  #: by campaign; owners never change


class Followers:
    """All followers of one server. Runs in the event loop's thread."""

    def __init__(self, source: FeedSource, *, recent_bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._source, self._recent_bytes_max = source, recent_bytes_max
        self._all: set[_Follower] = set()
        self._task: asyncio.Task[None] | None = None
        self._recent: list[Lines] = []
        self._floor = self._head = 0  #: the changes after `_floor`, up to `_head`, are in `_recent`
        self._bytes = 0

    @property
    def count(self) -> int:
        """The number of followers."""
        return len(self._all)

    @property
    def is_full(self) -> bool:
        """Whether further clients are refused."""
        return len(self._all) >= FOLLOWERS_MAX

    async def follow(
        self, interest: Interest, after: int, is_believed: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """The feed after a number: `id:` and `data:` of each change, and comments while it is quiet. Ends when the
        server stops or the credential ends."""
        follower = _Follower(interest, after)
        self._all.add(follower)
        try:
            yield b": changes\n\n"
            while not self._source.closing and is_believed():
                self._start()
                follower.awake.clear()
                lines, reached = await self._next(follower)
                for each in lines:
                    yield each.text
                follower.after = max(follower.after, reached)
                if follower.after < self._head:
                    continue
                try:
                    await asyncio.wait_for(follower.awake.wait(), BEAT_S)
                except TimeoutError:
                    yield b": quiet\n\n"
        finally:
            self._all.discard(follower)

    # ---- what a follower takes -------------------------------------------------------------------------------

    async def _next(self, follower: _Follower) -> tuple[list[Lines], int]:
        """The next changes for a follower, and the number up to which it then has all."""
        wanted = follower.interest.campaign
        if follower.after < self._floor:
            lines, reached = await self._stored(follower.after, wanted)
        else:
            lines, reached = self._kept(follower.after)
        lines = [each for each in lines if wanted in (None, each.campaign)]
        if follower.interest.owner is not None:
            lines = [each for each in lines if await self._is_own(follower, each.campaign)]
        return lines, reached

    def _kept(self, after: int) -> tuple[list[Lines], int]:
        start = bisect_right(self._recent, after, key=lambda each: each.last)
        found: list[Lines] = []
        size = 0
        for at in range(start, len(self._recent)):  # `islice` would step over all lines before `start`
            if size > LINES_BYTES_MAX:
                return found, found[-1].last
            each = self._recent[at]
            found.append(each.since(after))
            size += len(each.text)
        return found, max(self._head, after)

    async def _stored(self, after: int, campaign: int | None) -> tuple[list[Lines], int]:
        """The next changes from the store, and the number that is reached. For one campaign, reads its rows only."""
        head = self._head
        lines, reached = await self._source.read(partial(_stored_lines, after=after, campaign=campaign))
        return lines, max(after, head if reached is None else reached)

    async def _is_own(self, follower: _Follower, campaign: int) -> bool:
        if campaign not in follower.owned:
            if len(follower.owned) >= OWNED_MAX:
                follower.owned.clear()
            owner = follower.interest.owner or ""
            owned = await self._source.read(partial(feed.owned, campaigns=[campaign], owner=owner))
            follower.owned[campaign] = campaign in owned
        return follower.owned[campaign]

    # ---- the one reader --------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._task is None or self._task.done():
            if self._task is not None and not self._task.cancelled() and self._task.exception() is not None:
                _LOG.error("feed.failed", error=repr(self._task.exception()))
            self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Read the feed while clients follow it, and wake the followers that a change concerns."""
        is_new = True
        while self._all and not self._source.closing:
            changed = self._source.next_change()
            try:
                if is_new:
                    self._restart(await self._source.read(feed.reached))
                    is_new = False
                lines, reached = await self._source.read(partial(_lines_after, after=self._head))
            except SiteError as error:
                _LOG.warning("feed.stale", reason=error.message)
                lines, reached = [], self._head
            if reached > self._head:
                self._keep(lines, reached)
                await asyncio.sleep(PAUSE_S)
            else:
                await self._source.changed(changed, BEAT_S)
        for each in self._all:
            each.awake.set()

    def _restart(self, head: int) -> None:
        self._recent, self._bytes = [], 0
        self._floor = self._head = head
        for each in self._all:
            each.awake.set()

    def _keep(self, lines: list[Lines], reached: int) -> None:
        before, self._head = self._head, reached
        self._recent += lines
        self._bytes += sum(len(each.text) for each in lines)
        gone = 0
        while self._bytes > self._recent_bytes_max:
            self._bytes -= len(self._recent[gone].text)
            self._floor = self._recent[gone].last
            gone += 1
        del self._recent[:gone]
        campaigns = {each.campaign for each in lines}
        for each in self._all:
            if each.interest.campaign is None or each.interest.campaign in campaigns:
                each.awake.set()
            elif each.after == before:  # it was up to date, and the new lines are not of its campaign
                each.after = reached


def _lines_after(session: Session, *, after: int) -> tuple[list[Lines], int]:
    """The next lines after `after`, at which a row ends, and the number that is reached."""
    rows = feed.rows_after(session, after, limit=READ_ROWS)
    return [lines_of(row) for row in rows], rows[-1].last if rows else after


def _stored_lines(session: Session, *, after: int, campaign: int | None) -> tuple[list[Lines], int | None]:
    """The next lines after a number, of one or of all campaigns, and the number that is reached; None = no more lines
    are stored."""
    rows = feed.rows_after(session, after, campaign=campaign, limit=feed.STREAM_ROWS)
    lines = [lines_of(row).since(after) for row in rows if row.last > after]
    return lines, rows[-1].last if len(rows) >= feed.STREAM_ROWS else None
