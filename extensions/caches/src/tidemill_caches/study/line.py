"""A line to a server that is made longer: a TCP proxy on loopback that delays both ways.

For studies, tests and benches, where the kernel has no netem or the user may not use it.

Each way takes half of the round trip, and at most `window_bytes` are under way in each direction of a connection until
the other end has acknowledged them, so that one connection carries window / round trip, as with TCP. A new connection
costs one round trip more.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE_BYTES = 256 * 1024
WINDOW_BYTES = 4 << 20
"""What Linux gives a connection with its defaults (net.ipv4.tcp_rmem: 6 MB, of which it announces the most part)."""


class DelayedLine:
    """The line between clients and the server: its length, its width, and what has passed."""

    def __init__(self, host: str, port: int, *, rtt_ms: float, window_bytes: int) -> None:
        self.host = host
        self.port = port
        self.rtt_s = rtt_ms / 1000
        self.window_bytes = window_bytes
        self.refuses = False
        self.counts = {"up": 0, "down": 0, "connections": 0}
        self.tasks: set[asyncio.Task[None]] = set()
        self.writers: set[asyncio.StreamWriter] = set()

    def report(self) -> str:
        """The counts as a line of JSON."""
        return json.dumps({**self.counts, "open": len(self.tasks)})

    def cut(self) -> None:
        """End every connection with a reset."""
        for writer in list(self.writers):
            sock = writer.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for task in list(self.tasks):
            task.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one client's connection to its end."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.writers.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            if self.refuses:
                return
            await asyncio.sleep(self.rtt_s)  # SYN and its answer
            back, there = await asyncio.open_connection(self.host, self.port)
            self.writers.add(there)
            self.counts["connections"] += 1
            for each in (writer, there):
                each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.gather(
                DelayedWay(self, "up").carry(reader, there),
                DelayedWay(self, "down").carry(back, writer),
                return_exceptions=True,
            )
        except (OSError, asyncio.CancelledError):
            pass  # the server is unreachable, or `cut` closed the line
        finally:
            self.tasks.discard(task)
            for end in (writer, there):
                if end is not None:
                    self.writers.discard(end)
                    end.close()


class DelayedWay:
    """One direction of a connection: pieces under way, each with the time at which it arrives."""

    def __init__(self, line: DelayedLine, name: str) -> None:
        self._line = line
        self._name = name
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._unacknowledged = 0
        self._changed = asyncio.Event()
        self._ended = False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the sender ends and everything has arrived."""
        arriving = asyncio.ensure_future(self._deliver(writer))
        try:
            await self._send(reader)
        finally:
            self._ended = True
            self._changed.set()
        await arriving

    async def _send(self, reader: asyncio.StreamReader) -> None:
        now = asyncio.get_running_loop().time
        while True:
            room = self._line.window_bytes - self._unacknowledged
            if room <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            with suppress(ConnectionError):
                piece = await reader.read(min(room, PIECE_BYTES))
                if piece:
                    self._line.counts[self._name] += len(piece)
                    self._unacknowledged += len(piece)
                    self._pieces.append((now() + self._line.rtt_s / 2, piece))
                    self._changed.set()
                    continue
            return

    async def _deliver(self, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while self._pieces or not self._ended:
            if not self._pieces:
                self._changed.clear()
                await self._changed.wait()
                continue
            due, piece = self._pieces.popleft()
            await asyncio.sleep(max(0.0, due - loop.time()))
            writer.write(piece)
            await writer.drain()
            loop.call_later(self._line.rtt_s / 2, self._acknowledge, len(piece))
        await asyncio.sleep(self._line.rtt_s / 2)
        with suppress(OSError):
            writer.write_eof()

    def _acknowledge(self, size: int) -> None:
        self._unacknowledged -= size
        self._changed.set()


def obey(line: DelayedLine, words: list[str]) -> str:
    """Do what a line on the control port says; the answer."""
    if words == ["cut"]:
        line.cut()
    elif words == ["refuse"]:
        line.refuses = True
        line.cut()
    elif words == ["accept"]:
        line.refuses = False
    elif words == ["reset"]:
        line.counts.update(dict.fromkeys(line.counts, 0))
    elif len(words) == 2 and words[0] == "rtt":
        line.rtt_s = float(words[1]) / 1000
    elif words != ["count"]:
        return json.dumps({"error": "commands: count, cut, refuse, accept, rtt MS, reset"})
    return line.report()


class LongLine:
    """A line that carries connections in a thread of its own, on `port` of loopback."""

    def __init__(self, line: DelayedLine, port: int) -> None:
        self.port = port
        self._line = line

    @property
    def down_bytes(self) -> int:
        """What the server has sent so far."""
        return self._line.counts["down"]


@contextmanager
def lengthened(
    host: str, port: int, *, rtt_ms: float, window_bytes: int = WINDOW_BYTES
) -> Iterator[LongLine]:
    """A line to a server; its connections end with the context."""
    loop = asyncio.new_event_loop()
    line = DelayedLine(host, port, rtt_ms=rtt_ms, window_bytes=window_bytes)
    server = loop.run_until_complete(asyncio.start_server(line.serve, "127.0.0.1", 0, backlog=1024))
    thread = threading.Thread(target=loop.run_forever, name="line", daemon=True)
    thread.start()
    try:
        yield LongLine(line, server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(_end(line, server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(line: DelayedLine, server: asyncio.Server) -> None:
    server.close()
    line.cut()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
