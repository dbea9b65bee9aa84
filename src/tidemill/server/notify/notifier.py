"""Threads of notifications: one gathers what happened and makes messages of it, one for each channel sends them.

What is gathered, what is to be sent and what was sent is committed before the next step, so a server that is killed
anywhere loses nothing, and sends at most the one message twice that it was just handing over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidemill import clock, log
from tidemill.config.addressee import Channel, Occasion, parse_target, shown
from tidemill.config.notify import Notify
from tidemill.errors import SiteError, TidemillError
from tidemill.model.campaign import reference
from tidemill.model.notification import Subscription
from tidemill.server import constants
from tidemill.server.core import campaign_names
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.rows import Site
from tidemill.server.database.store import Session, Store, value
from tidemill.server.errors import AwayError, LaterError, RefusedError
from tidemill.server.notices import gathering, tables
from tidemill.server.notices.digests import (
    DigestLimits,
    DueDigest,
    NoticeKey,
    Pending,
    decide,
    retry_after_us,
)
from tidemill.server.notices.sender import Parcel, Sender
from tidemill.server.notify import facts
from tidemill.server.read import api_pages, feed
from tidemill.server.read.feed import FeedRow
from tidemill.wire.api import Change

SITES_S = 2.0  #: interval at which the states of sites are read
IDLE_KEEP_S = 10.0  #: interval at which the position in the feed is written while there is no subscription
IDLE_KEEP_CHANGES = 50_000
ROUNDS_MAX = 50  #: pieces of the feed that are taken before messages are made
PRUNE_S = 600.0
CLOSE_S = 5.0
TRIES_MIN = 3
GIVE_UP_S = (
    5 * 86400.0
)  #: a message that cannot be sent for this time is given up (RFC 5321, 4.5.4.1: 4-5 days)
KEPT_S = (
    7 * 86400.0
)  #: sent and abandoned messages stay in the database for this time, for who asks where one went
_LOG = log.Log("notify")


def _state_of(site: Site) -> tuple[str, str]:
    """A site's state as notices name it, and the reason."""
    if site.lost:
        return "LOST", ""
    if site.down_us:
        until = f"until {clock.utc_text(site.down_us)}"
        return "DOWN", f"{site.down_reason}, {until}" if site.down_reason else until
    return ("DRAINED" if site.drained else "UP"), site.drain_reason


