"""Hooks into uvicorn that it does not promise (decision 0026): a version that changes one fails here."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from tidemill.server.api.connection import ConnectionLimits, PeerProtocol, Peers
from tidemill.server.identity.access import PEER
from tidemill.server.run import _Server

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


class Connected:
    """A client's socket, and the protocol object that serves it."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.heard: list[Any] = []
        self.goes_on = asyncio.Event()
        config = uvicorn.Config(
            self._app, log_config=None, lifespan="off", timeout_keep_alive=60, interface="asgi3"
        )
        config.load()
        limits = ConnectionLimits(60.0, 60.0, 10)
        self.protocol = PeerProtocol(config, ServerState(), {}, limits=limits, peers=Peers())
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self._theirs = theirs

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await self.goes_on.wait()
        self.heard.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.ours, data)

    async def answer(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.ours, 4_096)

    def state(self) -> tuple[Any, Any]:
        """The states of client and server in h11."""
        return self.protocol.conn.their_state, self.protocol.conn.our_state

    def has_timer(self) -> bool:
        """Whether the timer of a kept connection runs."""
        return self.protocol.timeout_keep_alive_task is not None

    def is_asked(self) -> bool:
        """Whether a request is under way."""
        return self.protocol.cycle is not None

    async def until(self, true: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not true():
                await asyncio.sleep(0.001)


def connected(act: Callable[[Connected], Awaitable[None]]) -> None:
    async def run() -> None:
        it = Connected()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: it.protocol, sock=it._theirs)
        try:
            await act(it)
        finally:
            it.goes_on.set()
            transport.close()
            await it.until(lambda: not it.protocol.connections)
            it.ours.close()

    asyncio.run(run())


def test_the_application_of_a_connection_is_wrapped_and_learns_its_peer() -> None:
    async def act(it: Connected) -> None:
        it.goes_on.set()
        await it.send(HEAD % 0)
        assert (await it.answer()).startswith(b"HTTP/1.1 200")
        assert it.scopes[0][PEER] == "socket"
        assert it.protocol.loop is asyncio.get_running_loop()
        assert it.protocol.transport.get_write_buffer_size() == 0
        assert hasattr(it.protocol, "client")

    connected(act)


def test_h11_shows_whose_turn_it_is_and_what_has_come_of_a_head() -> None:
    async def act(it: Connected) -> None:
        conn = it.protocol.conn
        assert (it.state(), conn.trailing_data[0]) == ((h11.IDLE, h11.IDLE), b"")
        await it.send(HEAD[:10])
        await it.until(lambda: it.protocol.conn.trailing_data[0])
        assert it.protocol._head_since_s is not None
        await it.send((HEAD % 5)[10:])
        await it.until(lambda: it.state() == (h11.SEND_BODY, h11.SEND_RESPONSE))
        assert it.protocol._head_since_s is None

    connected(act)


def test_the_timer_of_a_kept_connection_runs_between_two_requests_only() -> None:
    async def act(it: Connected) -> None:
        assert not it.has_timer()
        await it.send(HEAD % 0)
        await it.until(lambda: it.scopes)
        assert not it.has_timer()
        it.goes_on.set()
        await it.answer()
        await it.until(it.has_timer)
        assert not it.protocol._is_idle

    connected(act)


def test_a_request_under_way_says_whether_it_is_answered_and_can_be_ended() -> None:
    async def act(it: Connected) -> None:
        assert not it.is_asked()
        await it.send(HEAD % 5)
        await it.until(lambda: it.scopes)
        cycle = it.protocol.cycle
        assert (cycle.response_complete, cycle.disconnected) == (False, False)
        cycle.disconnected = True
        it.goes_on.set()
        cycle.message_event.set()
        await it.until(lambda: it.heard)
        assert it.heard == [{"type": "http.disconnect"}]

    connected(act)


def test_an_answered_request_is_complete() -> None:
    async def act(it: Connected) -> None:
        it.goes_on.set()
        await it.send(HEAD % 0)
        await it.answer()
        await it.until(lambda: it.protocol.cycle.response_complete)

    connected(act)


def test_a_body_that_nobody_reads_pauses_the_connection() -> None:
    async def act(it: Connected) -> None:
        assert it.protocol.flow.read_paused is False
        await it.send(HEAD % 10_000_000)
        sending = asyncio.create_task(it.send(b"x" * 1_000_000))
        await it.until(lambda: it.protocol.flow.read_paused)
        sending.cancel()

    connected(act)


def test_a_signal_that_was_handled_is_not_raised_again_at_the_end() -> None:
    config = uvicorn.Config(lambda: None, log_config=None)
    server = object.__new__(_Server)
    uvicorn.Server.__init__(server, config)
    with server.capture_signals():
        signal.raise_signal(signal.SIGINT)
        assert server._captured_signals == [signal.SIGINT]
        assert server.should_exit
    plain = uvicorn.Server(config)
    # uvicorn still does what the hook avoids
    with pytest.raises(KeyboardInterrupt), plain.capture_signals():
        signal.raise_signal(signal.SIGINT)


def test_a_server_has_what_its_own_start_and_end_replace() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None, log_config=None, lifespan="off"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    assert server.lifespan.state == {}
    assert isinstance(server.server_state, ServerState)
    assert isinstance(server.config.backlog, int)
    assert server.started is False

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        await server.startup(sockets=[listener])
        assert server.started
        assert len(server.servers) == 1
        await server.shutdown(sockets=[listener])
        assert not server.servers[0].is_serving()

    asyncio.run(run())
