"""HTTP exchanges with one server, on urllib3's pools: for the API, transfers, web hooks and key sets.

Adds what urllib3 lacks: Unix sockets and other ways of connecting, one bound on a whole exchange however slowly its
bytes come, an end from another thread, `Expect: 100-continue`, targets that go out exactly as written. Follows no
redirection, uses no proxy and no environment variable, decodes no content.
"""

from __future__ import annotations

import http.client
import os
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPHeaderDict, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError

from tidemill import __version__, clock
from tidemill.errors import TidemillError

KEPT_MAX = 8
"""Idle connections to a server, for the next requests."""

CHECK_S = 0.2
"""How often the bound of an exchange is checked."""

INVITE_S = 1.0
"""How long a server that does not know `Expect: 100-continue` delays a body (RFC 9110, 10.1.1; curl's default)."""

PIECE_BYTES = 1024 * 1024
_ONCE = frozenset({"PUT", "MOVE", "DELETE"})  # done twice, each may fail or undo what came between
_SOCKET_PATH_MAX = 107  # sun_path of unix(7) holds 108 bytes with the closing zero

Connect = Callable[[float], socket.socket]
"""A connected socket, within a time in seconds for each step. Raises OSError."""


class ExchangeError(Exception):
    """The connection failed, or what came is not HTTP. `reason`: the error of the system, of TLS or of the parser."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.reason = reason

    @property
    def is_illegal(self) -> bool:
        """Whether nothing was sent, because host or target cannot be."""
        is_value = isinstance(self.reason, ValueError) and not isinstance(self.reason, OSError)
        return is_value or isinstance(self.reason, http.client.InvalidURL)


class Bound(Protocol):
    """Says when an exchange has to end."""

    def check(self) -> None:
        """Raise the OSError or TidemillError that the exchange ends with, once its time is up."""


class TimeLimit:
    """A bound by time alone; several exchanges may share it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until_s = clock.monotonic_s() + seconds

    def check(self) -> None:
        """Raise TimeoutError when the time is up."""
        if clock.monotonic_s() > self._until_s:
            raise TimeoutError(f"no whole answer within {self._seconds:g} s")


