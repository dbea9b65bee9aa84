"""How to reach a broker: its address, our certificate, and the parameters of the client library (pika)."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from tidemill import log
from tidemill.errors import ConfigError, SiteError, install_hint
from tidemill.wire.credentials import Credentials
from tidemill_messages.names import VHOST
from tidemill_messages.settings import user_in

PORT = 5671  #: of amqps in IANA's registry
CONNECT_S = 10.0
_HAS_CONTENT_TYPE, _HAS_CONTENT_ENCODING, _HAS_HEADERS = 1 << 15, 1 << 14, 1 << 13
BLOCKED_S = 60.0  #: a broker that is out of memory or disk stops reading; then we connect anew


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker and who we are to it. `user`: stands in what we publish; empty = nothing does. `body_bytes_max`: a
    longer message ends the connection before it is read: for those who read only what they may lose."""

    host: str
    port: int
    vhost: str
    credentials: Credentials
    user: str = ""
    heartbeat_s: float = 30.0
    reconnect_max_s: float = 30.0
    body_bytes_max: int | None = None

    @property
    def address(self) -> str:
        """The broker's address as in a URL."""
        return f"amqps://{self.host}:{self.port}/{self.vhost}"


def is_broker(address: str) -> bool:
    """Whether a server's address is a broker's."""
    return address.lower().startswith(("amqps:", "amqp:"))


def place_of(address: str) -> tuple[str, int, str]:
    """Host, port and virtual host of `amqps://USER@HOST:PORT/VHOST`. Raises ConfigError."""
    try:
        user_in(address)
    except ValueError as error:  # which does not quote the password
        raise ConfigError(str(error), hint="write `amqps://USER@HOST:PORT/VHOST`") from None
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or PORT
    except ValueError as error:
        raise ConfigError(f"`{address}` is not a broker's address: {error}") from error
    if parts.scheme != "amqps" or host is None or parts.query:
        raise ConfigError(
            f"`{address}` is not a broker's address",
            hint="write `amqps://USER@HOST:PORT/VHOST`; TLS is a must, since the certificate says who we are",
        )
    return host, port, unquote(parts.path.removeprefix("/")) or VHOST


def broker_of(address: str, credentials: Credentials, *, user: str = "", **more: Any) -> Broker:
    """The broker at an address, as the user that it names, else as `user`. Raises ConfigError when the address,
    certificate or key will not do."""
    host, port, vhost = place_of(address)
    if credentials.certificate is None:
        raise ConfigError(
            f"the broker amqps://{host}:{port}/{vhost} wants a client certificate",
            hint="set `certificate` and `key`",
        )
    credentials.context()  # reports wrong files now, not in the thread that connects
    return Broker(
        host=host, port=port, vhost=vhost, credentials=credentials, user=user_in(address) or user, **more
    )


def library() -> Any:
    """pika. Raises ConfigError without it."""
    try:
        import pika
    except ImportError as error:
        raise ConfigError(
            f"messages need the package `pika`: {error}", hint=install_hint("messages")
        ) from error
    log.silence("pika")
    if pika.spec.props[pika.spec.BasicProperties.INDEX] is pika.spec.BasicProperties:
        pika.spec.props[pika.spec.BasicProperties.INDEX] = _tolerant(pika.spec.BasicProperties)
    return pika


def _tolerant(properties: Any) -> Any:
    """Properties of messages as pika reads them, but without headers that it cannot read, such as a time after the year
    9999. Its error would end the connection; the broker delivers the message again, which ends the next one, for ever:
    one message of one user would silence all."""

    class Tolerant(properties):  # type: ignore[misc]
        def decode(self, encoded: bytes, offset: int = 0) -> Any:
            try:
                return super().decode(encoded, offset)
            except Exception:  # noqa: BLE001 - whatever it meets in them
                return super().decode(_without_headers(encoded[offset:]))

    return Tolerant


def _without_headers(encoded: bytes) -> bytes:
    """The same properties (AMQP 0-9-1, 4.2.6.1), the table of headers left out."""
    (flags,) = struct.unpack_from(">H", encoded)
    at = 2
    for flag in (_HAS_CONTENT_TYPE, _HAS_CONTENT_ENCODING):
        if flags & flag:
            at += 1 + encoded[at]
    end = at
    if flags & _HAS_HEADERS:
        end += 4 + struct.unpack_from(">I", encoded, at)[0]
    return struct.pack(">H", flags & ~_HAS_HEADERS) + encoded[2:at] + encoded[end:]


def parameters_of(broker: Broker) -> Any:
    """Parameters of a connection for pika. Reads certificates each time: they are renewed while the process runs."""
    pika = library()
    context = broker.credentials.context()
    return pika.ConnectionParameters(
        broker.host, broker.port, broker.vhost, credentials=pika.credentials.ExternalCredentials(),
        ssl_options=pika.SSLOptions(context, broker.host), heartbeat=max(1, round(broker.heartbeat_s)),
        socket_timeout=CONNECT_S, stack_timeout=2 * CONNECT_S, blocked_connection_timeout=BLOCKED_S,
        connection_attempts=1, client_properties={"product": "tidemill"},
    )  # fmt: skip


def connection_of(
    broker: Broker,
    *,
    opened: Callable[[Any], None],
    failed: Callable[[Any, BaseException], None],
    closed: Callable[[Any, BaseException], None],
) -> Any:
    """A connection with a loop of its own, to be started."""
    from pika.adapters.select_connection import IOLoop, SelectConnection
    from pika.frame import Header

    class Bounded(SelectConnection):  # type: ignore[misc]
        def _process_frame(self, frame_value: Any) -> None:
            """Refuse a message by the size in its header: pika would hold all of it before passing it on."""
            bytes_max = broker.body_bytes_max
            if (
                bytes_max is not None
                and isinstance(frame_value, Header)
                and frame_value.body_size > bytes_max
            ):
                raise SiteError(
                    f"a message of {frame_value.body_size} bytes came, at most {bytes_max} are read"
                )
            super()._process_frame(frame_value)

    return Bounded(parameters_of(broker), opened, failed, closed, custom_ioloop=IOLoop())


def _within(error: BaseException) -> BaseException | None:
    """What pika has wrapped: the last of several tries, the error of a connector, or its first argument."""
    tries = getattr(error, "exceptions", None)
    found = tries[-1] if tries else getattr(error, "exception", None) or next(iter(error.args), None)
    return found if isinstance(found, BaseException) else None


def reason_of(error: BaseException) -> tuple[str, str | None]:
    """What went wrong, in a line, and what can be done about it."""
    inner = error
    while (within := _within(inner)) is not None:
        inner = within
    name = type(inner).__name__
    text = " ".join(str(inner).split()) or name
    if isinstance(inner, ConfigError):
        return inner.message, inner.hint
    if name in ("IncompatibleProtocolError", "AMQPHeartbeatTimeout") or isinstance(inner, ssl.SSLError):
        # pika reports an aborted TLS handshake this way, seen with pika 1.4 and RabbitMQ 3.10
        hint = "is our certificate of an authority that the broker knows, and not expired?"
        return (f"{text or name}", None if name == "AMQPHeartbeatTimeout" else hint)
    if "user_id property" in text:
        return (
            text,
            "write the certificate's user into the broker's URL: `amqps://USER@HOST/VHOST`",
        )
    if "ACCESS_REFUSED" in text or "NOT_FOUND" in text or name.startswith("Probable"):
        return text, "`tidemill server broker-setup` makes users, rights and queues"
    return text, None
