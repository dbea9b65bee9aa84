"""A client whose server does not answer says so once, and that it answers again."""

from __future__ import annotations

import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tidemill.client.client import Client
from tidemill.errors import SiteError


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
