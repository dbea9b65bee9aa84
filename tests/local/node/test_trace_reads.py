"""`tidemill-node trace` counts what a command reads from network connections: each byte once, by address."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.image.profile import RemoteReads, parse_profile
from tidemill.node.binary import find_binary

LIMIT_S = 60
ISOLATE = ("unshare", "-pf", "--kill-child", "--mount-proc") if os.geteuid() == 0 else ()
DELAY_S = 0.03

#: asks for sizes, one after the other, and reads each reply in its own way
CLIENT = """
import os, socket, sys, threading

def replies(port, sizes, read):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for size in sizes:
            connection.sendall(size.to_bytes(8, "big"))
            left = size
            while left:
                got = read(connection, left)
                assert got > 0
                left -= got

def by_recv(connection, left):
    return len(connection.recv(min(left, 65536)))

def by_read(connection, left):
    return len(os.read(connection.fileno(), min(left, 5000)))

def by_readv(connection, left):
    first = min(left, 100)
    return os.readv(connection.fileno(), [bytearray(first), bytearray(min(left - first, 3000))])

def by_message(connection, left):
    return len(connection.recvmsg(min(left, 4096))[0])

def by_a_look_first(connection, left):
    connection.recv(min(left, 10), socket.MSG_PEEK)
    return by_recv(connection, left)

def without_waiting(connection, left):
    connection.setblocking(False)
    while True:
        try:
            return len(connection.recv(min(left, 50_000)))
        except BlockingIOError:
            pass
"""


class Sender:
    """Sends as many bytes as each request says, DELAY_S later."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while asked := connection.recv(8, socket.MSG_WAITALL):
                time.sleep(DELAY_S)
                connection.sendall(bytes(int.from_bytes(asked)))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def near() -> Iterator[Sender]:
    sender = Sender()
    yield sender
    sender.close()


@pytest.fixture
def other() -> Iterator[Sender]:
    sender = Sender()
    yield sender
    sender.close()


def reads_of(program: str, folder: Path, *words: object) -> dict[int, RemoteReads]:
    """What the trace tells of a program that begins with CLIENT, by port."""
    text, path = folder / "client.py", folder / "profile.json"
    text.write_text(CLIENT + textwrap.dedent(program))
    command = [sys.executable, str(text), *(str(word) for word in words)]
    subprocess.run(
        [*ISOLATE, str(find_binary()), "trace", "-o", str(path), "--", *command], check=True, timeout=LIMIT_S
    )
    profile = parse_profile(path.read_bytes(), source="the trace")
    assert profile.reads_missed == 0
    assert not profile.truncated
    return {each.port: each for each in profile.reads}


def test_bytes_are_exact_for_every_way_of_reading_and_each_address(
    near: Sender, other: Sender, tmp_path: Path
) -> None:
    reads = reads_of(
        """
        near, other = int(sys.argv[1]), int(sys.argv[2])
        replies(near, [1000, 200_000, 3], by_recv)
        replies(near, [1000, 70_000], by_read)
        replies(near, [1000, 20_000], by_readv)
        replies(near, [50, 100_000], by_message)
        replies(near, [77], by_a_look_first)
        replies(other, [4096, 123_456], without_waiting)
        with open("/etc/passwd", "rb", buffering=0) as file:  # it has the number of a connection that was closed
            file.read()
        """,
        tmp_path, near.port, other.port,
    )  # fmt: skip
    assert set(reads) == {near.port, other.port}
    assert reads[near.port].bytes == 201_003 + 71_000 + 21_000 + 100_050 + 77
    assert (reads[near.port].connections, reads[near.port].waits) == (5, 10)
    assert reads[other.port].bytes == 127_552
    assert (reads[other.port].connections, reads[other.port].waits) == (1, 2)
    assert all(each.address == "127.0.0.1" for each in reads.values())


def test_threads_and_children_count_and_wait_as_long_as_their_server_takes(
    near: Sender, tmp_path: Path
) -> None:
    reads = reads_of(
        """
        if sys.argv[1] == "once":
            replies(int(sys.argv[2]), [999], by_recv)
            sys.exit(0)
        port = int(sys.argv[1])
        ways = [by_recv, by_read, by_readv, by_message] * 3
        threads = [threading.Thread(target=replies, args=(port, [5000, 60_000], way)) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(3):
            if os.fork() == 0:
                replies(port, [1234], by_recv)
                os._exit(0)
            assert os.wait()[1] == 0
        os.execv(sys.executable, [sys.executable, sys.argv[0], "once", str(port)])
        """,
        tmp_path, near.port,
    )[near.port]  # fmt: skip
    assert reads.bytes == 12 * 65_000 + 3 * 1234 + 999
    assert (reads.connections, reads.waits) == (16, 28)
    assert reads.wait_us >= 28 * DELAY_S * 1e6
    assert sum(reads.wait_log2_us) == 28
    first = next(bin_ for bin_, count in enumerate(reads.wait_log2_us) if count)
    assert 2 ** (first + 1) > DELAY_S * 1e6


def test_a_program_that_connects_to_nothing_far_has_no_reads(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    command = [sys.executable, "-c", "import socket; a, b = socket.socketpair(); a.send(b'x'); b.recv(1)"]
    subprocess.run(
        [*ISOLATE, str(find_binary()), "trace", "-o", str(path), "--", *command], check=True, timeout=LIMIT_S
    )
    assert json.loads(path.read_bytes())["reads"] == []
