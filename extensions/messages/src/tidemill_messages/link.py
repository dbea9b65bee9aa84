"""A connection to a message broker (AMQP 0-9-1 over TLS), maintained by a thread of its own: the network never blocks
the threads that publish or read.

The broker confirms a published message, or it has failed; a reader acknowledges a message after handling it. A broken
connection fails all unconfirmed messages, and the broker delivers unacknowledged ones again: so every message may come
twice, and none is lost. Knows bytes and queues, not what messages mean.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from tidemill import clock
from tidemill.errors import SiteError
from tidemill.log import Log
from tidemill_messages.broker import Broker, connection_of, reason_of
from tidemill_messages.names import CONTENT_TYPE, DIRECT_REPLY, PERSISTENT, Header

UNCONFIRMED_MAX = 2_000  #: messages that wait for the broker's word; more are refused at once
PAUSE_FIRST_S = 0.5
CLOSE_S = 5.0
QUEUE_AGAIN_S = 30.0
SHORT_BYTES_MAX = 255  #: of a property, AMQP 0-9-1 4.2.5.3
_NOT_OURS = (403, 404)  #: ACCESS_REFUSED, NOT_FOUND: reply codes of AMQP 0-9-1
_log = Log("amqp")


class Message(NamedTuple):
    """One to be published. `mandatory`: it fails if no queue takes it. `expires_s`: dropped if not read by then."""

    exchange: str
    key: str
    body: bytes
    type: str
    id: str = ""
    correlation: str = ""
    reply_to: str = ""
    headers: tuple[tuple[str, Any], ...] = ()
    expires_s: float | None = None
    persistent: bool = True
    mandatory: bool = True


class QueueReader(NamedTuple):
    """A queue that is read. `take` is called in the link's thread and must not block."""

    queue: str
    take: Callable[[Delivery], None]
    prefetch: int = 0


class UnroutedError(SiteError):
    """The broker has no queue for the message."""


class Delivery:
    """A message that was read."""

    def __init__(self, link: Link, channel: Any, frames: tuple[Any, Any, bytes]) -> None:
        method, properties, self.body = frames
        self._link, self._channel, self._tag = link, channel, method.delivery_tag
        self.exchange: str = method.exchange  #: that it came by
        self.user = _text(properties.user_id)
        self.type = _text(properties.type)
        self.id = _text(properties.message_id)
        self.correlation = _text(properties.correlation_id)
        self.reply_to = _text(properties.reply_to)
        self.content_type = _text(properties.content_type)
        self.headers: dict[str, Any] = properties.headers or {}

    @property
    def is_stale(self) -> bool:
        """Whether the connection that it came by is over: the broker delivers it again."""
        return not self._channel.is_open

    def ack(self) -> None:
        """Acknowledge the message: it was handled for good. From any thread; without effect if it is stale."""
        self._link.call(self._ack)

    def _ack(self) -> None:
        if self._channel.is_open:
            self._channel.basic_ack(self._tag)


