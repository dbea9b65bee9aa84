"""HTTP to a server, on a Unix socket or TCP: one call, one typed answer, or one of our errors.

Knows the messages' transport, not their meaning. Every message of the API may be repeated (`wire/api.py`), so
a call that meets a connection which the server has closed meanwhile goes out again on another one.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from tidemill import clock
from tidemill.config.keys import addresses, refuse_password
from tidemill.errors import UNDECODABLE, ConfigError, JobError, ProtocolError, SiteError, TidemillError
from tidemill.net.addresses import is_loopback
from tidemill.net.http_exchange import (
    PIECE_BYTES,
    ExchangeError,
    HttpAnswer,
    HttpServer,
    TimeLimit,
    tcp,
    unix,
)
from tidemill.wire.api import REQUEST_BYTES_MAX, ErrorReply
from tidemill.wire.credentials import Credentials
from tidemill.wire.transports import kind_of

RESPONSE_BYTES_MAX = 256 * 1024 * 1024
LINE_BYTES_MAX = 1024 * 1024
INVITED_BYTES = 1024 * 1024  #: longer bodies wait until the server wants them
WAIT_S = 5.0
CONNECT_S = 5.0  #: for a connection to one address of several, before the next one is asked
HEALTH = "/v1/health"
PROVEN_S = (
    30.0  #: an address of several that has answered within this time is called without being tried first
)
_UNSENT = (ConnectionRefusedError, FileNotFoundError, socket.gaierror)

T = TypeVar("T")
Reply = TypeVar("Reply")
Marks = tuple[tuple[int, int], ...]
Query = Mapping[str, str | int | bool | None]


class RefusedRequestError(JobError):
    """400: the server refuses the request. No job has failed, and existing jobs are unchanged."""

    exit_code = 2


class ConflictError(RefusedRequestError):
    """409: the key was used for other content, the name is taken, or the epoch is old. Asking again cannot help."""


class TooLongError(RefusedRequestError):
    """What was to be sent is longer than a request may be, here or at a proxy (413): less of it may be sent."""


class BusyError(SiteError):
    """429: too many requests of this submitter have come of late. The same may be asked again after `wait_s`."""

    def __init__(self, message: str, *, hint: str | None = None, wait_s: float) -> None:
        super().__init__(message, hint=hint)
        self.wait_s = wait_s


class NotActiveError(SiteError):
    """503 of the standby of a pair: nothing was changed. The pair's other address is to be asked."""


class NotAllowedError(ConfigError):
    """The server knows who asks, and does not allow it."""


class NotFoundError(ConfigError):
    """404: the server knows no such job, campaign, output or route."""


