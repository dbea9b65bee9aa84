"""net/http_exchange.py against real sockets: what ends an exchange, bodies that wait, targets as written, kept
connections."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from tidemill.net.http_exchange import ExchangeError, HttpExchange, HttpServer, TimeLimit

Serve = Callable[[socket.socket], None]
BODY = b"x" * 300_000


@pytest.fixture
def serve() -> Iterator[Callable[[Serve], HttpServer]]:
    """A server of one connection, by what it does with it."""
    listeners, threads = list[socket.socket](), list[threading.Thread]()

    def begin(act: Serve) -> HttpServer:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            with suppress(OSError), listener.accept()[0] as peer:
                act(peer)

        threads.append(threading.Thread(target=accept, daemon=True))
        threads[-1].start()
        return HttpServer("127.0.0.1", listener.getsockname()[1], timeout_s=10)

    yield begin
    for each in listeners:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)  # a close alone leaves the accept in another thread waiting
        each.close()
    for thread in threads:
        thread.join(10)


def put(origin: HttpServer) -> tuple[int, int]:
    """Status of a PUT, and how many pieces of its body were asked for."""
    asked = [0]

    def pieces() -> Iterator[memoryview]:
        for at in range(0, len(BODY), 100_000):
            asked[0] += 1
            yield memoryview(BODY)[at : at + 100_000]

    headers = {"Content-Length": str(len(BODY)), "Expect": "100-continue"}
    with closing(origin.ask("PUT", "/", headers=headers, body=pieces())) as answer:
        return answer.status, asked[0]


def received(peer: socket.socket, length: int) -> bytes:
    """So many bytes after a request's head."""
    text = b""
    while b"\r\n\r\n" not in text or len(text.partition(b"\r\n\r\n")[2]) < length:
        piece = peer.recv(65536)
        assert piece, "the client has ended"
        text += piece
    return text


