"""State changes out: each submitter gets those of its own jobs, at least once, and in order per job.

How many events of a running job are done is not sent: it changes with every exchange of a site, and no experiment that
takes messages has asked for it. `GET /v1/changes` has it.

They come from the server's feed of changes. The number of the last change that a submitter received is written to the
database after the broker's confirmation, so neither a restart of the server nor one of the broker skips anything. What
waits for the broker stays in the feed. A submitter whose queue is full delays no other submitter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import NamedTuple

import msgspec

from tidemill import clock, log
from tidemill.errors import SiteError
from tidemill.server.transports import ChangeReader, TransportHost
from tidemill.wire.api import Change
from tidemill_messages.link import Link, Message
from tidemill_messages.names import STATES, Gap, Type

WINDOW_MAX = 500  #: messages that wait for their confirmation together
ROWS = 40  #: rows of the feed that are read at once; a row holds up to 1,000 changes
CONFIRM_S = 60.0
SAVE_S = 1.0  #: pause between two writes of the position; what is sent again after a crash is at most as old
LOOK_S = 5.0  #: interval of polls of the feed, besides those after a commit
AGAIN_S = 1.0
AGAIN_MAX_S = 30.0
TRANSPORT = "amqp"  #: as the database knows its followers
_LOG = log.Log("gateway")
_ENCODER = msgspec.json.Encoder()


class Follower(msgspec.Struct):
    """A submitter, and the number of the last change that it was sent, or that is not about its jobs."""

    name: str
    position: int
    saved: int
    next_s: float = 0.0
    pause_s: float = AGAIN_S
    last_error: str = ""
    is_revoked: bool = False


class _Sent(NamedTuple):
    number: int
    done: Future[None]


def windows(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """What may be under way together: no two of one job, so that what is sent again never comes behind a later one."""
    window: dict[int, Change] = {}
    for change in changes:
        if change.job in window or len(window) == WINDOW_MAX:
            yield list(window.values())
            window = {}
        window[change.job] = change
    if window:
        yield list(window.values())


class Feed:
    """Sends state changes to submitters. `run` it in a thread of its own."""

    def __init__(self, host: TransportHost, *, link: Link, names: Mapping[str, Callable[[], bool]]) -> None:
        """`names`: submitters, and whether they are revoked by now."""
        self._host, self._link = host, link
        self._names = dict(sorted(names.items()))
        self._woken = threading.Event()
        self._closing = False
        self.followers: list[Follower] = []
        self._saved_s = 0.0

    def wake(self) -> None:
        """There may be something new. From any thread."""
        self._woken.set()

    def close(self) -> None:
        """Let `run` end."""
        self._closing = True
        self._woken.set()

    def prepare(self) -> None:
        """Positions from the database; a new submitter's is the end of the feed, and before its first job is taken."""
        known = self._host.positions(TRANSPORT, list(self._names))
        self.followers = [Follower(name, position, position) for name, position in known.items()]

    def run(self) -> None:
        """Send changes until `close`."""
        changes: ChangeReader | None = None
        while not self._closing:
            self._woken.clear()
            moved = False
            try:
                changes = changes or self._host.changes()
                moved = self._round(changes)
            except SiteError as error:
                _LOG.warning("feed.unread", error=error.message)
                self._close(changes)
                changes = None
            except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
                _LOG.error("feed.failed", error=repr(error))
                self._close(changes)
                changes = None
            if not moved:
                self._woken.wait(self._pause_s())
        self._save(now_s=None)
        self._close(changes)

    def _close(self, changes: ChangeReader | None) -> None:
        if changes is not None:
            changes.close()

    def _pause_s(self) -> float:
        """Seconds until a submitter is to be tried again, or the position is to be written."""
        now_s = clock.monotonic_s()
        waits = [each.next_s - now_s for each in self.followers if each.next_s > now_s]
        waits += [SAVE_S] if any(each.position != each.saved for each in self.followers) else []
        return max(0.05, min([LOOK_S, *waits]))

    def _round(self, changes: ChangeReader) -> bool:
        moved = False
        if self._link.is_up:
            now_s = clock.monotonic_s()
            for each in self.followers:
                if now_s >= each.next_s and not self._closing and not self._revoked(each):
                    moved |= self._send_changes(changes, each)
        self._save(now_s=clock.monotonic_s())
        return moved

    def _revoked(self, follower: Follower) -> bool:
        """Whether a submitter is revoked: it is sent nothing. If that is taken back, it goes on where it stopped."""
        is_revoked = self._names[follower.name]()
        if is_revoked != follower.is_revoked:
            follower.is_revoked = is_revoked
            _LOG.warning("states.revoked", submitter=follower.name, revoked=is_revoked)
        return is_revoked

    def _send_changes(self, changes: ChangeReader, follower: Follower) -> bool:
        """Send the next changes; whether the position moved."""
        before = follower.position
        try:
            for row in changes.rows_after(follower.position, limit=ROWS):
                if row.first > follower.position + 1:
                    self._tell_gap(follower, row.first)
                if changes.owner(row.campaign) == follower.name:
                    new = (each for each in row.decoded() if each.number > follower.position)
                    for window in windows([each for each in new if not each.progress]):
                        self._send(follower, window)
                follower.position = row.last
        except SiteError as error:
            if follower.position != before:  # it takes some, if not all
                follower.pause_s = AGAIN_S
            self._away(follower, error)
        else:
            follower.pause_s, follower.last_error = AGAIN_S, ""
        return follower.position != before

    def _send(self, follower: Follower, window: list[Change]) -> None:
        """Publish, and wait until the broker has all. Raises SiteError, the position before the first that failed."""
        sent = [
            _Sent(each.number, self._link.publish(_message(follower.name, Type.CHANGE, each.number, each)))
            for each in window
        ]
        deadline_s = clock.monotonic_s() + CONFIRM_S
        for each in sent:
            try:
                each.done.result(max(0.0, deadline_s - clock.monotonic_s()))
            except TimeoutError as error:
                self._count("failed")
                raise SiteError(f"the broker did not confirm within {CONFIRM_S:.0f} s") from error
            except SiteError:
                self._count("failed")
                raise
            follower.position = each.number
            self._count("done")

    def _count(self, outcome: str) -> None:
        self._host.count(direction="out", outcome=outcome)

    def _tell_gap(self, follower: Follower, first: int) -> None:
        gap = Gap(first=follower.position + 1, last=first - 1)
        _LOG.warning("feed.gap", submitter=follower.name, first=gap.first, last=gap.last)
        self._link.publish(_message(follower.name, Type.GAP, gap.last, gap)).result(CONFIRM_S)
        follower.position = gap.last

    def _away(self, follower: Follower, error: SiteError) -> None:
        follower.next_s = clock.monotonic_s() + (follower.pause_s if self._link.is_up else 0.0)
        follower.pause_s = min(2 * follower.pause_s, AGAIN_MAX_S)
        if error.message != follower.last_error:
            follower.last_error = error.message
            _LOG.warning(
                "states.wait",
                submitter=follower.name,
                position=follower.position,
                why=error.message,
                hint=error.hint,
            )

    def _save(self, now_s: float | None) -> None:
        """Write positions that have changed; `now_s` None = at the end, whatever was written just now."""
        changed = [each for each in self.followers if each.position != each.saved]
        if not changed or (now_s is not None and now_s < self._saved_s + SAVE_S):
            return
        at = [(each, each.position) for each in changed]

        try:
            self._host.save(TRANSPORT, {each.name: position for each, position in at})
        except SiteError as error:
            _LOG.warning("feed.unsaved", error=error.message)
            return
        self._saved_s = clock.monotonic_s()
        for each, position in at:
            each.saved = position


def _message(name: str, kind: Type, number: int, body: msgspec.Struct) -> Message:
    return Message(STATES, name, _ENCODER.encode(body), kind, id=str(number))
