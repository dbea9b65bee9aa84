"""How `sync` reaches the server: one contract, by HTTP or by a message broker. The message is the same (wire/api.py).

Whatever the way does to a message - loses it, repeats it, brings it late - the caller sends the next one from what is
durable at the site, so an exchange that failed is simply followed by another.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future
from typing import Protocol

import msgspec

from tidemill import clock
from tidemill.config.site import SiteConfig
from tidemill.errors import UNDECODABLE, ProtocolError, SiteError
from tidemill.log import Log
from tidemill.site import constants
from tidemill.wire.amqp import DIRECT_REPLY, SYNC_AGE_S, Header, Type, sync_queue
from tidemill.wire.api import REQUEST_BYTES_MAX, ErrorReply, SyncReply, SyncRequest
from tidemill.wire.broker import Broker, broker_of, is_broker, library
from tidemill.wire.credentials import Credentials
from tidemill.wire.http import Connection, TooLongError, error_of
from tidemill.wire.link import Delivery, Link, Message, QueueReader

CONNECTED_S = 5.0  #: longest wait for a connection, by a thread that may have to end
LONGEST_S = 300.0  #: for a whole exchange, however slowly it comes: as long as 32 MB take at 1 Mbit/s
_ENCODER = msgspec.json.Encoder()
_log = Log("sync")


def credentials_of(config: SiteConfig) -> Credentials:
    """What the site shows to its server."""
    return Credentials(
        secret_file=config.secret_file, certificate=config.certificate, key=config.key, ca=config.ca,
        token_file=config.token_file,
    )  # fmt: skip


class Transport(Protocol):
    """One exchange at a time. Silence is not waited for longer than the site's `sync_timeout_s`."""

    def sync(self, request: SyncRequest) -> SyncReply:
        """The server's answer to this very request.

        Raises ConflictError when it knows a newer epoch; SiteError (transient) if there is no answer, and it is not
        known whether the server has the request; TooLongError when fewer reports may pass; ConfigError, JobError,
        ProtocolError for what stays wrong by itself.
        """

    def close(self) -> None:
        """Let go of connections; an exchange under way fails."""


def open_transport(config: SiteConfig) -> Transport:
    """The way that the address of the site's server asks for. Raises ConfigError; does not wait for the server."""
    if is_broker(config.server):
        library()
        broker = broker_of(
            config.server, credentials_of(config), user=config.name,
            heartbeat_s=constants.BROKER_HEARTBEAT_S, reconnect_max_s=constants.SYNC_INTERVAL_MAX_S,
            body_bytes_max=constants.SYNC_REPLY_BYTES_MAX,
        )  # fmt: skip
        return AmqpTransport(broker, timeout_s=constants.SYNC_TIMEOUT_S)
    return HttpTransport(
        Connection(
            config.server,
            credentials=credentials_of(config),
            timeout_s=constants.SYNC_TIMEOUT_S,
            longest_s=LONGEST_S,
            reply_bytes_max=constants.SYNC_REPLY_BYTES_MAX,
        )
    )


class HttpTransport:
    """`POST /v1/sync`, on a Unix socket or TCP."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def sync(self, request: SyncRequest) -> SyncReply:
        """Post it."""
        return self._connection.call("POST", "/v1/sync", SyncReply, body=request)

    def close(self) -> None:
        """Close the connections, also one that waits."""
        self._connection.break_off()
        self._connection.close()


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
        self.link = Link(broker, [QueueReader(DIRECT_REPLY, self._take)], name="sync", on_up=self._renewed)
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

    def _take(self, delivery: Delivery) -> None:
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
