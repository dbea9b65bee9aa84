"""A client whose server does not answer says so once, and that it answers again."""

from __future__ import annotations

import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tidemill.client.client import Client
from tidemill.errors import SiteError
from tidemill.model.job import JobSpec


class _Empty(BaseHTTPRequestHandler):
    """A server without applications."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_silent_server_is_reported_once_and_so_is_its_return(tmp_path: Path) -> None:
    socket = tmp_path / "api.sock"
    said: list[str] = []
    servers: list[socketserver.ThreadingUnixStreamServer] = []

    def notice(line: str) -> None:
        said.append(line)
        if not servers:
            servers.append(socketserver.ThreadingUnixStreamServer(str(socket), _Empty))
            threading.Thread(target=servers[0].serve_forever, daemon=True).start()

    client = Client(f"unix:{socket}", retry_s=60)
    client.notice = notice
    try:
        assert client.applications() == []
        assert client.applications() == []
    finally:
        client.connection.close()
        for each in servers:
            each.shutdown()
            each.server_close()
    assert [line.partition(";")[0] for line in said] == [
        "the server does not answer",
        "the server answers again",
    ]


def test_a_silent_server_is_an_error_where_nothing_is_repeated(tmp_path: Path) -> None:
    client = Client(f"unix:{tmp_path / 'api.sock'}", retry_s=0)
    with pytest.raises(SiteError):
        client.applications()


class _Full(BaseHTTPRequestHandler):
    """A server without room for more jobs."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"error": "the jobs of all submitters fill the quota", "hint": "cancel what is not needed"}'
        self.send_response(507)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_full_server_is_asked_once_and_its_words_are_shown(tmp_path: Path) -> None:
    """It is not silent, and full until its operator or the owners of jobs act."""
    said: list[str] = []
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "api.sock"), _Full) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"unix:{tmp_path / 'api.sock'}", retry_s=5)
        client.notice = said.append
        try:
            with pytest.raises(SiteError, match="fill the quota") as caught:
                client.submit(JobSpec(app="sim"), campaign="c")
        finally:
            client.connection.close()
            server.shutdown()
    assert (caught.value.hint, caught.value.transient) == ("cancel what is not needed", False)
    assert (caught.value.exit_code, _Full.asked, said) == (3, 1, [])
