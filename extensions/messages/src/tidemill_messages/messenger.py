"""A submitter at the message broker: jobs in, state changes out, without a route to the server. Prints nothing.

A submission counts once: it is sent again under its key until the server answers. A message is acknowledged when the
next one is requested, so none is lost if the reader ends early; this object skips messages that it has seen before.
"""

from __future__ import annotations

import queue
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import msgspec

from tidemill import clock
from tidemill.client.client import RETRY_S, Submission, Wishes, requests, submitted
from tidemill.client.home import ClientConfig
from tidemill.config.tables import tables_of
from tidemill.errors import UNDECODABLE, ConfigError, ProtocolError, SiteError
from tidemill.model.job import JobSpec
from tidemill.wire.api import Change, ErrorReply, SubmitReply, SubmitRequest
from tidemill.wire.credentials import Credentials
from tidemill.wire.server_connection import error_of
from tidemill_messages.broker import Broker, broker_of, is_broker, library
from tidemill_messages.link import Delivery, Link, Message, QueueReader, UnroutedError, close_all
from tidemill_messages.names import DIRECT_REPLY, Gap, Header, Type, states_queue, submit_queue

ANSWER_S = 30.0  #: then a submission is sent again, under the same key
CONNECT_S = 30.0
PAUSE_S = 0.5
READ_AHEAD = 200
SEEN_MAX = 100_000  #: jobs whose last change is remembered


def open_messenger(config: ClientConfig, *, retry_s: float = RETRY_S) -> Messenger:
    """The submitter that a `client.toml` with a broker as its server describes. Raises ConfigError."""
    if not is_broker(config.server):
        raise ConfigError(
            f"`server` is `{config.server}`, which is not a message broker",
            hint="write `amqps://USER@HOST/VHOST`, or name a file that does with `--messages`",
        )
    credentials = Credentials(certificate=config.certificate, key=config.key, ca=config.ca)
    name = tables_of(config)["message"].name
    broker = broker_of(config.server, credentials, user=name)
    if not broker.user:
        raise ConfigError(
            f"`server` names no user of the broker {broker.address}",
            hint="write `amqps://USER@HOST/VHOST` with the user that the certificate stands for",
        )
    return Messenger(broker, name or broker.user, retry_s=retry_s)