def _text(value: str | bytes | None) -> str:
    """A property; pika leaves one that is not UTF-8 as bytes. At most as long as may be sent back."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value or ""
    return text.encode()[:SHORT_BYTES_MAX].decode(errors="ignore")


class Link:
    """A connection to the broker that restores itself. `on_up` is called in the link's thread whenever the
    connection has come up."""

    def __init__(
        self,
        broker: Broker,
        sources: list[QueueReader],
        *,
        name: str,
        on_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.broker, self._sources, self._name, self._on_up = broker, sources, name, on_up
        self._lock = threading.Lock()
        self._connection: Any = None  #: while its loop runs
        self._channel: Any = None  #: the one that publishes, while it is open
        self._waiting: dict[int, Future[None]] = {}  #: by number on the channel; in the link's thread only
        self._unconfirmed: set[Future[None]] = set()
        self._published = 0
        self._closing = threading.Event()
        self._is_up = threading.Event()
        self._thread: threading.Thread | None = None
        self.fault = "not connected yet"  #: why it is not up
        self.connects = 0
        self._whole = False  #: all queues were being read
        self._hint: str | None = None

    # ---- from any thread -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and go on connecting."""
        self._thread = threading.Thread(target=self._run, name=f"amqp-{self._name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; what is unconfirmed fails."""
        close_all([self])

    def begin_close(self) -> None:
        """Begin to end, without waiting. `join` waits."""
        self._closing.set()
        self.call(self._leave)

    def join(self, timeout_s: float) -> None:
        """Wait for the end that `begin_close` began."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def is_up(self) -> bool:
        """Whether messages go in and out."""
        return self._is_up.is_set()

    def wait_up(self, timeout_s: float) -> bool:
        """Wait for the connection."""
        return self._is_up.wait(timeout_s)

    def publish(self, message: Message) -> Future[None]:
        """Done when the broker has it for good; else it fails with SiteError (UnroutedError: no queue takes it)."""
        future: Future[None] = Future()
        with self._lock:
            full = len(self._unconfirmed) >= UNCONFIRMED_MAX
            if not full and self.is_up:
                self._unconfirmed.add(future)
                self._connection.ioloop.add_callback_threadsafe(partial(self._publish, message, future))
                return future
        why = f"{UNCONFIRMED_MAX} messages wait for its word already" if full else self.fault
        future.set_exception(self._error(f"send a message to `{message.exchange}`", why))
        return future

    def call(self, act: Callable[[], None]) -> None:
        """Run it soon in the link's thread; not at all if there is no connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.ioloop.add_callback_threadsafe(act)

    def down(self) -> SiteError:
        """That the broker cannot be reached, as an error."""
        return self._error("reach it", self.fault)

    def _error(self, what: str, why: str) -> SiteError:
        return SiteError(f"failed to {what} at the broker {self.broker.address}: {why}", hint=self._hint)

    # ---- in the link's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = PAUSE_FIRST_S
        while not self._closing.is_set():
            self._whole = False
            try:
                self._serve()
            except Exception as error:  # noqa: BLE001 - top of the link's loop: whatever the library met, connect again
                self._down(error)
            self._forget()
            if self._whole:
                pause_s = PAUSE_FIRST_S
            # Not all links at once after a restart of the broker
            self._closing.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, self.broker.reconnect_max_s)

    def _serve(self) -> None:
        connection = connection_of(self.broker, opened=self._opened, failed=self._failed, closed=self._failed)
        with self._lock:
            self._connection = connection
        try:
            if not self._closing.is_set():
                connection.ioloop.start()
        finally:
            with self._lock:
                self._connection = None
                self._is_up.clear()
            connection.ioloop.close()

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._publishing)

    def _publishing(self, channel: Any) -> None:
        """The first channel is open: it publishes, and reads direct replies, which come by the channel that asked."""
        self._channel, self._published = channel, 0
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._confirmed)
        left = [source for source in self._sources if source.queue != DIRECT_REPLY]
        direct = [source for source in self._sources if source.queue == DIRECT_REPLY]
        for source in direct:
            channel.basic_consume(DIRECT_REPLY, partial(self._read, source), auto_ack=True)
        self._up()  # first of all, since what waits in the queues is answered as soon as it is read
        self._next_source(left)

    def _next_source(self, left: list[QueueReader]) -> None:
        """Each queue is read by a channel of its own, one opened after the other."""
        if not left:
            self._whole = True
            return
        source, *rest = left
        self._open(source, lambda: self._next_source(rest))

    def _open(self, source: QueueReader, then: Callable[[], None]) -> None:
        """Read a queue. One that does not exist, or that we may not read, is tried again later and delays no other."""
        begun = False

        def reads(_: Any) -> None:
            nonlocal begun
            begun = True
            then()

        def closed(channel: Any, error: Exception) -> None:
            if begun or not channel.connection.is_open or getattr(error, "reply_code", 0) not in _NOT_OURS:
                self._channel_closed(channel, error)
                return
            fault, hint = reason_of(error)
            _log.warning("queue.unread", link=self._name, queue=source.queue, why=fault, hint=hint)
            channel.connection.ioloop.call_later(QUEUE_AGAIN_S, partial(self._open_again, channel, source))
            then()

        def opened(channel: Any) -> None:
            channel.add_on_close_callback(closed)
            channel.add_on_cancel_callback(partial(self._canceled, source))
            channel.basic_qos(prefetch_count=source.prefetch)
            channel.basic_consume(source.queue, partial(self._read, source), callback=reads)

        self._connection.channel(on_open_callback=opened)

    def _open_again(self, before: Any, source: QueueReader) -> None:
        if before.connection is self._connection and before.connection.is_open:
            self._open(source, lambda: None)

    def _up(self) -> None:
        self.connects += 1
        self._hint = None
        with self._lock:
            self._is_up.set()
        _log.info("broker.connected", link=self._name, broker=self.broker.address)
        self._on_up()

    def _read(self, source: QueueReader, channel: Any, *frames: Any) -> None:
        method, properties, body = frames
        source.take(Delivery(self, channel, (method, properties, body)))

    def _publish(self, message: Message, future: Future[None]) -> None:
        import pika

        if not self._channel.is_open:
            return  # it fails with the connection
        self._published += 1
        self._waiting[self._published] = future
        expiration = None if message.expires_s is None else str(int(message.expires_s * 1000))
        properties = pika.BasicProperties(
            content_type=CONTENT_TYPE, type=message.type, message_id=message.id or None, app_id="tidemill",
            correlation_id=message.correlation or None, reply_to=message.reply_to or None,
            headers={**dict(message.headers), Header.TAG.value: self._published}, expiration=expiration,
            delivery_mode=PERSISTENT if message.persistent else 1, timestamp=clock.now_s(),
            user_id=self.broker.user or None,
        )  # fmt: skip
        self._channel.basic_publish(
            message.exchange, message.key, message.body, properties, mandatory=message.mandatory
        )

    def _confirmed(self, frame: Any) -> None:
        """The broker's word on one message, or on all up to it."""
        method = frame.method
        good, tag = method.NAME == "Basic.Ack", method.delivery_tag
        tags = [each for each in self._waiting if each <= tag] if method.multiple else [tag]
        for each in tags:
            future = self._waiting.pop(each, None)
            if future is not None:
                why = "the broker did not take it: the queue is full"
                self._settle(future, None if good else self._error("send a message", why))

    def _returned(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """No queue takes it. Comes before the message's confirmation."""
        future = self._waiting.pop((properties.headers or {}).get(Header.TAG.value, 0), None)
        if future is not None:
            what = f"send a message to `{method.exchange}` with key `{method.routing_key}`"
            self._settle(
                future,
                UnroutedError(
                    f"failed to {what} at the broker {self.broker.address}: {method.reply_text}",
                    hint="`tidemill server broker-setup` declares the queues",
                ),
            )

    def _settle(self, future: Future[None], error: SiteError | None) -> None:
        with self._lock:
            self._unconfirmed.discard(future)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _canceled(self, source: QueueReader, frame: Any) -> None:
        """The queue was deleted, or its node is gone."""
        self._end(f"queue `{source.queue}` is gone")

    def _channel_closed(self, channel: Any, error: Exception) -> None:
        if (
            channel.connection.is_open
        ):  # the broker closed this channel alone: refused, or a message was held too long
            self._down(error)
            self._end(self.fault)

    def _end(self, why: str) -> None:
        self.fault = why
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.close()

    def _leave(self) -> None:
        connection = self._connection
        if connection is None:
            return
        connection.ioloop.call_later(
            CLOSE_S / 2, connection.ioloop.stop
        )  # who does not answer is not waited for
        if not (connection.is_closing or connection.is_closed):
            connection.close()

    def _failed(self, connection: Any, error: BaseException) -> None:
        if type(error).__name__ == "ConnectionClosedByClient":  # by us, for a reason that is known already
            with self._lock:
                self._is_up.clear()
        else:
            self._down(error)
        connection.ioloop.stop()

    def _down(self, error: BaseException) -> None:
        fault, self._hint = reason_of(error)
        with self._lock:
            was_up = self._is_up.is_set()
            self._is_up.clear()
        if not self._closing.is_set() and (was_up or fault != self.fault):
            _log.warning(
                "broker.away", link=self._name, broker=self.broker.address, why=fault, hint=self._hint
            )
        self.fault = fault

    def _forget(self) -> None:
        """Whatever was not confirmed has failed: it may have arrived all the same."""
        with self._lock:
            lost, self._unconfirmed = self._unconfirmed, set()
        self._waiting.clear()
        for future in lost:
            if not future.done():
                future.set_exception(self._error("send a message", self.fault))


def close_all(links: Sequence[Link]) -> None:
    """End links together: where the broker does not answer, all of them take as long as one, at most `CLOSE_S`."""
    for link in links:
        link.begin_close()
    deadline_s = clock.monotonic_s() + CLOSE_S
    for link in links:
        link.join(max(0.0, deadline_s - clock.monotonic_s()))
