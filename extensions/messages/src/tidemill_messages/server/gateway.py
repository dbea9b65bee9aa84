"""The gateway's threads: one that talks to the broker, one that takes jobs in, a few for syncs, one for state changes.

A message is acknowledged after its transaction is committed and its answer is in a durable queue. A server or broker
that dies before that meets the message again, and answers as the first time. A direct reply goes out by another
connection, after the acknowledgement.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tidemill import log
from tidemill.errors import SiteError
from tidemill.model.identity import Role
from tidemill.server.errors import AwayError, LaterError, RefusedError
from tidemill.server.notices.sender import Parcel
from tidemill.server.transports import TransportHost
from tidemill.wire.api import REQUEST_BYTES_MAX
from tidemill.wire.credentials import Credentials
from tidemill_messages import constants
from tidemill_messages.broker import broker_of, library
from tidemill_messages.link import Delivery, Link, Message, QueueReader, UnroutedError, close_all
from tidemill_messages.names import DEAD, REPLIES, STATES, Header, Type, submit_queue, sync_queue
from tidemill_messages.server.feed import Feed
from tidemill_messages.server.intake import (
    IncomingMessage,
    MessageAnswer,
    SubmitterIntake,
    SyncIntake,
    identity_of,
)
from tidemill_messages.server.replies import DirectReplies, is_direct
from tidemill_messages.server.setup import check
from tidemill_messages.settings import Amqp

PREFETCH = 4  #: messages of one submitter in our memory, of REQUEST_BYTES_MAX each; one thread takes all
SYNC_PREFETCH = 4
SYNC_THREADS = 4
CONFIRM_S = 60.0
NOTICE_CONFIRM_S = 30.0
CUT_BYTES = 1_000_000  #: what is kept of a message that is longer than any may be
AGAIN_S = 1.0
JOIN_S = 5.0
_LOG = log.Log("gateway")
_Inbox = queue.SimpleQueue[Delivery | None]


class GatewayStatus(msgspec.Struct, kw_only=True):
    """How the gateway is."""

    broker: str
    is_up: bool
    fault: str  #: why it is not up
    connects: int
    taken: int  #: messages of submitters that were done
    refused: int  #: and those that became dead letters
    synced: int
    positions: dict[str, int]  #: the last change that each submitter was sent


class Gateway:
    """Takes messages in and sends state changes out.

    `start` it when the server may write; `close` it before it may not.
    """

    def __init__(self, config: Amqp, host: TransportHost) -> None:
        """Raises ConfigError."""
        check(config)
        library()
        self._host = host
        self._intake = SubmitterIntake(host, _users(config.submitters))
        self._syncs = SyncIntake(host, _users(config.sites))
        self._inbox, self._sync_inbox = _Inbox(), _Inbox()  # bounded by what the broker sends unacknowledged
        sources = [
            QueueReader(submit_queue(name), self._inbox.put, PREFETCH) for name in sorted(config.submitters)
        ]
        sources += [
            QueueReader(sync_queue(name), self._sync_inbox.put, SYNC_PREFETCH)
            for name in sorted(config.sites)
        ]
        broker = broker_of(
            config.url or "", Credentials(certificate=config.certificate, key=config.key, ca=config.ca),
            user=config.user, heartbeat_s=constants.HEARTBEAT_S,
            reconnect_max_s=constants.RECONNECT_MAX_S,
        )  # fmt: skip
        self._feed: Feed | None = None
        self.link = Link(broker, sources, name="gateway", on_up=self._wake)
        self.direct = DirectReplies(broker)
        self._feed = Feed(
            host, link=self.link,
            names={name: partial(_is_revoked, host, name, user) for name, user in config.submitters.items()},
        )  # fmt: skip
        self.courier = Courier(self.link, frozenset(config.submitters))
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._taken = self._refused = self._synced = 0

    def start(self) -> None:
        """Start the gateway's threads. An unreachable broker delays nothing."""
        assert self._feed is not None
        self._feed.prepare()
        self._host.listen(self._feed.wake)
        acts: list[tuple[str, Callable[[], None]]] = [("intake", self._take_in), ("states", self._feed.run)]
        acts += [(f"sync-{number}", self._answer_syncs) for number in range(SYNC_THREADS)]
        self._threads = [
            threading.Thread(target=act, name=f"gateway-{name}", daemon=True) for name, act in acts
        ]
        for thread in self._threads:
            thread.start()
        self.link.start()

    def close(self) -> None:
        """End. What was not acknowledged comes again to the next server."""
        assert self._feed is not None
        self._closing.set()
        self._host.stop_listening(self._feed.wake)
        self._feed.close()
        self._inbox.put(None)
        for _ in range(SYNC_THREADS):
            self._sync_inbox.put(None)
        close_all([self.link, *self.direct.retire()])
        for thread in self._threads:
            thread.join(JOIN_S)

    def is_up(self) -> bool:
        """Whether the broker is connected."""
        return self.link.is_up

    def status(self) -> GatewayStatus:
        """The gateway's status now."""
        assert self._feed is not None
        return GatewayStatus(
            broker=self.link.broker.address, is_up=self.link.is_up, fault="" if self.link.is_up else self.link.fault,
            connects=self.link.connects, taken=self._taken, refused=self._refused, synced=self._synced,
            positions={each.name: each.position for each in self._feed.followers},
        )  # fmt: skip

    def _wake(self) -> None:
        if self._feed is not None:
            self._feed.wake()

    # ---- jobs in ---------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        """One after the other, in the order in which the broker has them."""
        while (delivery := self._inbox.get()) is not None:
            while not delivery.is_stale and not self._closing.is_set():
                try:
                    self._handle_delivery(delivery)
                    break
                except (SiteError, TimeoutError) as error:
                    _LOG.warning("message.waits", user=delivery.user, id=delivery.id[:100], why=str(error))
                except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
                    _LOG.error("message.failed", user=delivery.user, id=delivery.id[:100], error=repr(error))
                self._closing.wait(AGAIN_S)

    def _handle_delivery(self, delivery: Delivery) -> None:
        answer = self._intake.handle(_letter(delivery))
        if answer.refused is not None:
            self._bury(delivery, answer)
        if is_direct(delivery.reply_to):
            delivery.ack()
            self._reply_directly(delivery, answer)
        else:
            self._reply(delivery, answer)
            delivery.ack()
        if answer.refused is None:
            self._taken += 1
        else:
            self._refused += 1
        self._note(delivery, answer)

    def _note(self, delivery: Delivery, answer: MessageAnswer) -> None:
        """Count it; who may not do what it asked for stands in the audit log."""
        self._host.count(direction="in", outcome=answer.outcome)
        if answer.refused is not None and answer.status == 403:
            self._host.note_refused(
                delivery.user or "unknown", f"message `{delivery.type[:50]}`: {answer.refused.error}"
            )

    def _bury(self, delivery: Delivery, answer: MessageAnswer) -> None:
        """A dead letter with the reason; the broker has it before the message is acknowledged."""
        assert answer.refused is not None
        headers = _plain(delivery.headers) | {
            Header.REASON.value: answer.refused.error[:2000],
            Header.HINT.value: (answer.refused.hint or "")[:2000],
            Header.STATUS.value: answer.status,
            Header.USER.value: delivery.user,
        }
        _LOG.warning(
            "message.refused", user=delivery.user, id=delivery.id[:100], type=delivery.type[:50],
            status=answer.status, why=answer.refused.error[:500],
        )  # fmt: skip
        body = delivery.body if len(delivery.body) <= REQUEST_BYTES_MAX else delivery.body[:CUT_BYTES]
        letter = Message(
            DEAD, delivery.exchange, body, delivery.type, id=delivery.id, correlation=delivery.correlation,
            headers=tuple(headers.items()),
        )  # fmt: skip
        self.link.publish(letter).result(CONFIRM_S)

    def _reply(self, delivery: Delivery, answer: MessageAnswer) -> None:
        """To the asker's durable queue; to none if the server does not know who asks."""
        if answer.to is None:
            return
        message = Message(
            REPLIES, answer.to, answer.body, answer.type, id=delivery.id,
            correlation=delivery.correlation or delivery.id, headers=((Header.STATUS.value, answer.status),),
        )  # fmt: skip
        try:
            self.link.publish(message).result(CONFIRM_S)
        except UnroutedError as error:
            _LOG.warning("reply.unread", user=delivery.user, id=delivery.id[:100], why=error.message)

    def _reply_directly(self, delivery: Delivery, answer: MessageAnswer) -> None:
        """To the queue that the asker reads on its channel; to none if the server does not know who asks."""
        if answer.to is None:
            return
        message = Message(
            "", delivery.reply_to, answer.body, answer.type, id=delivery.id,
            correlation=delivery.correlation or delivery.id, headers=((Header.STATUS.value, answer.status),),
            persistent=False, mandatory=False,
        )  # fmt: skip
        self.direct.send(delivery.user, message)

    # ---- syncs -----------------------------------------------------------------------------------------------

    def _answer_syncs(self) -> None:
        while (delivery := self._sync_inbox.get()) is not None:
            if delivery.is_stale or self._closing.is_set():
                continue
            try:
                self._answer_sync(delivery)
            except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
                _LOG.error("message.failed", user=delivery.user, id=delivery.id[:100], error=repr(error))

    def _answer_sync(self, delivery: Delivery) -> None:
        answer = self._syncs.handle(_letter(delivery))
        delivery.ack()
        if answer.refused is not None:
            _LOG.warning(
                "sync.refused", user=delivery.user, status=answer.status, why=answer.refused.error[:500]
            )
        self._synced += 1
        self._note(delivery, answer)
        if is_direct(delivery.reply_to):
            self._reply_directly(delivery, answer)