class Connection:
    """A server at `unix:/path/api.sock`, `http://host:port` or `https://host:port`, or the addresses of a pair, with
    commas between them: a call that is not answered, or that a standby refuses, goes to the next address, and so do
    later calls. A short request before the call detects a server that accepts connections and does not answer.

    Keeps connections for the next calls; may be shared by threads. Sends the certificate, and the secret or the token
    as bearer token; without any of them, over https, the token that `find_token` finds. `longest_s` limits the whole
    of a call, `timeout_s` each step. Raises SiteError (transient) if no server answers, ConfigError for 401, 403 and
    404, BusyError for 429, ConflictError for 409, TooLongError for 413, RefusedRequestError for any other refusal,
    and ProtocolError for an answer that cannot be read.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: Credentials | None = None,
        timeout_s: float = 30,
        longest_s: float | None = None,
        reply_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> None:
        self._reply_bytes_max = reply_bytes_max
        self._addresses = addresses(address)
        self._at = self._breaks = 0
        self._timeout_s, self._longest_s = timeout_s, longest_s
        self._credentials = credentials or Credentials()
        self._lock = threading.Lock()
        self._servers: dict[str, tuple[HttpServer, Marks]] = {}
        self._proven_s: dict[str, float] = {}  #: when each address of several last answered
        for _ in self._addresses:  # reports a wrong file now, not at the first call
            self._current()
            self._headers()
            self._leave(self.address)

    @property
    def address(self) -> str:
        """The address that the next call goes to."""
        return self._addresses[self._at]

    def call(
        self, method: str, path: str, reply_type: type[Reply], *, body: Any = None, query: Query | None = None
    ) -> Reply:
        """The server's answer to one request, decoded as `reply_type`. `body` is any value of msgspec's."""
        return self._at_any(lambda: self._call(method, path, reply_type, body=body, query=query), once=False)

    def call_once(self, method: str, path: str, reply_type: type[Reply], *, body: Any) -> Reply:
        """As `call`, of what must not be sent twice: it goes to another address only if the one before certainly has
        not taken it."""
        return self._at_any(lambda: self._call(method, path, reply_type, body=body, query=None), once=True)

    def _call(
        self, method: str, path: str, reply_type: type[Reply], *, body: Any, query: Query | None
    ) -> Reply:
        target = _target(path, query)
        content = None if body is None else msgspec.json.encode(body)
        if content is not None and len(content) > REQUEST_BYTES_MAX:
            raise TooLongError(
                f"failed to send `{method} {path}`: {len(content)} bytes, the limit is {REQUEST_BYTES_MAX}",
                hint="send it in smaller parts",
            )
        status, answer, wait_s = self._exchange(method, target, content)
        if status >= 400:
            raise self._refusal(status, f"{method} {path}", answer, wait_s)
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
        """The answer to `GET path` as text, such as that of `/metrics`. Raises as `call`."""

        def ask() -> str:
            status, answer, wait_s = self._exchange("GET", path, None)
            if status >= 400:
                raise self._refusal(status, f"GET {path}", answer, wait_s)
            return answer.decode(errors="replace")

        return self._at_any(ask, once=False)

    def lines(self, path: str, query: Query | None = None) -> Iterator[str]:
        """The `data:` lines of a stream of server-sent events, until the server ends it.

        Raises SiteError if the stream breaks, or says nothing (not even a comment) for the connection's `timeout_s`:
        the next stream comes from the next address.
        """
        address = self.address
        try:
            if self._is_silent():
                self._leave(address)
                address = self.address
            yield from self._lines(_target(path, query), path)
        except SiteError:
            self._leave(address)
            raise

    def _lines(self, target: str, path: str) -> Iterator[str]:
        answer = self._ask("GET", target, {**self._headers(), "Accept": "text/event-stream"}, None)
        try:
            if answer.status >= 400:
                text = answer.body(LINE_BYTES_MAX)
                raise self._refusal(answer.status, f"GET {path}", text, _wait_of(answer))
            for line in answer.lines(LINE_BYTES_MAX):
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode(errors="replace")
        except ExchangeError as error:
            raise self._unreachable(f"GET {target}", error.reason) from error
        finally:
            answer.close()

    def close(self) -> None:
        """Close the connections that are kept; the next call opens a new one."""
        for server, _ in self._servers.values():
            server.close()

    def break_off(self) -> None:
        """End the calls that wait for an answer, in any thread: they fail as if no server had answered."""
        self._breaks += 1
        for server, _ in self._servers.values():
            server.break_off()

    def _at_any(self, ask: Callable[[], T], *, once: bool) -> T:
        """What `ask` returns at the first address that answers. Raises what the only one raised, or all of them."""
        failed: list[str] = []
        silent: set[str] = set()  #: asked once the others have failed: a server may be slow
        breaks = self._breaks
        while True:
            address = self.address
            if address not in silent and self._is_silent():
                silent.add(address)
                self._leave(address)
                continue
            if breaks != self._breaks:
                raise SiteError(f"the call to {address} was broken off")
            try:
                answer = ask()
            except SiteError as error:
                if len(self._addresses) == 1 or not _other_may(error, once=once) or breaks != self._breaks:
                    raise
                failed.append(error.message)
                self._leave(address)
                if len(failed) == len(self._addresses):
                    raise SiteError("; ".join(dict.fromkeys(failed)), hint=error.hint) from error
            else:
                self._proven_s[address] = clock.monotonic_s()
                return answer

    def _is_silent(self) -> bool:
        """Whether the server at this address of several takes connections and says nothing, as one that is stopped. A
        call itself may take its time, so what answered lately is not asked."""
        address = self.address
        if len(self._addresses) == 1:
            return False
        if clock.monotonic_s() < self._proven_s.get(address, float("-inf")) + PROVEN_S:
            return False
        soon_s = min(CONNECT_S, self._timeout_s)
        server = _origin(address, self._credentials, soon_s, soon_s)
        try:
            server.ask("GET", HEALTH, headers={}).close()
        except ExchangeError as error:
            return isinstance(error.reason, TimeoutError)  # whatever else it is, the call finds it soon
        finally:
            server.close()
        self._proven_s[address] = clock.monotonic_s()
        return False

    def _leave(self, address: str) -> None:
        """Go to the next address, unless another thread has done so."""
        self._proven_s.pop(address, None)
        with self._lock:
            if self.address == address:
                self._at = (self._at + 1) % len(self._addresses)

    def _exchange(self, method: str, target: str, content: bytes | None) -> tuple[int, bytes, float]:
        """Status, body, and how long to wait before asking again."""
        headers = self._headers()
        body: bytes | list[memoryview] | None = content
        if content is not None:
            headers["Content-Type"] = "application/json"
            if len(content) > INVITED_BYTES:  # a server that refuses it says so before it is sent
                headers |= {"Expect": "100-continue", "Content-Length": str(len(content))}
                whole = memoryview(content)
                body = [whole[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
        answer = self._ask(method, target, headers, body)
        try:
            text = answer.body(self._reply_bytes_max + 1)
        except ExchangeError as error:
            raise self._unreachable(f"{method} {target}", error.reason) from error
        finally:
            answer.close()
        if len(text) > self._reply_bytes_max:
            raise ProtocolError(
                f"the answer of {self.address} to `{method} {target}` exceeds {self._reply_bytes_max} bytes",
                hint="ask for a smaller page",
            )
        return answer.status, text, _wait_of(answer)

    def _ask(
        self, method: str, target: str, headers: dict[str, str], content: bytes | list[memoryview] | None
    ) -> HttpAnswer:
        bound = None if self._longest_s is None else TimeLimit(self._longest_s)
        try:
            return self._current().ask(method, target, headers=headers, body=content, bound=bound)
        except ExchangeError as error:
            raise self._unreachable(f"{method} {target}", error.reason) from error

    def _current(self) -> HttpServer:
        """The server, by TLS as the files are now: certificates are renewed under a running agent."""
        with self._lock:
            address = self.address
            found = self._servers.get(address)
            if found is None:
                found = self._servers[address] = (self._open(address), self._credentials.marks())
            with suppress(ConfigError):  # files that are half renewed: as before, and again at the next call
                marks = self._credentials.marks() if self._is_encrypted else found[1]
                if marks != found[1]:
                    found = self._servers[address] = (self._open(address), marks)
            return found[0]

    def _open(self, address: str) -> HttpServer:
        connect_s = CONNECT_S if len(self._addresses) > 1 else None
        return _origin(address, self._credentials, self._timeout_s, connect_s)

    @property
    def _is_encrypted(self) -> bool:
        return self.address.startswith("https:")

    def _headers(self) -> dict[str, str]:
        bearer = self._credentials.bearer(encrypted=self._is_encrypted, stays_here=_stays_here(self.address))
        return {} if bearer is None else {"Authorization": f"Bearer {bearer}"}

    def _unreachable(self, what: str, error: Exception) -> SiteError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if self.address.startswith("unix:"):
            hint = (
                "is it running? `tidemill up` starts one for you, `tidemill doctor` looks for what is wrong"
            )
        else:
            hint = (
                "ask the person who runs it whether it is up, and check the address and this host's network"
            )
        if "CERTIFICATE_VERIFY_FAILED" in str(error) or isinstance(error, ssl.SSLCertVerificationError):
            reason = str(error)
            hint = "is it the right server? name the CA of its certificate with the key `ca`"
        elif isinstance(error, ssl.SSLError):
            reason = str(error)
            hint = "it may have refused your certificate: `tidemill certs show` shows whether it has expired"
        return SiteError(
            f"failed to reach the server at {self.address} for `{what}`: {reason}",
            hint=hint,
        )

    def _refusal(self, status: int, what: str, answer: bytes, wait_s: float) -> TidemillError:
        try:
            reply = msgspec.json.decode(answer, type=ErrorReply)
        except UNDECODABLE:
            reply = ErrorReply(error=f"{self.address} answered {status} to `{what}`: {_quote(answer)}")
        if status == 429:
            return BusyError(reply.error, hint=reply.hint, wait_s=wait_s)
        return error_of(status, reply)


def _other_may(error: SiteError, *, once: bool) -> bool:
    """Whether to ask the pair's other address after this error."""
    if isinstance(error, BusyError) or not error.transient:
        return False
    reason = error.__cause__.reason if isinstance(error.__cause__, ExchangeError) else None
    return not once or isinstance(error, NotActiveError) or isinstance(reason, _UNSENT)


