"""A connection that stalls ends, whatever happens while its reason is sent."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tidemill.server.api.connection import ConnectionLimits, PeerProtocol, Peers


class Broken(asyncio.Transport):
    """A transport that can no longer be written to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.ends = socket.socketpair()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.ends[0] if name == "socket" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise OSError("broken")

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True
        for each in self.ends:
            each.close()

    abort = close

    def pause_reading(self) -> None:
        """Nothing is read."""

    def get_write_buffer_size(self) -> int:
        return 0


def test_a_stalled_connection_is_closed_even_if_its_reason_cannot_be_sent() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    async def stall() -> bool:
        config = uvicorn.Config(app, log_config=None)
        config.load()
        limits = ConnectionLimits(1.0, 1.0, 10)
        protocol = PeerProtocol(config, ServerState(), {}, limits=limits, peers=Peers())
        transport = Broken()
        protocol.connection_made(transport)
        protocol.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        with pytest.raises(OSError, match="broken"):
            protocol._break_off("body")
        return transport.is_closed

    assert asyncio.run(stall())
