"""A server that sends a byte now and then holds up nobody for longer than the watch allows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.config.transfer import Endpoint
from tidemill.transfer.contract import TransferError
from tidemill.transfer.mover import Mover
from tidemill.transfer.patience import MovePatience

HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nETag: "1"\r\nConnection: close\r\n\r\n'
PAUSE_S = 0.1
DROPS_MAX = 100  #: ten times what come until it is given up; all would be a million


class Dripping:
    """Answers HEAD at once; the answer to GET comes a byte at a time from `whole` bytes on."""

    def __init__(self, whole: int) -> None:
        self._whole, self.drops = whole, 0
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            if connection.recv(65536).startswith(b"HEAD"):
                connection.sendall(HEAD)
                return
            content = HEAD + bytes(1_000_000)
            try:
                connection.sendall(content[: self._whole])
                for at in range(self._whole, len(content)):
                    if self._over.wait(PAUSE_S):
                        return
                    connection.sendall(content[at : at + 1])
                    self.drops += 1
            except OSError:
                return

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # a close alone leaves the accept in another thread waiting
        for thread in list(self._threads):
            thread.join(10)
        self._listener.close()


@pytest.fixture(params=[10, len(HEAD) + 300_000], ids=["head", "body"])
def dripping(request: pytest.FixtureRequest) -> Iterator[Dripping]:
    server = Dripping(request.param)
    yield server
    server.close()


def test_what_comes_byte_by_byte_is_given_up_like_what_does_not_come(
    dripping: Dripping, tmp_path: Path
) -> None:
    mover = Mover([Endpoint(url=dripping.url)], MovePatience(stall_s=1.0, tries_max=1), size_max=1 << 30)
    with pytest.raises(TransferError, match="nothing was moved for 1 s"):
        mover.get(dripping.url + "file", tmp_path / "file", mover.watch())
    assert dripping.drops < DROPS_MAX


def test_a_cancel_is_heard_while_bytes_drip(dripping: Dripping, tmp_path: Path) -> None:
    mover = Mover([Endpoint(url=dripping.url)], MovePatience(tries_max=1), size_max=1 << 30)
    watch = mover.watch()
    threading.Timer(1.0, watch.canceled.set).start()
    with pytest.raises(TransferError, match="canceled"):
        mover.get(dripping.url + "file", tmp_path / "file", watch)
    assert dripping.drops < DROPS_MAX