class Courier:
    """Sends notifications as messages to the states queue of the submitter; done when the broker has one."""

    def __init__(self, link: Link, names: frozenset[str]) -> None:
        self._link, self._names = link, names

    def send(self, parcel: Parcel) -> None:
        """Publish it. Raises RefusedError, LaterError or AwayError."""
        if parcel.where not in self._names:
            raise RefusedError(
                f"`{parcel.where}` gets no messages", hint="name it in server.toml, `[amqp.users]`"
            )
        if not self._link.is_up:
            raise AwayError(self._link.down().message)
        body = msgspec.json.encode(parcel.digest)
        message = Message(STATES, parcel.where, body, Type.NOTICE, id=parcel.digest.id)
        try:
            self._link.publish(message).result(NOTICE_CONFIRM_S)
        except UnroutedError as error:
            raise LaterError(error.message, hint=error.hint) from error
        except TimeoutError as error:
            raise AwayError(f"the broker did not confirm a notice within {NOTICE_CONFIRM_S:.0f} s") from error
        except SiteError as error:  # its queue is full, or the connection broke
            raise (LaterError if self._link.is_up else AwayError)(error.message) from error

    def release(self) -> None:
        """The connection is the gateway's."""


def _users(names: dict[str, str]) -> dict[str, str]:
    """Names by the broker's users."""
    return {user or name: name for name, user in names.items()}


def _is_revoked(host: TransportHost, name: str, user: str) -> bool:
    return host.why_revoked(identity_of(Role.SUBMITTER, name, user or name)) is not None


def _letter(delivery: Delivery) -> IncomingMessage:
    return IncomingMessage(delivery.user, delivery.type, delivery.content_type, delivery.body, delivery.id)


def _plain(headers: dict[str, Any]) -> dict[str, Any]:
    """The sender's headers, of which a dead letter keeps the short and simple."""
    return {
        key: value
        for key, value in list(headers.items())[:50]
        if isinstance(value, str | int | float | bool) and len(str(value)) <= 1000
    }