class Gatherer:
    """Follows the feed of state changes and the sites, keeps notices, makes messages. One thread only."""

    def __init__(self, store: Store, dispatcher: Dispatcher, config: Notify) -> None:
        self._session: Session = store.reader()
        self._dispatcher, self._config = dispatcher, config
        self._limits = DigestLimits(
            int(constants.GATHER_S * 1e6), int(constants.DIGEST_S * 1e6), constants.NOTICES_PER_HOUR_MAX
        )
        self._notices: gathering.Notices | None = None
        self._at = self._kept = 0
        self._kept_s = self._pruned_s = 0.0
        self._going_on: set[str] = set()  #: campaigns that had work left when last read, unchanged since
        self._sites_s = -SITES_S

    def step(self) -> int:
        """Take what is new, and make the messages that are due; how many. Raises SiteError; then call it again."""
        try:
            self._take_feed()
            self._take_sites()
            made = self._make()
        except BaseException:
            self._notices = None  # what is in memory may be ahead of the database
            self._going_on.clear()
            raise
        self._prune()
        return made

    def forget_pauses(self) -> None:
        """Look at everything at the next step."""
        self._sites_s = -SITES_S

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()

    def _load(self) -> gathering.Notices:
        if self._notices is None:
            self._notices = tables.notices(self._session)
            self._at = self._kept = int(value(self._session, "notified"))
        return self._notices

    # ---- what happened -----------------------------------------------------------------------------------------

    def _take_feed(self) -> None:
        self._load()
        end = feed.reached(self._session)  # read first, so that later subscribers miss nothing
        if not self._config.rules and not self._session.rows("subscriptions_any"):
            self._at = max(self._at, end)
            self._going_on.clear()  # no subscription follows them
        for _ in range(ROUNDS_MAX):
            rows = feed.rows_after(self._session, self._at)
            if not rows:
                break
            if rows[0].first > self._at + 1:
                _LOG.warning("feed.gap", after=self._at, next=rows[0].first)
            changed = self._take_changes(rows)
            self._at = rows[-1].last
            if changed:
                self._keep(changed)
        idle_s = clock.monotonic_s() - self._kept_s
        if self._at - self._kept > (0 if idle_s > IDLE_KEEP_S else IDLE_KEEP_CHANGES):
            self._keep(set())

    def _take_changes(self, rows: list[FeedRow]) -> set[NoticeKey]:
        notices = self._load()
        known = self._session.rows("campaign_owners", ids=sorted({row.campaign for row in rows}))
        subjects = {number: reference(owner, name) for number, name, owner in known}
        self._going_on -= set(subjects.values())
        asked = tables.subscriptions(self._session, subjects)
        wants: dict[int, Mapping[str, Subscription]] = {
            number: gathering.wanted(name, asked.get(number, []), self._config.rules)
            for number, name, _ in known
        }
        changed: set[NoticeKey] = set()
        failing: set[int] = set()
        for row in rows:
            wanted = wants.get(row.campaign)
            if not wanted:
                continue
            changes = [each for each in row.decoded() if each.number > self._at]
            changed |= gathering.take_changes(notices, subjects[row.campaign], changes, wanted)
            if any(each.events_failed or _ends(each) for each in changes):
                failing.add(row.campaign)
        for number, done, failed in (
            self._session.rows("campaign_events", ids=sorted(failing)) if failing else ()
        ):
            counts = int(done), int(failed)
            changed |= gathering.take_failures(
                notices, subjects[number], counts, wants=wants[number], now_us=clock.now_us()
            )
        return changed

    def _keep(self, keys: set[NoticeKey]) -> None:
        notices, at = self._load(), self._at
        changed = [notices[key] for key in sorted(keys)]
        self._dispatcher.writer.write(partial(tables.write, changed=changed, notified=at))
        self._kept, self._kept_s = at, clock.monotonic_s()

    def _take_sites(self) -> None:
        if clock.monotonic_s() - self._sites_s < SITES_S:
            return
        self._sites_s = clock.monotonic_s()
        rows = api_pages.sites(self._session)
        always = [rule.to for rule in self._config.rules if Occasion.SITE in rule.when]
        wants = {site.name: set(always) for site in rows}
        working = self._campaigns_at_sites()
        for campaign, target in self._session.rows("subscriptions_to_sites", ids=sorted(working)):
            for site in rows:
                if site.id in working[campaign]:
                    wants[site.name].add(target)
        for key in self._load():  # who was notified that a site stopped is notified that it works again
            if key.what == Occasion.SITE and key.subject in wants:
                wants[key.subject].add(key.target)
        now = [gathering.SiteNow(site.name, *_state_of(site)) for site in rows if site.epoch]
        changed = gathering.take_sites(self._load(), now, wants, clock.now_us())
        if changed:
            self._keep(changed)

    def _campaigns_at_sites(self) -> dict[int, set[int]]:
        """Numbers of the sites that run jobs, by number of the campaign."""
        found: dict[int, set[int]] = {}
        for campaign, site in self._session.rows("campaigns_at_sites"):
            found.setdefault(campaign, set()).add(site)
        return found

    # ---- messages ----------------------------------------------------------------------------------------------

    def _make(self) -> int:
        notices = self._load()
        waiting = [each for each in notices.values() if each.first_us]
        if not waiting:
            return 0
        now_us = clock.now_us()
        done = self._done({each.key.subject for each in waiting if each.key.what == Occasion.CAMPAIGN})
        pending = [
            Pending(each.key, each.first_us)
            for each in waiting
            if each.key.what != Occasion.CAMPAIGN or each.key.subject in done
        ]
        batches = decide(pending, tables.recent(self._session, now_us), now_us, self._limits)
        if not batches:
            return 0
        made = [self._compose(batch) for batch in batches]
        numbers = self._dispatcher.writer.write(partial(tables.post, made=made, now_us=now_us))
        for number, each in zip(numbers, made, strict=True):
            for key in each.gone:
                notices.pop(key, None)
            notices.update({notice.key: notice for notice in each.left})
            _LOG.info("message.made", message=number, to=shown(each.target), items=len(each.items))
        return len(made)

    def _done(self, campaigns: set[str]) -> set[str]:
        """Those of which nothing waits or runs. None while more has happened than was gathered: a message about the
        end would be followed by one more."""
        found = set()
        for subject in campaigns - self._going_on:
            key = campaign_names.find(self._session, subject, None)
            row = api_pages.campaign(self._session, key)
            if row.states.get("WAITING") or row.states.get("RUNNING"):
                self._going_on.add(subject)
            else:
                found.add(subject)
        return found if not found or not feed.rows_after(self._session, self._at, limit=1) else set()

    def _compose(self, batch: DueDigest) -> tables.Made:
        found = [self._load()[key] for key in batch.keys]
        items = facts.news(self._session, found)
        left = [each for notice in found if (each := gathering.without_sent(notice)) is not None]
        kept = {each.key for each in left}
        return tables.Made(batch.target, items, [key for key in batch.keys if key not in kept], left)

    def _prune(self) -> None:
        if clock.monotonic_s() - self._pruned_s < PRUNE_S:
            return
        self._pruned_s = clock.monotonic_s()
        before = clock.now_us() - int(KEPT_S * 1e6)
        self._dispatcher.writer.write(lambda work: work.session.run("prune_outbox", before=before))