def error_of(status: int, reply: ErrorReply) -> TidemillError:
    """The error that a refusal stands for, by whatever way it came."""
    if reply.standby is True:
        return NotActiveError(reply.error, hint=reply.hint)
    if status == 401:
        hint = reply.hint or "name the file that holds the server's secret (mode 0600)"
        return ConfigError(reply.error, hint=hint)
    if status == 403:
        hint = reply.hint or "name the file that holds the server's secret (mode 0600)"
        return NotAllowedError(reply.error, hint=hint)
    if status == 404:
        return NotFoundError(reply.error, hint=reply.hint)
    if status == 409:
        return ConflictError(reply.error, hint=reply.hint)
    if status == 413:
        return TooLongError(reply.error, hint=reply.hint)
    if status == 507:  # no room for jobs until people make some: it does not help to ask again
        return SiteError(reply.error, hint=reply.hint, transient=False)
    if status in (408, 429) or status >= 500:
        return SiteError(reply.error, hint=reply.hint, transient=True)
    return RefusedRequestError(reply.error, hint=reply.hint)


def _origin(address: str, credentials: Credentials, timeout_s: float, connect_s: float | None) -> HttpServer:
    """`connect_s`: how long to wait for a connection by TCP; None = as for each step."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path.startswith("/"):
            raise ConfigError(f"`{address}` is not a server address: the path of the socket is not absolute")
        return HttpServer("localhost", None, timeout_s=timeout_s, connect=unix(Path(path)))
    try:
        refuse_password(address)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    try:
        parts = urlsplit(address)
        host = parts.hostname
        kind = kind_of(address)  # before the port: a transport of an extension need not have one
        if kind is not None:
            raise ConfigError(f"`{parts.scheme}://{host}` answers no requests", hint=kind.hint)
        port = parts.port
        if parts.scheme in ("http", "https") and host and parts.path in ("", "/") and not parts.query:
            tls = credentials.context() if parts.scheme == "https" else None
            at = tcp(host, port or (443 if tls else 80))
            soon = None if connect_s is None else lambda step_s: at(min(step_s, connect_s))
            return HttpServer(host, port, timeout_s=timeout_s, tls=tls, connect=soon)
    except (ValueError, ExchangeError) as error:
        raise ConfigError(f"`{address}` is not a server address: {error}") from error
    raise ConfigError(
        f"`{address}` is not a server address",
        hint="write `unix:/path/api.sock`, `http://host:port` or `https://host:port`",
    )


def _stays_here(address: str) -> bool:
    """Whether what is sent to an address stays on this machine: a Unix socket, or loopback."""
    return address.startswith("unix:") or is_loopback(urlsplit(address).hostname or "")


def _target(path: str, query: Query | None) -> str:
    told = {key: _query_text(value) for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(told)}" if told else path


def _query_text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wait_of(answer: HttpAnswer) -> float:
    """Seconds of `Retry-After`; of a time of day, as proxies may send, or none: a guess."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 7 else WAIT_S


def _quote(answer: bytes) -> str:
    text = answer[:200].decode(errors="replace").strip()
    return f"`{text}`" if text else "nothing"
