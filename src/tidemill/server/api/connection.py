"""Who is at the other end of a connection, and who makes a request, as uvicorn and ASGI have it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidemill import log
from tidemill.model.identity import Act, Identity
from tidemill.server.core import rights
from tidemill.server.identity.access import IDENTITY, PEER
from tidemill.wire.api import ErrorReply

_LOG = log.Log("server")


def who(scope: Mapping[str, Any], act: Act) -> Identity:
    """The one who asks, if that one may do such a thing at all. Raises ForbiddenError, before a body is read.

    `scope`: of ASGI.
    """
    found = scope.get(IDENTITY)
    if not isinstance(found, Identity):
        raise TypeError(f"{scope['path']} was reached past the guard")
    rights.check(found, act)
    return found


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket: SO_PEERCRED, unix(7)."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


class _KnownPeer:
    """The application as one connection sees it: each of its requests carries who is at the other end."""

    def __init__(self, app: Any, peer: object) -> None:
        self._app, self._peer = app, peer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[PEER] = self._peer
        if scope["type"] == "http" and _is_ambiguous(scope["headers"]):
            _LOG.warning("request.ambiguous", path=scope["path"])
            await _refuse_and_close(send)
            return
        await self._app(scope, receive, send)


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
    """uvicorn's HTTP. A Unix socket is for our own user only: the directory keeps others out, this makes sure."""

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
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            peer = secured.getpeercert(binary_form=True)
        super().connection_made(transport)
        self.app = _KnownPeer(self.app, peer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell uvicorn, if it knows of the connection."""
        if getattr(self, "transport", None) is not None:
            super().connection_lost(exc)

    def eof_received(self) -> None:
        """Nothing to do."""