def _ends(change: Change) -> bool:
    return change.state not in ("WAITING", "RUNNING")


class Post:
    """Sends the messages of one channel, oldest first. One thread only."""

    def __init__(
        self, store: Store, dispatcher: Dispatcher, config: Notify, *, sender: Sender, server: str
    ) -> None:
        self._session: Session = store.reader()
        self._dispatcher, self._config = dispatcher, config
        self._sender, self._server = sender, server
        self._failures: dict[str, int] = {}
        self._later_s: dict[str, float] = {}
        self._owed: dict[int, tuple[int, str]] = {}  #: ends that the database does not know yet
        self.sent = self.refused = self.failed = 0

    def step(self, channel: Channel) -> int:
        """Send what can be sent now; return how many. Raises SiteError if the database is unreachable."""
        self._pay()
        if self._waits(""):
            return 0
        sent, is_sure = 0, False
        alone = [target for target in self._later_s if self._waits(target)]
        for message in tables.waiting(self._session, channel, alone):
            if self._waits(message.target):
                continue
            if not is_sure:
                self._make_sure()
                is_sure = True
            try:
                self._sender.send(
                    Parcel(parse_target(message.target).where, tables.digest(message, self._server))
                )
            except RefusedError as error:
                self._give_up(message, error)
            except AwayError as error:
                self._fail(message, error, "")
                break
            except LaterError as error:
                self._fail(message, error, message.target)
            else:
                sent += 1
                self._end(message, tables.SENT)
        self._sender.release()
        return sent

    def _make_sure(self) -> None:
        """Raise StandbyError where the other server of a pair is active by now, which sends these messages."""
        if self._dispatcher.writer.is_paired:
            self._dispatcher.writer.write(lambda work: None)

    def forget_pauses(self) -> None:
        """Try all addressees again at the next step."""
        self._later_s.clear()

    def close(self) -> None:
        """Let go of connections."""
        self._sender.release()
        self._session.close()

    def _waits(self, key: str) -> bool:
        """Whether an addressee, or all of them (empty), is left alone for now."""
        return clock.monotonic_s() < self._later_s.get(key, 0.0)

    def _pay(self) -> None:
        """Write how messages ended. Before anything else is sent, so that none is sent twice."""
        for number, (state, why) in list(self._owed.items()):
            self._dispatcher.writer.write(partial(tables.end, number=number, state=state, error=why))
            del self._owed[number]

    def _end(self, message: tables.WaitingMessage, state: int, why: str = "") -> None:
        self._owed[message.id] = (state, why)
        self._pay()
        self._count(message, "sent" if state == tables.SENT else "given_up")
        if state == tables.SENT:
            self.sent += 1
            _LOG.info("message.sent", message=message.id, to=shown(message.target), items=len(message.items))
        for key in ("", message.target):
            self._failures.pop(key, None)
            self._later_s.pop(key, None)

    def _count(self, message: tables.WaitingMessage, outcome: str) -> None:
        channel = str(parse_target(message.target).channel)
        self._dispatcher.meters.add("tidemill_server_notifications_total", channel=channel, outcome=outcome)

    def _give_up(self, message: tables.WaitingMessage, error: TidemillError) -> None:
        self.refused += 1
        _LOG.error(
            "message.given_up",
            message=message.id,
            to=shown(message.target),
            reason=error.message,
            hint=error.hint,
        )
        self._end(message, tables.GIVEN_UP, error.message)

    def _fail(self, message: tables.WaitingMessage, error: LaterError | AwayError, key: str) -> None:
        if error.wait_s is not None:
            self._later_s[key] = clock.monotonic_s() + error.wait_s
            return
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.failed += 1
        self._count(message, "delayed")
        age_s = (clock.now_us() - message.made_us) / 1e6
        if age_s > GIVE_UP_S and failures >= TRIES_MIN:
            self._give_up(message, error)
            return
        first_us, longest_us = int(constants.NOTICES_RETRY_S * 1e6), int(constants.NOTICES_RETRY_MAX_S * 1e6)
        pause_s = retry_after_us(failures, first_us, longest_us) / 1e6
        self._later_s[key] = clock.monotonic_s() + pause_s
        _LOG.warning(
            "message.delayed", message=message.id, to=shown(message.target), reason=error.message, hint=error.hint,
            next_try_s=pause_s,
        )  # fmt: skip


