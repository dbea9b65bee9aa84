"""Who is at the other end of a connection, and who makes a request, as uvicorn and ASGI have it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from tidemill import log
from tidemill.model.identity import Act, Identity
from tidemill.server.core import rights
from tidemill.server.identity.access import IDENTITY, PEER

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
        await self._app(scope, receive, send)


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
