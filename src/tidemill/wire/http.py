"""HTTP to a server, on a Unix socket or TCP: one call, one typed answer, or one of our errors.

Knows the messages' transport, not their meaning. Every message of the API may be repeated (`wire/api.py`), so
a call that meets a connection which the server has closed meanwhile is sent once more, whatever its method.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from tidemill.errors import ConfigError, JobError, ProtocolError, SiteError, TidemillError
from tidemill.wire.api import REQUEST_BYTES_MAX, ErrorReply

RESPONSE_BYTES_MAX = 256 * 1024 * 1024
LINE_BYTES_MAX = 1024 * 1024
SECRET_BYTES_MAX = 4096
_SOCKET_PATH_MAX = 107  # sun_path of unix(7) holds 108 bytes with the closing zero

Reply = TypeVar("Reply")
Query = Mapping[str, str | int | bool | None]


class ConflictError(JobError):
    """409: the key was used for other content, or the epoch is old. Sending it again cannot help."""


class NotFoundError(ConfigError):
    """404: the server knows no such job, campaign, output or route."""


class Connection:
    """A server at `unix:/path/api.sock`, `http://host:port` or `https://host:port`.

    Keeps one connection per thread alive, so it may be shared by threads. The secret in `secret_file`, which
    must be readable by its owner alone, is sent as bearer token. Raises SiteError (transient) if nobody
    answers, ConfigError for 401 and 404, ConflictError for 409, JobError for anything else that it refuses,
    and ProtocolError for an answer that cannot be read.
    """

    def __init__(self, address: str, *, secret_file: Path | None = None, timeout_s: float = 30) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._secret_file = secret_file
        self._open = _opener(address)
        self._local = threading.local()
        if secret_file is not None:
            read_secret(secret_file)  # a wrong file is told at once, not at the first call

    def call(
        self, method: str, path: str, reply_type: type[Reply], *, body: Any = None, query: Query | None = None
    ) -> Reply:
        """The server's answer to one request, decoded as `reply_type`. `body` is any value of msgspec's."""
        target = _target(path, query)
        content = None if body is None else msgspec.json.encode(body)
        if content is not None and len(content) > REQUEST_BYTES_MAX:
            raise JobError(
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
        except msgspec.DecodeError as error:
            raise ProtocolError(
                f"failed to read the answer of {self.address} to `{method} {path}`: {error}: "
                f"{_quote(answer)}",
                hint="are server and client of the same version?",
            ) from error

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
                    yield line[5:].strip().decode()
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

    def _exchange(self, method: str, target: str, content: bytes | None) -> tuple[int, bytes]:
        headers = self._headers()
        if content is not None:
            headers["Content-Type"] = "application/json"
        while True:
            kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
            connection = kept or self._open(self._timeout_s)
            self._local.connection = connection
            try:
                connection.request(method, target, body=content, headers=headers)
                response = connection.getresponse()
                answer = response.read(RESPONSE_BYTES_MAX + 1)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if kept is not None and _is_stale(error):
                    continue  # at most once: what is opened next was not kept
                raise self._unreachable(f"{method} {target}", error) from error
            if response.will_close or len(answer) > RESPONSE_BYTES_MAX:
                self.close()
            if len(answer) > RESPONSE_BYTES_MAX:
                raise ProtocolError(
                    f"the answer of {self.address} to `{method} {target}` exceeds {RESPONSE_BYTES_MAX} bytes",
                    hint="ask for a smaller page",
                )
            return response.status, answer

    def _headers(self) -> dict[str, str]:
        if self._secret_file is None:
            return {}
        return {"Authorization": f"Bearer {read_secret(self._secret_file)}"}

    def _unreachable(self, what: str, error: Exception) -> SiteError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return SiteError(
            f"failed to reach the server at {self.address} for `{what}`: {reason}",
            hint="is it running? `tidemill up` starts one for you, `tidemill doctor` looks for what is wrong",
        )

    def _refusal(self, status: int, what: str, answer: bytes) -> TidemillError:
        try:
            reply = msgspec.json.decode(answer, type=ErrorReply)
        except msgspec.DecodeError:
            reply = ErrorReply(error=f"{self.address} answered {status} to `{what}`: {_quote(answer)}")
        if status == 401:
            hint = reply.hint or "name the file that holds the server's secret (mode 0600)"
            return ConfigError(reply.error, hint=hint)
        if status == 404:
            return NotFoundError(reply.error, hint=reply.hint)
        if status == 409:
            return ConflictError(reply.error, hint=reply.hint)
        if status in (408, 429) or status >= 500:
            return SiteError(reply.error, hint=reply.hint, transient=True)
        return JobError(reply.error, hint=reply.hint)


def read_secret(path: Path) -> str:
    """The secret in a file of mode 0600 (or 0400) that is ours; ConfigError otherwise."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"failed to read the secret file `{path}`: {error.strerror}") from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"the secret file `{path}` has mode {mode:04o}", hint=f"chmod 0600 {path}")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"the secret file `{path}` belongs to user {status.st_uid}", hint="use a file of your own"
        )
    secret = text.strip()
    if not secret or len(text) > SECRET_BYTES_MAX or not all(0x21 <= byte <= 0x7E for byte in secret):
        raise ConfigError(
            f"the secret file `{path}` does not hold one word of printable ASCII",
            hint=f"head -c 32 /dev/urandom | base64 -w0 > {path}",
        )
    return secret.decode()


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


def _opener(address: str) -> Any:
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
    context = ssl.create_default_context()
    return lambda timeout_s: _TlsConnection(host, port, timeout=timeout_s, context=context)


def _target(path: str, query: Query | None) -> str:
    told = {key: _query_text(value) for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(told)}" if told else path


def _query_text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_stale(error: Exception) -> bool:
    """Whether a kept connection had been closed by the other side before it read our request."""
    return isinstance(error, (http.client.RemoteDisconnected, http.client.CannotSendRequest, ConnectionError))


def _quote(answer: bytes) -> str:
    text = answer[:200].decode(errors="replace").strip()
    return f"`{text}`" if text else "nothing"
