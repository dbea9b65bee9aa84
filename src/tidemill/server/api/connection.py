"""Who is at the other end of a connection, and who makes a request, as uvicorn and ASGI have it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidemill import log
from tidemill.model.identity import Act, Identity
from tidemill.server import constants
from tidemill.server.core import rights
from tidemill.server.identity.access import IDENTITY, PEER
from tidemill.wire.api import REQUEST_BYTES_MAX, ErrorReply

CHECK_S = 1.0  #: how often a connection is checked for progress
STALL_BYTES = 1_024  #: a body that brings at least this much within `stall_s` makes progress
LINGER_S = 2.0
LINGER_BEGUN_S = 10.0
LINGER_BYTES_MAX = 1024 * 1024
_LOG = log.Log("server")


def who(scope: Mapping[str, Any], act: Act) -> Identity:
    """The one who asks, if that one may do such a thing at all. Raises ForbiddenError, before a body is read.

    `scope`: of ASGI.
    """
    result = scope.get(IDENTITY)
    if not isinstance(result, Identity):
        raise TypeError(f"{scope['path']} was reached past the guard")
    rights.check(result, act)
    return result


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket: SO_PEERCRED, unix(7)."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What one connection may keep waiting. A slow upload goes on as long as it makes progress."""

    head_s: float = constants.HEAD_S
    stall_s: float = constants.STALL_S
    per_certificate_max: int = constants.CONNECTIONS_MAX


class Peers:
    """Connections of each client certificate."""

    def __init__(self) -> None:
        self._open: Counter[bytes] = Counter()

    def enter(self, certificate: bytes, most: int) -> bool:
        """Count a connection; whether it may stay."""
        if self._open[certificate] >= most:
            return False
        self._open[certificate] += 1
        return True

    def leave(self, certificate: bytes) -> None:
        """Count out a connection of this certificate."""
        self._open[certificate] -= 1
        if not self._open[certificate]:
            del self._open[certificate]


class _KnownPeer:
    """The application as one connection sees it: each of its requests carries who is at the other end.

    An answer that comes before the whole body is held open at its end until the small rest was read: a client that
    still sends would meet a reset connection, which takes the answer with it (RFC 9112, 9.6).
    """

    def __init__(self, app: Any, peer: object) -> None:
        self._app, self._peer = app, peer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[PEER] = self._peer
        if scope["type"] == "http" and _is_ambiguous(scope["headers"]):
            _LOG.warning("request.ambiguous", path=scope["path"])
            await _refuse_and_close(send)
            return
        body = _UnreadBody(scope, receive)

        async def lingering(message: Any) -> None:
            if body.is_whole:
                await send(message)
            elif message["type"] == "http.response.start":
                more = [] if body.is_small else [(b"connection", b"close")]
                await send({**message, "headers": [*message.get("headers", []), *more]})
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await body.drop()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await send(message)

        await self._app(scope, body.receive, lingering)


class _UnreadBody:
    """A request's body, and how much of it is still unread."""

    def __init__(self, scope: Any, receive: Any) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        self._receive = receive
        self._left = int(length) if length.isdigit() else None
        self._is_invited, self._is_begun = b"expect" not in headers, False
        self.is_whole = self._left == 0 or (self._left is None and b"transfer-encoding" not in headers)

    @property
    def is_small(self) -> bool:
        """Whether the connection can be kept: uvicorn reads the rest for nothing after the answer."""
        return self._left is not None and self._left <= 2 * REQUEST_BYTES_MAX

    @property
    def _linger_bytes_max(self) -> int:
        """Bytes of a refused body to read: all of one that was wanted and refused for what it holds: it has a
        right to its answer."""
        return LINGER_BYTES_MAX if not self._is_begun else REQUEST_BYTES_MAX

    async def receive(self) -> Any:
        """ASGI's `receive`, which notes that the body is read."""
        self._is_invited = self._is_begun = True
        message = await self._receive()
        if message["type"] == "http.request":
            self._left = None if self._left is None else self._left - len(message.get("body", b""))
            self.is_whole = not message.get("more_body", False)
        else:
            self.is_whole = True
        return message

    async def drop(self) -> None:
        """Read a small rest within a short time, and forget it."""
        if not self._is_invited:
            return  # it waits for `100 Continue` and sends nothing without
        left, within_s = self._linger_bytes_max, LINGER_BEGUN_S if self._is_begun else LINGER_S
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.is_whole and left > 0:
                    left -= len((await self.receive()).get("body", b""))