class Notifier:
    """All threads. `senders`: one for each channel."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        config: Notify,
        *,
        senders: Mapping[Channel, Sender],
        server: str,
    ) -> None:
        self._look_s = constants.NOTICES_LOOK_S
        self._ended = threading.Event()
        self.gatherer = Gatherer(store, dispatcher, config)
        self.posts = {
            channel: Post(store, dispatcher, config, sender=sender, server=server)
            for channel, sender in senders.items()
        }
        self._threads = [
            threading.Thread(target=self._run, args=("gather", self.gatherer.step), name="notify")
        ]
        for channel, post in self.posts.items():
            step = partial(post.step, channel)
            self._threads.append(
                threading.Thread(target=self._run, args=(channel, step), name=f"notify-{channel}")
            )

    def start(self) -> None:
        """Send notifications from now on."""
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def close(self) -> None:
        """End the threads; one that waits for an answer is left behind, its message is sent after the next start."""
        self._ended.set()
        until_s = clock.monotonic_s() + CLOSE_S
        parts: list[Gatherer | Post] = [self.gatherer, *self.posts.values()]
        for thread, part in zip(self._threads, parts, strict=True):
            if thread.is_alive():
                thread.join(max(0.0, until_s - clock.monotonic_s()))
            if not thread.is_alive():
                part.close()

    def _run(self, name: str, step: Callable[[], Any]) -> None:
        away = False
        while not self._ended.is_set():
            try:
                step()
                away = False
            except SiteError as error:
                if not away:
                    _LOG.warning("notify.waits", part=name, reason=error.message, hint=error.hint)
                away = True
            except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
                _LOG.error("notify.failed", part=name, error=repr(error))
            self._ended.wait(self._look_s)