class Messenger:
    """A submitter at a broker. `name`: what the server calls it; of the queues. `close` it."""

    def __init__(self, broker: Broker, name: str, *, retry_s: float = RETRY_S) -> None:
        library()
        self.broker, self.name, self.retry_s = broker, name, retry_s
        self._awaited: dict[str, Future[Delivery]] = {}
        self._link: Link | None = None
        self._following: Link | None = None

    # ---- submit ----------------------------------------------------------------------------------------------

    def submit(
        self,
        specs: JobSpec | Sequence[JobSpec],
        *,
        campaign: str | None = None,
        repeat: Sequence[int] | None = None,
        key: str | None = None,
        wishes: Wishes | None = None,
    ) -> Submission:
        """Submit jobs; their ids, as the server answers. As `Client.submit`, with messages.

        Raises what the server refuses it with, or SiteError when it does not answer in `retry_s`: its messages wait at
        the broker then, and may be taken later; submit again with the same key to know.
        """
        asked = requests(specs, campaign=campaign, repeat=repeat, key=key, wishes=wishes)
        return submitted(asked, self.send)

    def send(self, request: SubmitRequest) -> SubmitReply:
        """The server's answer to one request, which is sent again under its key until there is one."""
        if self._link is None:
            sources = [QueueReader(DIRECT_REPLY, self._answered)]
            self._link = Link(self.broker, sources, name="submit", on_up=self._renewed)
            self._link.start()
        body = msgspec.json.encode(request)
        deadline_s = clock.monotonic_s() + self.retry_s
        while True:
            try:
                return _submitted(self._ask(self._link, request.key, body, deadline_s))
            except UnroutedError:
                raise
            except SiteError as error:
                if not error.transient or clock.monotonic_s() + PAUSE_S > deadline_s:
                    raise
                clock.sleep_s(PAUSE_S)

    def _ask(self, link: Link, key: str, body: bytes, deadline_s: float) -> Delivery:
        left_s = min(ANSWER_S, max(0.0, deadline_s - clock.monotonic_s()))
        if not link.wait_up(left_s):
            raise link.down()
        number = uuid.uuid4().hex
        awaited: Future[Delivery] = Future()
        self._awaited[number] = awaited
        message = Message(
            submit_queue(self.name), "", body, Type.SUBMIT, id=key, correlation=number, reply_to=DIRECT_REPLY
        )
        try:
            link.publish(message).result(left_s)
            return awaited.result(left_s)
        except TimeoutError as error:
            raise SiteError(
                f"submission `{key}` is at the broker {self.broker.address}, and not answered in {left_s:.0f} s",
                hint="it is taken when the server is back; submit again with the same key to know",
            ) from error
        finally:
            del self._awaited[number]

    def _answered(self, delivery: Delivery) -> None:
        awaited = self._awaited.get(delivery.correlation)
        if awaited is not None and not awaited.done():
            awaited.set_result(delivery)

    def _renewed(self) -> None:
        """An answer to what was asked by an earlier connection cannot come any more."""
        for awaited in list(self._awaited.values()):
            if not awaited.done():
                awaited.set_exception(SiteError(f"the connection to {self.broker.address} was broken"))

    # ---- follow ----------------------------------------------------------------------------------------------

    def changes(self, *, timeout_s: float | None = None) -> Iterator[Change | Gap]:
        """Yield state changes of all our jobs, in order per job, without end or until none arrives for `timeout_s`.

        Use one reader per name: two readers share the messages between them. Raises SiteError if the broker is
        unreachable at the beginning or at the end; in between, the call waits until it returns.
        """
        inbox: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        if self._following is not None:
            raise ConfigError("this messenger is followed already", hint="make another one")
        self._following = Link(
            self.broker, [QueueReader(states_queue(self.name), inbox.put, READ_AHEAD)], name="follow"
        )
        self._following.start()
        link = self._following
        seen: dict[int, int] = {}
        try:
            if not link.wait_up(CONNECT_S):
                raise link.down()
            while True:
                try:
                    delivery = inbox.get(timeout=timeout_s)
                except queue.Empty:
                    if not link.is_up:
                        raise link.down() from None
                    return
                if delivery.is_stale:
                    continue  # it comes again
                change = _change_of(delivery)
                is_new = isinstance(change, Change) and change.number > seen.get(change.job, 0)
                if change is not None and (is_new or isinstance(change, Gap)):
                    yield change
                delivery.ack()
                if is_new and isinstance(
                    change, Change
                ):  # an old one that comes again is followed by those behind it
                    _remember(seen, change)
        finally:
            self._following = None
            link.close()

    def close(self) -> None:
        """Close every connection to the broker."""
        close_all([link for link in (self._link, self._following) if link is not None])
        self._link = None


def _submitted(delivery: Delivery) -> SubmitReply:
    try:
        if delivery.type == Type.REFUSED:
            status = delivery.headers.get(Header.STATUS.value)
            raise error_of(
                status if isinstance(status, int) else 500,
                msgspec.json.decode(delivery.body, type=ErrorReply),
            )
        return msgspec.json.decode(delivery.body, type=SubmitReply)
    except UNDECODABLE as error:
        raise _unread(delivery, error) from error


def _remember(seen: dict[int, int], change: Change) -> None:
    """The job's last change; the job that was silent for longest is forgotten."""
    seen.pop(change.job, None)
    seen[change.job] = change.number
    if len(seen) > SEEN_MAX:
        del seen[next(iter(seen))]


def _change_of(delivery: Delivery) -> Change | Gap | None:
    """Decode a message. None for a notice: its changes arrive as messages of their own."""
    if delivery.type not in (Type.CHANGE, Type.GAP):
        return None
    try:
        if delivery.type == Type.GAP:
            return msgspec.json.decode(delivery.body, type=Gap)
        return msgspec.json.decode(delivery.body, type=Change)
    except UNDECODABLE as error:
        raise _unread(delivery, error) from error


def _unread(delivery: Delivery, error: Exception) -> ProtocolError:
    return ProtocolError(
        f"failed to read a message of type `{delivery.type[:50]}`: {error}: "
        f"`{delivery.body[:200].decode(errors='replace')}`",
        hint="are server and client of the same version?",
    )