class HttpExchange:
    """One request with its answer, which another thread may end at any point, also amid a TLS handshake.

    A socket's own time limit restarts with each byte, so a server that sends one now and then would never be late.
    The exchange ends by shutting down a second descriptor of the connection: shutting down an `SSLSocket` turns it into
    a plain socket first, and the reading thread would then accept unencrypted bytes as the answer.
    """

    def __init__(self, target: str, bound: Bound | None = None) -> None:
        self.target = target
        self.is_kept = False  #: an earlier exchange has used the connection
        self._ended: Exception | None = None
        self._handle: socket.socket | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        if bound is not None:
            threading.Thread(target=self._watch, args=(bound,), name="bound", daemon=True).start()

    @property
    def is_held(self) -> bool:
        """Whether it has a connection."""
        return self._handle is not None

    def is_stale(self, error: BaseException) -> bool:
        """Whether it failed because a kept connection had been closed by the server before the request came."""
        is_closed = isinstance(error, ExchangeError) and isinstance(error.reason, ConnectionError)
        return is_closed and self.is_kept and self._ended is None

    def hold(self, connection: socket.socket) -> None:
        """This is the connection to be ended."""
        handle = socket.socket(fileno=os.dup(connection.fileno()))
        with self._lock:
            old, self._handle = self._handle, handle
        if old is not None:
            old.close()
        if self._ended is not None:
            self.end(self._ended)

    def end(self, why: Exception) -> None:
        """Have the thread that reads or writes find the end of the connection; `check` raises `why` there."""
        with self._lock:
            self._ended = self._ended or why
            if self._handle is not None:
                with suppress(OSError):
                    self._handle.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        """Raise why the exchange was ended, if it was."""
        if isinstance(self._ended, OSError):
            raise ExchangeError(self._ended)
        if self._ended is not None:
            raise self._ended

    def release(self) -> None:
        """The answer is read, or not wanted."""
        self._over.set()
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Raise as ExchangeError whatever goes wrong with the connection within, or why it was ended."""
        try:
            yield
        except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            self.check()
            raise ExchangeError(_reason(error)) from error

    def _watch(self, bound: Bound) -> None:
        while not self._over.wait(CHECK_S):
            try:
                bound.check()
            except (OSError, TidemillError) as error:
                self.end(error)
                return


class HttpAnswer:
    """Status, headers and body of an answer; to be closed by the reader. Raises ExchangeError, or as the bound."""

    def __init__(self, response: Any, exchange: HttpExchange, forget: Callable[[HttpExchange], None]) -> None:
        self._response, self._exchange, self._forget = response, exchange, forget
        self.status: int = response.status
        self.reason: str = response.reason or ""
        self.headers: HTTPHeaderDict = response.headers

    def read(self, bytes_max: int) -> bytes:
        """The body's next bytes: fewer than asked for only before its end, and at the end of a chunk."""
        with self._exchange.failing():
            # http.client.read takes a chunk of size -1 for all that comes; its read1 takes what is there
            read = self._response.read1 if self._response.chunked else self._response.read
            piece: bytes = read(bytes_max)
        if len(piece) < bytes_max:
            self._exchange.check()
        self._let_go()
        return piece

    def read_some(self, bytes_max: int) -> bytes:
        """What is there of the body, or comes next; empty at its end."""
        with self._exchange.failing():
            piece: bytes = self._response.read1(bytes_max)
        if not piece:
            self._exchange.check()
        self._let_go()
        return piece

    def _let_go(self) -> None:
        """Leave the connection to the next request: urllib3 puts it back once the body is read."""
        if self._response.closed:
            self._exchange.release()

    def body(self, bytes_max: int) -> bytes:
        """The body, at most its first `bytes_max` bytes."""
        pieces: list[bytes] = []
        left = bytes_max
        while left > 0 and (piece := self.read_some(min(left, PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def lines(self, bytes_max: int) -> Iterator[bytes]:
        """The lines of the body as they come; longer ones in pieces."""
        rest = b""
        while piece := self.read_some(PIECE_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
            if len(rest) > bytes_max:
                yield rest
                rest = b""
        if rest:
            yield rest

    def close(self) -> None:
        """Keep the connection for the next request if the body was read to its end."""
        with suppress(ExchangeError, TidemillError):
            if self._response.length_remaining == 0:
                self.read(1)  # only a read makes http.client see that nothing follows
        self._exchange.release()
        self._forget(self._exchange)
        if not self._response.closed:
            self._response.close()


class HttpServer:
    """A server, with the connections to it that are kept between requests. May be shared by threads.

    `connect`: how to reach it, instead of by TCP to `host` and `port`; `tls`: how to speak TLS; `timeout_s`: for each
    step of an exchange, whereas a Bound is for all of them.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        connect: Connect | None = None,
    ) -> None:
        """Raises ExchangeError for a host that cannot be one."""
        words: dict[str, Any] = {
            "timeout": timeout_s, "maxsize": KEPT_MAX, "connect": connect or tcp(host, port or (443 if tls else 80)),
        }  # fmt: skip
        try:
            self._pool = (
                _PlainPool(host, port, **words)
                if tls is None
                else _SecuredPool(host, port, ssl_context=tls, **words)
            )
        except ValueError as error:
            raise ExchangeError(error) from error
        self._under_way = set[HttpExchange]()

    def ask(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes | Iterable[memoryview] | None = None,
        bound: Bound | None = None,
    ) -> HttpAnswer:
        """The answer, of which the headers have come. Raises ExchangeError, or what `bound` does.

        A body in pieces goes out without being copied, with the caller's `Content-Length`; with `Expect` it waits until
        the server wants it. A request that meets a kept connection which the server has closed meanwhile goes out again
        on another one, unless its method is PUT, MOVE or DELETE: the pieces of its body must not be an iterator.
        """
        while True:
            exchange = HttpExchange(target, bound)
            self._under_way.add(exchange)
            try:
                response = self._response(exchange, method, headers, body)
                return HttpAnswer(response, exchange, self._under_way.discard)
            except BaseException as error:
                exchange.release()
                self._under_way.discard(exchange)
                if method in _ONCE or not exchange.is_stale(error):
                    raise

    def break_off(self) -> None:
        """End the exchanges under way, in whatever thread: they fail as if the server had not answered."""
        for exchange in list(self._under_way):
            exchange.end(ConnectionAbortedError("it was broken off"))

    def close(self) -> None:
        """Close the connections that are kept. The next request opens a new one."""
        with suppress(queue.Empty):
            while self._pool.pool is not None:
                connection = self._pool.pool.get_nowait()
                if connection is not None:
                    connection.close()

    def _response(
        self, exchange: HttpExchange, method: str, headers: Mapping[str, str], body: Any
    ) -> BaseHTTPResponse:
        _current.exchange = exchange
        sent = {"User-Agent": f"tidemill/{__version__}", **headers}
        with exchange.failing():
            response = self._pool.urlopen(
                method, "/", body, sent,
                retries=False, redirect=False, preload_content=False, decode_content=False,
            )  # fmt: skip
        try:
            exchange.check()
        except BaseException:
            response.close()
            raise
        return response


class _Current(threading.local):
    """The exchange for which this thread uses or opens a connection: urllib3 passes it no argument of the caller."""

    exchange: HttpExchange


_current = _Current()


class _PlainConnection(HTTPConnection):
    def __init__(self, *args: Any, connect: Connect, **words: Any) -> None:
        self._connect = connect
        self._early: http.client.HTTPResponse | None = None  #: begun before the body was sent
        self._is_spent = False  #: a promised body was not sent: the server may take what comes next for it
        super().__init__(*args, **words)

    @property
    def is_connected(self) -> bool:
        return not self._is_spent and super().is_connected

    def close(self) -> None:
        self._is_spent = False
        if self._early is not None:
            self._take_early().close()
        super().close()

    def _new_conn(self) -> socket.socket:
        try:
            made = self._connect(cast(float, self.timeout))
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error
        _current.exchange.hold(made)
        return made

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **words: Any) -> None:
        """Send the target as it was written: urllib3 makes `%2F` of `%2f`, and the signature of the URL void."""
        exchange = _current.exchange
        self.response_class = http.client.HTTPResponse
        if self.sock is not None and not exchange.is_held:
            exchange.hold(self.sock)
            exchange.is_kept = True
        if "Expect" in headers:
            body = self._invited(method, body)
        super().request(method, exchange.target, body, headers, **words)

    def _invited(self, method: str, body: Iterable[memoryview]) -> Iterator[memoryview]:
        """The body; none of it if the server answers for good without it."""
        self.sock.settimeout(INVITE_S)
        self._early = http.client.HTTPResponse(self.sock, method=method)
        try:
            said = self._early.fp.peek(12)[9:12]
        except TimeoutError:
            self._take_early().close()
        else:
            self.response_class = cast(Any, self._take_early)  # a `100` it skips by itself
            self._is_spent = not b"100".startswith(said)  # the status may come in pieces
        self.sock.settimeout(self.timeout)
        if not self._is_spent:
            yield from body

    def _take_early(self, *_: object, **__: object) -> http.client.HTTPResponse:
        early = self._early
        assert early is not None
        self._early = None
        return early


class _SecuredConnection(_PlainConnection, HTTPSConnection):
    pass


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _SecuredPool(HTTPSConnectionPool):
    ConnectionCls = _SecuredConnection


def tcp(host: str, port: int) -> Connect:
    """By TCP, to the first of the host's addresses that answers."""

    def connect(timeout_s: float) -> socket.socket:
        made = socket.create_connection((host, port), timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    return connect


def unix(path: Path) -> Connect:
    """By the Unix socket of this name, which may be longer than the kernel takes."""

    def connect(timeout_s: float) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        try:
            if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
                made.connect(str(path))
                return made
            directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                made.connect(f"/proc/self/fd/{directory}/{path.name}")
            finally:
                os.close(directory)
        except BaseException:
            made.close()
            raise
        return made

    return connect


def _reason(error: Exception) -> Exception:
    """The error below those of urllib3."""
    below = (*error.args, error.__cause__)
    return next((each for each in below if isinstance(each, (OSError, http.client.HTTPException))), error)
