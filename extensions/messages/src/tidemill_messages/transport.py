"""The transport of this extension: how a site's syncs go by a broker, and what a server runs for it."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future
from typing import TYPE_CHECKING

import msgspec

from tidemill import clock
from tidemill.errors import UNDECODABLE, ProtocolError, SiteError
from tidemill.log import Log
from tidemill.wire.api import REQUEST_BYTES_MAX, ErrorReply, SyncReply, SyncRequest
from tidemill.wire.credentials import Credentials
from tidemill.wire.server_connection import TooLongError, error_of
from tidemill.wire.transports import SyncBounds, TransportKind
from tidemill_messages import constants
from tidemill_messages.broker import Broker, broker_of, library
from tidemill_messages.link import Delivery, Link, Message, QueueReader
from tidemill_messages.names import DIRECT_REPLY, SYNC_AGE_S, Header, Type, sync_queue
from tidemill_messages.settings import amqp_of

if TYPE_CHECKING:  # sites and clients import this, and have no server
    from tidemill.config.server import ServerConfig
    from tidemill.config.site import SiteConfig
    from tidemill.server.transports import TransportHost
    from tidemill_messages.server.gateway import Gateway

CONNECTED_S = 5.0  #: longest wait for a connection, by a thread that may have to end
_ENCODER = msgspec.json.Encoder()
_log = Log("sync")


class AmqpTransport:
    """A message to the server's queue, and its answer by the channel that asked; found again by the request's number.

    An answer that is not awaited - late, doubled, of another request - is dropped and counted.
    """

    def __init__(self, broker: Broker, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._awaited: tuple[str, Future[Delivery]] | None = None
        self._closing = False
        self.dropped = 0
        self.link = Link(
            broker, [QueueReader(DIRECT_REPLY, self._on_delivery)], name="sync", on_up=self._renewed
        )
        self.link.start()

    def sync(self, request: SyncRequest) -> SyncReply:
        """Ask, and wait for the answer."""
        body = _ENCODER.encode(request)
        if len(body) > REQUEST_BYTES_MAX:
            raise TooLongError(f"failed to send a sync: {len(body)} bytes, the limit is {REQUEST_BYTES_MAX}")
        deadline_s = clock.monotonic_s() + self._timeout_s
        if not self.link.wait_up(min(CONNECTED_S, self._timeout_s)) or self._closing:
            raise self.link.down()
        number = uuid.uuid4().hex
        awaited: Future[Delivery] = Future()
        with self._lock:
            self._awaited = (number, awaited)
        message = Message(
            sync_queue(request.site), "", body, Type.SYNC, id=number, correlation=number, reply_to=DIRECT_REPLY,
            expires_s=min(SYNC_AGE_S, self._timeout_s), persistent=False,
        )  # fmt: skip
        try:
            self.link.publish(message).result(max(0.0, deadline_s - clock.monotonic_s()))
            delivery = awaited.result(max(0.0, deadline_s - clock.monotonic_s()))
        except TimeoutError as error:
            raise SiteError(
                f"no answer to a sync within {self._timeout_s:.0f} s by the broker {self.link.broker.address}",
                hint="does the server run, with `[amqp]` in its server.toml?",
            ) from error
        finally:
            with self._lock:
                self._awaited = None
        return _reply_of(delivery)

    def close(self) -> None:
        """End the connection and its thread."""
        self._closing = True
        self._renewed()
        self.link.close()

    def _on_delivery(self, delivery: Delivery) -> None:
        with self._lock:
            awaited = self._awaited
            if awaited is not None and awaited[0] == delivery.correlation and not awaited[1].done():
                awaited[1].set_result(delivery)
                return
            self.dropped += 1
        _log.debug("reply.dropped", correlation=delivery.correlation[:64])

    def _renewed(self) -> None:
        """An answer to what was asked by an earlier connection cannot come any more."""
        with self._lock:
            if self._awaited is not None and not self._awaited[1].done():
                self._awaited[1].set_exception(self.link.down())


def _reply_of(delivery: Delivery) -> SyncReply:
    if delivery.type == Type.REFUSED:
        try:
            reply = msgspec.json.decode(delivery.body, type=ErrorReply)
        except UNDECODABLE:
            reply = ErrorReply(
                error=f"the server refused a sync: `{delivery.body[:200].decode(errors='replace')}`"
            )
        status = delivery.headers.get(Header.STATUS.value)
        raise error_of(status if isinstance(status, int) else 500, reply)
    try:
        return msgspec.json.decode(delivery.body, type=SyncReply)
    except UNDECODABLE as error:
        raise ProtocolError(
            f"failed to read the answer to a sync: {error}: `{delivery.body[:200].decode(errors='replace')}`",
            hint="are server and site of the same version?",
        ) from error


def _open(config: SiteConfig, credentials: Credentials, bounds: SyncBounds) -> AmqpTransport:
    library()
    broker = broker_of(
        config.server, credentials, user=config.name, heartbeat_s=constants.HEARTBEAT_S,
        reconnect_max_s=bounds.pause_max_s, body_bytes_max=bounds.reply_bytes_max,
    )  # fmt: skip
    return AmqpTransport(broker, timeout_s=bounds.timeout_s)


def _examine(config: SiteConfig, credentials: Credentials) -> str:
    library()
    broker = broker_of(config.server, credentials, user=config.name)
    return f"by messages, as `{broker.user}` at {broker.address}"


def _is_wanted(config: ServerConfig) -> bool:
    return amqp_of(config).url is not None


def _serve(config: ServerConfig, host: TransportHost) -> Gateway:
    from tidemill_messages.server.gateway import Gateway

    return Gateway(amqp_of(config), host)


KIND = TransportKind(
    open=_open,
    examine=_examine,
    is_wanted=_is_wanted,
    serve=_serve,
    hint="`tidemill message submit` and `tidemill message follow` use it; other commands need the server",
)
