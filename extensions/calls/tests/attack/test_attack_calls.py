"""Strangers at the port of an Executor: they get no byte, and no more than a bounded share of anything."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidemill_calls import channel
from tidemill_calls.call import CallFuture, pickled
from tidemill_calls.functions import FunctionPickles
from tidemill_calls.switchboard import STRANGERS_MAX, Switchboard

WAIT_S = 60.0
FLOOD = 400


class Attacked(NamedTuple):
    """An executor's port."""

    board: Switchboard
    address: str
    directory: Path

    def connection(self) -> socket.socket:
        host, _, port = self.address.removeprefix("tcp:").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=WAIT_S)

    def call(self, function: Any, *args: Any) -> Future[Any]:
        future: CallFuture[Any] = CallFuture(self.board.cancelled)
        self.board.add(pickled((function, args, {}), self.directory, FunctionPickles()), future)
        return future

    @contextlib.contextmanager
    def worker(self) -> Iterator[None]:
        pool = self.directory / "pool"
        pool.write_text(json.dumps({"addresses": [self.address], "key": self.board.key.hex()}))
        process = subprocess.Popen([sys.executable, "-m", "tidemill_calls.worker", str(pool)])
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def unknown(self) -> int:
        """Connections that have not shown that they are a worker's."""
        others = [each for each in list(self.board._workers.values()) if not each.is_known]
        return len(self.board._strangers) + len(others)


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    board = Switchboard(tmp_path, timeout_s=None, retries=0, idle_s=60.0, path=sys.path)
    address = board.listen("tcp:127.0.0.1")
    board.start(lambda _job: "")
    yield Attacked(board, address, tmp_path)
    board.close(cancel=True)
    board.join()


def _until(done: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed it; it must not have said anything."""
    connection.setblocking(False)
    try:
        assert connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("words", [b"", b"x", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_flood_of_connections_holds_few_and_keeps_no_worker_out(attacked: Attacked, words: bytes) -> None:
    with contextlib.ExitStack() as kept:
        strangers = []
        for _ in range(FLOOD):
            strangers.append(kept.enter_context(attacked.connection()))
            with contextlib.suppress(ConnectionError):  # it may be sent away already
                strangers[-1].sendall(words)
            assert attacked.unknown() <= STRANGERS_MAX
        with attacked.worker():
            assert attacked.call(operator.add, 1, 1).result(WAIT_S) == 2
        _until(lambda: sum(map(_is_closed, strangers)) >= FLOOD - STRANGERS_MAX)


def test_who_says_a_byte_now_and_then_is_sent_away(attacked: Attacked) -> None:
    with attacked.connection() as stranger:
        for _ in range(channel.HELLO_BYTES - 1):
            if _is_closed(stranger):
                break
            with contextlib.suppress(ConnectionError):
                stranger.send(b"t")
            time.sleep(channel.HANDSHAKE_S / 40)  # all bytes take twice as long as is allowed
        assert _is_closed(stranger)


def test_who_sends_without_end_is_not_read(attacked: Attacked) -> None:
    sent = 0
    with attacked.connection() as stranger, contextlib.suppress(ConnectionError):
        for _ in range(100):
            stranger.sendall(bytes(1 << 20))
            sent += 1
    assert sent < 100
    _until(lambda: attacked.unknown() == 0)


def test_words_of_a_worker_that_are_repeated_get_no_call(attacked: Attacked) -> None:
    """What who reads the network can send again: the beginning of a worker's connection."""
    nonce = os.urandom(channel.NONCE_BYTES)
    hello = channel.MAGIC + nonce + channel._derive(attacked.board.key, b"worker", nonce)
    with contextlib.ExitStack() as kept:
        fakes = []
        for _ in range(STRANGERS_MAX + 10):
            fakes.append(kept.enter_context(attacked.connection()))
            with contextlib.suppress(ConnectionError):
                fakes[-1].sendall(hello)
            assert attacked.unknown() <= STRANGERS_MAX
        _until(lambda: any(attacked.board._workers))
        future = attacked.call(operator.add, 1, 1)
        assert attacked.board.connected() == 0
        with attacked.worker():
            assert future.result(WAIT_S) == 2
        for each in fakes:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                assert len(each.recv(1 << 16)) <= channel.REPLY_BYTES, "it got a frame"
