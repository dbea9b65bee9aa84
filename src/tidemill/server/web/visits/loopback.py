"""A port on loopback for a browser, in front of the server's Unix socket: it forwards nothing without its own login.

A port of loopback is open to every user of a machine. So a client must be a process of this user, as far as the kernel
can say, and must first open a URL with a token that works once; after that, a cookie is the login. Everything else is
refused before a byte reaches the server. The port closes with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import NamedTuple

from tidemill import clock, log
from tidemill.server.web.visits.entrance import is_local

TOKEN_S = 600.0  #: a URL that was not opened within this time expires
HEAD_BYTES_MAX = 64 * 1024
HEAD_S = 10.0
CONNECTIONS_MAX = 200
PIECE = 64 * 1024
ENTRY = "/enter/"
_TCP_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_DROPPED = (b"connection", b"keep-alive", b"proxy-connection", b"upgrade")
_LOG = log.Log("web")


class RequestHead(NamedTuple):
    """The beginning of a request. `rest`: what came after it already."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    line: bytes
    rest: bytes

    def text(self, name: bytes) -> str:
        """A header, empty if there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")


class LoopbackPort:
    """The port. `url` hands out a new address that works once."""

    def __init__(self, server_socket: Path, *, token_s: float = TOKEN_S) -> None:
        self._socket, self._token_s = server_socket, token_s
        self._cookies: set[str] = set()
        self._tokens: dict[str, float] = {}
        self._open = 0
        self.port = 0

    def url(self) -> str:
        """An address that lets in one browser, once, within `token_s`."""
        token = secrets.token_urlsafe(32)
        self._tokens[token] = clock.monotonic_s() + self._token_s
        return f"http://127.0.0.1:{self.port}{ENTRY}{token}"

    async def start(self, port: int) -> asyncio.Server:
        """Listen on 127.0.0.1; `port` 0 = any. Raises OSError."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", port, limit=HEAD_BYTES_MAX)
        self.port = int(server.sockets[0].getsockname()[1])
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX and not is_of_another_user(writer.get_extra_info("socket")):
                async with asyncio.timeout(HEAD_S):
                    head = await _read_head(reader)
                if head is not None:
                    await self._answer(head, reader, writer)
        except (OSError, TimeoutError):
            pass  # it has gone, or says nothing: nothing was passed on
        except asyncio.CancelledError:
            pass  # the command ends; this is the top of the connection's task, which Python 3.11 reports otherwise
        finally:
            self._open -= 1
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(
        self, head: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not is_local(head.text(b"host")):
            await _say(writer, 403, "this port is opened as `localhost` or `127.0.0.1` only\n")
        elif head.path.startswith(ENTRY) and head.method == "GET":
            await self._enter(head, writer)
        elif not self._is_known(head):
            _LOG.warning("loopback.refused", path=head.path[:100])
            await _say(writer, 403, "open the URL that `tidemill web` printed; each works once\n")
        elif head.method == "POST" and head.path == "/logout":
            self._cookies.discard(self._given(head))
            gone = f"{self._name}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
            await _say(writer, 200, "logged out; `tidemill web` prints a new URL\n", [("Set-Cookie", gone)])
        else:
            await self._pass_on(head, reader, writer)

    @property
    def _name(self) -> str:
        return f"tidemill-web-{self.port}"  # browsers send cookies to every port of a host

    def _given(self, head: RequestHead) -> str:
        try:
            found = SimpleCookie(head.text(b"cookie")).get(self._name)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _is_known(self, head: RequestHead) -> bool:
        given = self._given(head).encode()
        return any([hmac.compare_digest(given, each.encode()) for each in self._cookies])

    async def _enter(self, head: RequestHead, writer: asyncio.StreamWriter) -> None:
        given, now_s = head.path.removeprefix(ENTRY).encode(), clock.monotonic_s()
        self._tokens = {token: until_s for token, until_s in self._tokens.items() if until_s > now_s}
        found = [token for token in self._tokens if hmac.compare_digest(token.encode(), given)]
        if not found:
            _LOG.warning("loopback.refused", path=ENTRY)
            await _say(
                writer, 403, "this URL was opened before, or is too old; `tidemill web` prints a new one\n"
            )
            return
        del self._tokens[found[0]]
        cookie = secrets.token_urlsafe(32)
        self._cookies.add(cookie)
        kept = f"{self._name}={cookie}; Path=/; HttpOnly; SameSite=Strict"
        # A page of our own leads on: a strict cookie is not sent along a redirection that another program began
        page = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><a href="/">Go on</a>'
        await _say(writer, 200, page, [("Set-Cookie", kept)], media="text/html; charset=utf-8")

    async def _pass_on(
        self, head: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            from_server, to_server = await asyncio.open_unix_connection(os.fspath(self._socket))
        except OSError as error:
            await _say(
                writer, 502, f"the server does not answer: {error.strerror}; is `tidemill up` running?\n"
            )
            return
        try:
            kept = [(name, value) for name, value in head.headers if name not in _DROPPED]
            lines = [head.line, *(name + b": " + value for name, value in kept), b"connection: close"]
            to_server.write(b"\r\n".join(lines) + b"\r\n\r\n" + head.rest)
            await to_server.drain()
            upward = asyncio.create_task(_pump(reader, to_server))
            try:
                await _pump(from_server, writer)
            finally:
                upward.cancel()
                await asyncio.gather(upward, return_exceptions=True)
        finally:
            to_server.close()


def is_of_another_user(
    connection: socket.socket, tables: Mapping[socket.AddressFamily, Path] = _TCP_TABLES
) -> bool:
    """Whether a process of another user is at the other end of a connection over loopback, as /proc/net/tcp has it
    (proc_pid_net(5)): a forwarded port's is `sshd`'s child, which is the user's. False where it is not listed."""
    table = tables.get(socket.AddressFamily(connection.family))
    if table is None:
        return False
    # both ends: a connection of that port to another one that has just ended is listed as root's
    wanted = [_listed(connection.getpeername()), _listed(connection.getsockname())]
    try:
        rows = table.read_text().splitlines()[1:]
    except OSError:
        return False
    return any(
        fields[1:3] == wanted and fields[7] != str(os.getuid())
        for fields in map(str.split, rows)
        if len(fields) > 7
    )


def _listed(name: tuple[str, int]) -> str:
    """An address as the kernel lists it: each word of four bytes in the machine's order."""
    host, port = name[:2]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    address = b"".join(packed[k : k + 4][::-1] for k in range(0, len(packed), 4)).hex().upper()
    return f"{address}:{port:04X}"


async def _read_head(reader: asyncio.StreamReader) -> RequestHead | None:
    """The head of a request; None if it is malformed."""
    try:
        text = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    line, *rows = text[:-4].split(b"\r\n")
    parts = line.split(b" ")
    pairs = [row.partition(b":") for row in rows]
    if len(parts) != 3 or any(not colon or name != name.strip() for name, colon, _ in pairs):
        return None
    path = parts[1].decode("latin-1").partition("?")[0] if parts[1].startswith(b"/") else ""
    headers = [(name.lower(), value.strip()) for name, _, value in pairs]
    return RequestHead(parts[0].decode("latin-1"), path, headers, line, b"") if path else None


async def _pump(source: asyncio.StreamReader, into: asyncio.StreamWriter) -> None:
    while piece := await source.read(PIECE):
        into.write(piece)
        await into.drain()


async def _say(
    writer: asyncio.StreamWriter, status: int, text: str, more: list[tuple[str, str]] | None = None, *,
    media: str = "text/plain; charset=utf-8",
) -> None:  # fmt: skip
    body = text.encode()
    words = {200: "OK", 403: "Forbidden", 502: "Bad Gateway"}[status]
    headers = [
        ("Content-Type", media), ("Content-Length", str(len(body))), ("Connection", "close"),
        ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), ("X-Content-Type-Options", "nosniff"),
        ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"), *(more or []),
    ]  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    writer.write(f"HTTP/1.1 {status} {words}\r\n{head}\r\n".encode() + body)
    await writer.drain()
