"""Outputs to an HTTP server that writes in place and does not know MOVE: under their names at once, and never half."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tidemill.config.transfer import Endpoint, Transfer
from tidemill.transfer.contract import TransferError
from tidemill.transfer.http import INVITED_BYTES_MIN
from tidemill.transfer.mover import Mover

CONTENT = os.urandom(600_000)


class InPlace(BaseHTTPRequestHandler):
    """GET, HEAD, PUT and DELETE of files in a directory; 501 to all else, as http.server answers."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        path = self._path()
        content = path.read_bytes() if path.is_file() else None
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET" and content:
            self.wfile.write(content)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        left, done = int(self.headers["Content-Length"]), 0
        with self._path().open("wb", buffering=0) as file:
            while left:
                piece = self.rfile.read(min(left, 10_000))
                file.write(piece)
                left, done = left - len(piece), done + len(piece)
                if self.server.breaks and done >= 50_000 and not self.path.endswith(".part"):
                    self.server.breaks -= 1
                    self._break()
                    return
        self._say(201)

    def do_DELETE(self) -> None:
        is_there = self._path().is_file()
        self._path().unlink(missing_ok=True)
        self._say(204 if is_there else 404)

    def do_OPTIONS(self) -> None:
        self._say(200 if self.server.announced else 501)

    def handle_expect_100(self) -> bool:
        if self.server.invites:
            return super().handle_expect_100()
        self.close_connection = True
        self._say(507)
        return False

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.server.unknown.append(self.command)
        self._say(code)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def _break(self) -> None:
        """End the connection in the middle of the body, or answer that something broke."""
        if self.server.status:
            self.close_connection = True
            self._say(self.server.status)
        else:
            self.connection.shutdown(2)

    def _say(self, status: int) -> None:
        self.send_response(status)
        for name, value in self.server.announced.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def _path(self) -> Path:
        folder: Path = self.server.folder
        return folder / self.path.rpartition("/")[2]


class InPlaceServer(ThreadingHTTPServer):
    """`breaks`: so many uploads under a final name break, with `status` if that is one; `invites`: it wants large
    bodies; `unknown`: methods that it did not know; `announced`: headers of its answers."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), InPlace)
        self.folder = folder
        self.breaks, self.status, self.invites = 0, 0, True
        self.unknown: list[str] = []
        self.announced: dict[str, str] = {}

    def handle_error(self, *_: object) -> None:
        """A connection that was broken."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InPlaceServer]:
    (tmp_path / "there").mkdir()
    (tmp_path / "out").write_bytes(CONTENT)
    made = InPlaceServer(tmp_path / "there")
    thread = threading.Thread(target=made.serve_forever, daemon=True, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def mover_to(server: InPlaceServer, **settings: Any) -> tuple[Mover, str]:
    url = f"http://127.0.0.1:{server.server_port}/"
    made = Transfer(**{"pause_s": 0.01, "stall_s": 20, **settings})
    return Mover([Endpoint(url=url, access="both")], made, size_max=1 << 30), url


def put(mover: Mover, source: Path, url: str) -> None:
    mover.put(source, url, mover.watch())


def test_a_server_that_does_not_know_move_is_asked_once(server: InPlaceServer, tmp_path: Path) -> None:
    mover, url = mover_to(server)
    for name in ("a", "b"):
        put(mover, tmp_path / "out", url + name)
        assert (server.folder / name).read_bytes() == CONTENT
    assert server.unknown == ["MOVE"]
    assert sorted(path.name for path in server.folder.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("status", [0, 500])
def test_an_upload_that_breaks_leaves_no_half_file_and_is_tried_again(
    server: InPlaceServer, tmp_path: Path, status: int
) -> None:
    server.status = status
    mover, url = mover_to(server, tries_max=1)
    server.breaks = 1
    with pytest.raises(TransferError):
        put(mover, tmp_path / "out", url + "a")
    assert list(server.folder.iterdir()) == []

    patient, _ = mover_to(server, tries_max=3)
    server.breaks = 2
    put(patient, tmp_path / "out", url + "a")
    assert (server.folder / "a").read_bytes() == CONTENT


def test_an_upload_that_is_refused_before_its_first_byte_leaves_the_earlier_version(
    server: InPlaceServer, tmp_path: Path
) -> None:
    mover, url = mover_to(server, tries_max=1)
    put(mover, tmp_path / "out", url + "a")
    server.invites = False
    (tmp_path / "newer").write_bytes(bytes(2 * INVITED_BYTES_MIN))
    earlier = hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(TransferError, match="507"):
        mover.put(tmp_path / "newer", url + "a", mover.watch(), before=earlier)
    assert (server.folder / "a").read_bytes() == CONTENT


def test_a_webdav_server_that_forbids_move_gets_no_output(server: InPlaceServer, tmp_path: Path) -> None:
    server.announced = {"DAV": "1"}
    mover, url = mover_to(server, tries_max=1)
    with pytest.raises(TransferError) as caught:
        put(mover, tmp_path / "out", url + "a")
    assert "no reader finds half a file" in (caught.value.hint or "")
    assert not caught.value.transient
    assert list(server.folder.iterdir()) == []