def _is_ambiguous(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request has two lengths: a proxy in front may see its end elsewhere (RFC 9112, 6.1 and 11.2)."""
    names = {name for name, _ in headers}
    return b"content-length" in names and b"transfer-encoding" in names


async def _refuse_and_close(send: Any) -> None:
    """Answer such a request, and read nothing more of the connection."""
    reply = ErrorReply(error="a request has Content-Length or Transfer-Encoding, never both", hint=None)
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(reply)})


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP. A Unix socket serves our own user only: its directory keeps others out, and this class checks.

    It ends stalled transfers: a head that is incomplete in time, a body that stops, a response that is not read.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, peers: Peers, **words: Any) -> None:
        super().__init__(*args, **words)
        self._limits, self._peers = limits, peers
        self._certificate: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_since_s: float | None = None
        self._received = 0
        self._window = (0.0, 0)  #: when it began, and what had been received then
        self._unsent = (0.0, 0)  #: since when, and how much

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember who is at the other end, or abort the connection before a byte is read."""
        connection = transport.get_extra_info("socket")
        peer: object = None
        if connection.family == socket.AF_UNIX:
            uid = peer_uid(connection)
            if uid != os.getuid():
                _LOG.warning("access.refused", peer=f"uid {uid}", why="user")
                transport.abort()
                return
            peer = "socket"
        else:  # asyncio sets it only where the listener's protocol number is TCP's, and create_server leaves that 0
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            peer = secured.getpeercert(binary_form=True)
        if isinstance(peer, bytes):
            digest = hashlib.sha256(peer).digest()
            if not self._peers.enter(digest, self._limits.per_certificate_max):
                _LOG.warning(
                    "access.refused", peer=str(transport.get_extra_info("peername")), why="connections"
                )
                transport.abort()
                return
            self._certificate = digest
        super().connection_made(transport)
        self.app = _KnownPeer(self.app, peer)
        self._head_since_s = self.loop.time()
        self._window = (self._head_since_s, 0)
        self._timer = self.loop.call_later(CHECK_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell uvicorn, if it knows of the connection."""
        if self._timer is not None:
            self._timer.cancel()
        if self._certificate is not None:
            self._peers.leave(self._certificate)
            self._certificate = None
        if getattr(self, "transport", None) is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle what came, and note since when a head is awaited."""
        self._received += len(data)
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_since_s = None
        elif self._head_since_s is None and self.conn.trailing_data[0]:
            self._head_since_s = self.loop.time()

    def eof_received(self) -> None:
        """Nothing to do."""

    def _check(self) -> None:
        if self.transport.is_closing():
            return
        why = self._stalled(self.loop.time())
        if why is not None:
            self._break_off(why)
            return
        self._timer = self.loop.call_later(CHECK_S, self._check)

    def _stalled(self, now_s: float) -> str | None:
        """What the other end keeps waiting for too long; None = nothing."""
        since_s, unsent = self._unsent
        waiting = self.transport.get_write_buffer_size()
        if not waiting or waiting != unsent:
            self._unsent = (now_s, waiting)
        elif now_s - since_s > self._limits.stall_s:
            return "answer"
        if self._is_idle and self._head_since_s is None:
            self._head_since_s = now_s  # uvicorn's own timer ends with the first byte of an unwanted body
        if self._head_since_s is not None:
            return "head" if now_s - self._head_since_s > self._limits.head_s else None
        began_s, before = self._window
        is_awaited = self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused
        if is_awaited and self._received - before < STALL_BYTES:
            return "body" if now_s - began_s > self._limits.stall_s else None
        self._window = (now_s, self._received)
        return None

    @property
    def _is_idle(self) -> bool:
        """Whether it waits for a request, and nothing ends that."""
        is_done = self.cycle is None or self.cycle.response_complete
        return is_done and self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None

    def _break_off(self, what: str) -> None:
        """End the connection, with a reason where one can still be sent."""
        _LOG.warning("connection.stalled", peer=str(self.client or ""), what=what)
        try:
            self._say_why(what)
        finally:  # whatever state h11 is in: a connection that stalls must not stay
            self.transport.close() if what != "answer" else self.transport.abort()

    def _say_why(self, what: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        is_begun = self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and is_begun:
            text = msgspec.json.encode(ErrorReply(error=f"the {what} of the request did not come in time"))
            headers = [("content-type", "application/json"), ("connection", "close")]
            headers.append(("content-length", str(len(text))))
            for event in (
                h11.Response(status_code=408, headers=headers),
                h11.Data(data=text),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
