"""HTTP to a server, on a Unix socket or TCP: one call, one typed answer, or one of our errors.

Knows the messages' transport, not their meaning. Every message of the API may be repeated (`wire/api.py`), so
a call that meets a connection which the server has closed meanwhile is sent once more, whatever its method.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from tidemill.errors import UNDECODABLE, ConfigError, JobError, ProtocolError, SiteError, TidemillError
from tidemill.wire.api import REQUEST_BYTES_MAX, ErrorReply
from tidemill.wire.credentials import Credentials
from tidemill.wire.cut import cut

RESPONSE_BYTES_MAX = 256 * 1024 * 1024
LINE_BYTES_MAX = 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_SOCKET_PATH_MAX = 107  # sun_path of unix(7) holds 108 bytes with the closing zero

Reply = TypeVar("Reply")
Query = Mapping[str, str | int | bool | None]


class ConflictError(JobError):
    """409: the key was used for other content, or the epoch is old. Sending it again cannot help."""


class TooLongError(JobError):
    """What was to be sent is longer than a request may be, here or at a proxy (413): less of it may be sent."""


class NotFoundError(ConfigError):
    """404: the server knows no such job, campaign, output or route."""


class Connection:
    """A server at `unix:/path/api.sock`, `http://host:port` or `https://host:port`.

    Keeps one connection per thread alive, so it may be shared by threads. Shows the certificate, and sends the
    secret or the token as bearer token; without any of them, by https, the token that `find_token` finds. Raises
    SiteError (transient) if nobody answers, ConfigError for 401, 403 and 404, ConflictError for 409, TooLongError for
    413, JobError for anything else that it refuses, and ProtocolError for an answer that cannot be read.
    """

    def __init__(
        self,
        address: str,
        *,
        secret_file: Path | None = None,
        credentials: Credentials | None = None,
        timeout_s: float = 30,
        reply_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> None:
        self._reply_bytes_max = reply_bytes_max
        self.address = address
        self._timeout_s = timeout_s
        self._credentials = credentials or Credentials(secret_file=secret_file)
        self._encrypted = address.startswith("https:")
        self._open = _opener(address, self._credentials)
        self._local = threading.local()
        self._under_way: dict[int, socket.socket] = {}  #: by thread
        self._broken_off: set[int] = set()
        self._headers()  # a wrong file is told at once, not at the first call

    def call(
        self, method: str, path: str, reply_type: type[Reply], *, body: Any = None, query: Query | None = None
    ) -> Reply:
        """The server's answer to one request, decoded as `reply_type`. `body` is any value of msgspec's."""
        target = _target(path, query)
        content = None if body is None else msgspec.json.encode(body)
        if content is not None and len(content) > REQUEST_BYTES_MAX:
            raise TooLongError(
                f"failed to send `{method} {path}`: {len(content)} bytes, the limit is {REQUEST_BYTES_MAX}",
                hint="send it in smaller parts",
            )
        status, answer = self._exchange(method, target, content)
        if status >= 400:
            raise self._refusal(status, f"{method} {path}", answer)
        if reply_type is type(None):
            return None
        try:
            return msgspec.json.decode(answer, type=reply_type)
        except UNDECODABLE as error:
            raise ProtocolError(
                f"failed to read the answer of {self.address} to `{method} {path}`: {error}: "
                f"{_quote(answer)}",
                hint="are server and client of the same version?",
            ) from error

    def text(self, path: str) -> str:
        """The answer to `GET path` that is no JSON, such as that of `/metrics`. Raises as `call`."""
        status, answer = self._exchange("GET", path, None)
        if status >= 400:
            raise self._refusal(status, f"GET {path}", answer)
        return answer.decode(errors="replace")

    def lines(self, path: str, query: Query | None = None) -> Iterator[str]:
        """The `data:` lines of a stream of server-sent events, until the server ends it.

        Uses a connection of its own. Raises SiteError if the stream breaks, or says nothing (not even a
        comment) for the connection's `timeout_s`.
        """
        target = _target(path, query)
        connection = self._open(self._timeout_s)
        try:
            headers = {**self._headers(), "Accept": "text/event-stream"}
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise self._refusal(response.status, f"GET {path}", response.read(LINE_BYTES_MAX))
            while line := response.readline(LINE_BYTES_MAX):
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(f"GET {path}", error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close this thread's connection; the next call opens a new one."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def break_off(self) -> None:
        """End the calls that wait for an answer, in whatever thread: they fail as if nobody had answered. A server that
        sends a byte now and then is never late to a socket."""
        for thread, plug in list(self._under_way.items()):
            self._broken_off.add(thread)
            cut(plug)

    def _exchange(self, method: str, target: str, content: bytes | None) -> tuple[int, bytes]:
        thread = threading.get_ident()
        self._broken_off.discard(thread)
        try:
            return self._exchanged(method, target, content)
        finally:
            self._under_way.pop(thread, None)

    def _exchanged(self, method: str, target: str, content: bytes | None) -> tuple[int, bytes]:
        thread = threading.get_ident()
        headers = self._headers()
        if content is not None:
            headers["Content-Type"] = "application/json"
        while True:
            kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
            connection = kept or self._open(self._timeout_s)
            self._local.connection = connection
            try:
                connection.request(method, target, body=content, headers=headers)
                self._under_way[thread] = connection.sock
                response = connection.getresponse()
                answer = body_of(response, self._reply_bytes_max + 1)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if kept is not None and _is_stale(error) and thread not in self._broken_off:
                    continue  # at most once: what is opened next was not kept
                raise self._unreachable(f"{method} {target}", error) from error
            if response.will_close or len(answer) > self._reply_bytes_max:
                self.close()
            if len(answer) > self._reply_bytes_max:
                raise ProtocolError(
                    f"the answer of {self.address} to `{method} {target}` exceeds {self._reply_bytes_max} bytes",
                    hint="ask for a smaller page",
                )
            return response.status, answer

    def _headers(self) -> dict[str, str]:
        bearer = self._credentials.bearer(encrypted=self._encrypted)
        return {} if bearer is None else {"Authorization": f"Bearer {bearer}"}

    def _unreachable(self, what: str, error: Exception) -> SiteError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "is it running? `tidemill up` starts one for you, `tidemill doctor` looks for what is wrong"
        if "CERTIFICATE_VERIFY_FAILED" in str(error) or isinstance(error, ssl.SSLCertVerificationError):
            reason = str(error)
            hint = "is it the right server? name the CA of its certificate with the key `ca`"
        elif isinstance(error, ssl.SSLError):
            reason = str(error)
            hint = "it may have refused your certificate: `tidemill certs show` tells whether it has expired"
        return SiteError(
            f"failed to reach the server at {self.address} for `{what}`: {reason}",
            hint=hint,
        )

    def _refusal(self, status: int, what: str, answer: bytes) -> TidemillError:
        try:
            reply = msgspec.json.decode(answer, type=ErrorReply)
        except UNDECODABLE:
            reply = ErrorReply(error=f"{self.address} answered {status} to `{what}`: {_quote(answer)}")
        return error_of(status, reply)


def error_of(status: int, reply: ErrorReply) -> TidemillError:
    """The error that a refusal stands for, by whatever way it came."""
    if status in (401, 403):
        hint = reply.hint or "name the file that holds the server's secret (mode 0600)"
        return ConfigError(reply.error, hint=hint)
    if status == 404:
        return NotFoundError(reply.error, hint=reply.hint)
    if status == 409:
        return ConflictError(reply.error, hint=reply.hint)
    if status == 413:
        return TooLongError(reply.error, hint=reply.hint)
    if status in (408, 429) or status >= 500:
        return SiteError(reply.error, hint=reply.hint, transient=True)
    return JobError(reply.error, hint=reply.hint)


class _TcpConnection(http.client.HTTPConnection):
    """Closes when nobody needs it any more: a thread has ended, or a client went away."""

    def __del__(self) -> None:
        self.close()


class _TlsConnection(http.client.HTTPSConnection):
    """As `_TcpConnection`, by TLS."""

    def __del__(self) -> None:
        self.close()


class _UnixConnection(_TcpConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        plug = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plug.settimeout(self.timeout)
        try:
            _connect_unix(plug, self._path)
        except BaseException:
            plug.close()
            raise
        self.sock = plug


def _connect_unix(plug: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        plug.connect(path)
        return
    directory = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY)  # a path of any length, through /proc
    try:
        plug.connect(f"/proc/self/fd/{directory}/{Path(path).name}")
    finally:
        os.close(directory)


def _opener(address: str, credentials: Credentials) -> Any:
    """A function from a timeout in seconds to a new, lazily connecting HTTPConnection."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path.startswith("/"):
            raise ConfigError(f"`{address}` is no server address: the path of the socket is not absolute")
        return lambda timeout_s: _UnixConnection(path, timeout_s)
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"`{address}` is no server address: {error}") from error
    if parts.scheme not in ("http", "https") or host is None or parts.path not in ("", "/") or parts.query:
        raise ConfigError(
            f"`{address}` is no server address",
            hint="write `unix:/path/api.sock`, `http://host:port` or `https://host:port`",
        )
    if parts.scheme == "http":
        return lambda timeout_s: _TcpConnection(host, port, timeout=timeout_s)
    tls = _Tls(credentials)
    return lambda timeout_s: _TlsConnection(host, port, timeout=timeout_s, context=tls.context())


class _Tls:
    """The TLS context, made anew when one of its files has changed: certificates are renewed under a running agent."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._marks = credentials.marks()
        self._context = credentials.context()

    def context(self) -> ssl.SSLContext:
        """The newest."""
        marks = self._credentials.marks()
        if marks != self._marks:
            self._context = self._credentials.context()
            self._marks = marks
        return self._context


def _target(path: str, query: Query | None) -> str:
    told = {key: _query_text(value) for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(told)}" if told else path


def _query_text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def body_of(response: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """The body, at most so long: a chunk of size -1 makes `HTTPResponse.read` take all that comes, another negative
    one makes it raise ValueError; `read1` takes what is there."""
    pieces: list[bytes] = []
    left = bytes_max
    while left > 0 and (piece := response.read1(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    response.close()  # the connection stays open; without this it takes the answer for unread
    return b"".join(pieces)


def _is_stale(error: Exception) -> bool:
    """Whether a kept connection had been closed by the other side before it read our request."""
    return isinstance(error, (http.client.RemoteDisconnected, http.client.CannotSendRequest, ConnectionError))


def _quote(answer: bytes) -> str:
    text = answer[:200].decode(errors="replace").strip()
    return f"`{text}`" if text else "nothing"