def test_a_body_waits_until_the_server_wants_it(serve: Callable[[Serve], HttpServer]) -> None:
    got: list[bytes] = []

    def act(peer: socket.socket) -> None:
        received(peer, 0)
        peer.sendall(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n")
        while len(got) < 3 and sum(map(len, got)) < len(BODY):
            got.append(peer.recv(len(BODY), socket.MSG_WAITALL))
        peer.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")

    assert put(serve(act)) == (201, 3)
    assert b"".join(got) == BODY


def test_a_server_that_refuses_gets_no_body(serve: Callable[[Serve], HttpServer]) -> None:
    rest: list[bytes] = []

    def act(peer: socket.socket) -> None:
        received(peer, 0)
        peer.sendall(b"HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n")
        rest.append(peer.recv(65536))

    origin = serve(act)
    assert put(origin) == (507, 0)
    with pytest.raises(ExchangeError):  # nobody takes the second connection
        origin.ask("GET", "/", headers={}, bound=TimeLimit(0.3))
    assert rest == [b""], "on the first one it would be taken for the body"


def test_a_server_that_knows_no_expectation_gets_the_body_after_a_while(
    serve: Callable[[Serve], HttpServer],
) -> None:
    def act(peer: socket.socket) -> None:
        received(peer, len(BODY))
        peer.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    assert put(serve(act)) == (204, 3)


def test_a_target_goes_out_as_it_was_written(serve: Callable[[Serve], HttpServer]) -> None:
    got: list[bytes] = []

    def act(peer: socket.socket) -> None:
        got.append(received(peer, 0))
        peer.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    serve(act).ask("GET", "//a%2fb/../c?sign=%3d[]", headers={}).close()
    assert got[0].startswith(b"GET //a%2fb/../c?sign=%3d[] HTTP/1.1\r\n")


def test_the_bound_ends_an_answer_that_never_does(serve: Callable[[Serve], HttpServer]) -> None:
    def act(peer: socket.socket) -> None:
        received(peer, 0)
        peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            peer.sendall(b"x")
            time.sleep(0.01)

    with (
        closing(serve(act).ask("GET", "/", headers={}, bound=TimeLimit(0.3))) as answer,
        pytest.raises(ExchangeError, match="no whole answer within"),
    ):
        answer.body(1 << 60)


def test_a_handshake_that_hangs_is_ended_by_another_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        origin = HttpServer("127.0.0.1", port, timeout_s=30, tls=ssl.create_default_context())
        threading.Timer(0.3, origin.break_off).start()
        with pytest.raises(ExchangeError, match="broken off"):
            origin.ask("GET", "/", headers={})


def test_a_connection_is_kept_after_an_answer_that_was_read(serve: Callable[[Serve], HttpServer]) -> None:
    def act(peer: socket.socket) -> None:
        for head in (
            b"Content-Length: 2\r\n\r\nab",
            b"Content-Length: 0\r\n\r\n",
            b"Content-Length: 9\r\n\r\n",
        ):
            received(peer, 0)
            peer.sendall(b"HTTP/1.1 200 OK\r\n" + head)

    origin = serve(act)
    for method, body in (("GET", b"ab"), ("DELETE", b""), ("HEAD", b"")):
        with closing(origin.ask(method, "/", headers={})) as answer:
            assert answer.body(100) == body
    origin.close()


def test_an_answer_that_was_read_ends_no_later_exchange_on_its_connection(
    serve: Callable[[Serve], HttpServer],
) -> None:
    class Late:
        is_late = False
        asked = threading.Event()

        def check(self) -> None:
            if self.is_late:
                self.asked.set()
                raise TimeoutError("late")

    def act(peer: socket.socket) -> None:
        received(peer, 0)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")
        received(peer, 0)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nc")
        bound.asked.wait(1)
        peer.sendall(b"d")

    origin, bound = serve(act), Late()
    first = origin.ask("GET", "/", headers={}, bound=bound)
    assert first.read(3) == b"ab"  # its reader does not close it yet
    with closing(origin.ask("GET", "/", headers={})) as second:
        assert second.read_some(1) == b"c"
        bound.is_late = True
        assert second.body(10) == b"d"
    first.close()


def test_a_directory_is_made_also_where_a_kept_connection_was_closed(
    serve: Callable[[Serve], HttpServer],
) -> None:
    taken: list[bytes] = []

    def act(peer: socket.socket) -> None:
        received(peer, 1)
        peer.sendall(b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n")
        taken.append(received(peer, 0))  # and no answer

    origin = serve(act)
    with closing(origin.ask("PUT", "/d/f", headers={}, body=b"x")) as answer:
        assert answer.status == 409
    with pytest.raises(ExchangeError, match="no whole answer"):  # it was sent again, where nobody takes it
        origin.ask("MKCOL", "/d/", headers={}, bound=TimeLimit(0.5))
    assert taken[0].startswith(b"MKCOL")


def test_kept_connections_end_with_the_server_object(serve: Callable[[Serve], HttpServer]) -> None:
    rest: list[bytes] = []
    over = threading.Event()

    def act(peer: socket.socket) -> None:
        received(peer, 0)
        peer.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        rest.append(peer.recv(1))
        over.set()

    origin = serve(act)
    origin.ask("GET", "/", headers={}).close()
    assert not over.wait(0.1), "it is kept"
    origin.close()
    assert over.wait(10)
    assert rest == [b""]


def test_an_encrypted_connection_that_is_ended_is_never_read_as_a_plain_one() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        secured = ssl.create_default_context().wrap_socket(
            ours, server_hostname="h", do_handshake_on_connect=False
        )
        with secured:
            exchange = HttpExchange("/")
            exchange.hold(secured)
            theirs.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            exchange.end(ConnectionAbortedError("enough"))
            assert secured.recv(100) == b""
            exchange.release()


def test_a_host_or_target_that_cannot_be_is_illegal(serve: Callable[[Serve], HttpServer]) -> None:
    for host, target in (("a..b", "/"), ("127.0.0.1", "/a b"), ("127.0.0.1", "/\xfc")):
        origin = serve(lambda peer: None) if host == "127.0.0.1" else HttpServer(host, 1, timeout_s=1)
        with pytest.raises(ExchangeError) as caught:
            origin.ask("GET", target, headers={})
        assert caught.value.is_illegal
