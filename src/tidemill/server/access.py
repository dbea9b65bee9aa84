"""Who may talk to the server: on the Unix socket our own user, on TCP whoever knows the secret. Refusals are logged."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from tidemill import log
from tidemill.errors import ConfigError

SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 4096
OPEN_PATH = "/v1/health"
_LOG = log.Log("server")
_REFUSED = b'{"error":"the secret is missing or wrong","hint":"name the server\'s secret file"}'


def read_secret(path: Path) -> bytes:
    """The secret in a file that its owner alone can read. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(SECRET_BYTES_MAX + 1).strip()
    except OSError as error:
        raise ConfigError(f"secret file `{path}` cannot be read: {error.strerror}") from error
    if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.getuid():
        raise ConfigError(
            f"secret file `{path}` is not private: mode {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid}",
            hint=f"`chmod 0600 {path}`",
        )
    if not SECRET_BYTES_MIN <= len(text) <= SECRET_BYTES_MAX or not text.isascii() or b" " in text:
        raise ConfigError(
            f"secret in `{path}` is not {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} ASCII characters without blanks",
            hint="`python3 -c 'import secrets; print(secrets.token_hex(32))'` makes one",
        )
    return text


class Guard:
    """ASGI: lets a request pass that carries `Authorization: Bearer SECRET`; all, if there is no secret."""

    def __init__(self, app: Any, secret: bytes | None) -> None:
        self._app, self._secret = app, secret

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a connection."""
        if scope["type"] == "http" and self._secret is not None and scope["path"] != OPEN_PATH:
            given = b"".join(value for name, value in scope["headers"] if name == b"authorization")
            if not hmac.compare_digest(given, b"Bearer " + self._secret):
                peer = scope.get("client") or ("unknown", 0)
                _LOG.warning("access.refused", peer=f"{peer[0]}:{peer[1]}", path=scope["path"], why="secret")
                await _refuse(send)
                return
        await self._app(scope, receive, send)


async def _refuse(send: Any) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"www-authenticate", b"Bearer"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSED})


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket: SO_PEERCRED, unix(7)."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


class PeerChecked(H11Protocol):
    """uvicorn's HTTP on a Unix socket, for our own user only: the directory keeps others out, this makes sure."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or end it before a byte is read."""
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid != os.getuid():
            _LOG.warning("access.refused", peer=f"uid {uid}", why="user")
            transport.abort()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell uvicorn, if it knows of the connection."""
        if getattr(self, "transport", None) is not None:
            super().connection_lost(exc)

    def eof_received(self) -> None:
        """Nothing to do."""
