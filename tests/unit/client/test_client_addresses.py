"""wire/server_connection.py with the two addresses of a pair, against real sockets."""

from __future__ import annotations

import http.server
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tidemill.client.home import ClientConfig
from tidemill.config import loads
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError, JobError, SiteError
from tidemill.wire.api import ActionReply, ResetRequest, SubmitReply
from tidemill.wire.server_connection import BusyError, Connection, NotActiveError

REPLY = msgspec.json.encode({"campaign": "c", "first_job": 1, "count": 2, "repeated": False})
STANDBY = msgspec.json.encode({"error": "this server is the standby of a pair", "standby": True})


class _Server(socketserver.ThreadingUnixStreamServer):
    """A server that closes its connections at its end."""

    seen: list[str]
    answer: tuple[int, bytes]

    def __init__(self, path: str) -> None:
        super().__init__(path, _Handler)
        self.seen, self.answer = [], (200, REPLY)
        self._connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def handle_error(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        if not isinstance(sys.exception(), OSError):  # a client has hung up
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        for each in self._connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        super().server_close()  # waits for their threads


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append(self.path)
        status, answer = self.server.answer
        if not status:
            self.close_connection = True  # it has the request, and nobody knows what became of it
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        """`/v1/health`, which clients of several addresses ask first."""
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


@pytest.fixture
def pair(short_path: Path) -> Iterator[list[_Server]]:
    running = []
    for name in "ab":
        server = _Server(str(short_path / name))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(server)
    yield running
    for server in running:
        server.shutdown()
        server.server_close()


def both(pair: list[_Server]) -> str:
    return ",".join(f"unix:{server.server_address!s}" for server in pair)


def submit(connection: Connection) -> SubmitReply:
    return connection.call("POST", "/v1/jobs", SubmitReply, body={"key": "k"})


def test_what_a_standby_refuses_goes_to_the_other_server_and_so_does_what_follows(
    pair: list[_Server],
) -> None:
    pair[0].answer = 503, STANDBY
    connection = Connection(both(pair))
    for _ in range(3):
        assert submit(connection).first_job == 1
    assert [len(server.seen) for server in pair] == [1, 3]
    assert connection.address.endswith("/b")


def test_a_server_that_is_gone_is_left_for_the_other_and_found_again_when_that_one_goes(
    pair: list[_Server], short_path: Path
) -> None:
    connection = Connection(both(pair))
    submit(connection)
    (short_path / "a").rename(short_path / "gone")
    connection.close()
    pair[0].answer = 0, b""
    submit(connection)
    assert connection.address.endswith("/b")
    (short_path / "gone").rename(short_path / "a")
    pair[0].answer, pair[1].answer = (200, REPLY), (503, STANDBY)
    submit(connection)
    assert connection.address.endswith("/a")


def test_two_servers_that_both_fail_are_both_named(pair: list[_Server], short_path: Path) -> None:
    pair[1].answer = 503, STANDBY
    (short_path / "a").unlink()
    with pytest.raises(SiteError) as caught:
        submit(Connection(both(pair)))
    assert "/a" in caught.value.message
    assert "standby" in caught.value.message
    assert caught.value.transient


def test_a_refusal_for_a_reason_of_the_request_is_not_taken_to_the_other_server(pair: list[_Server]) -> None:
    for status, kind in ((400, JobError), (403, ConfigError), (429, BusyError)):
        pair[0].answer = status, msgspec.json.encode({"error": "no"})
        with pytest.raises(kind):
            submit(Connection(both(pair)))
    assert pair[1].seen == []


def test_what_must_not_be_sent_twice_goes_on_only_from_a_server_that_cannot_have_taken_it(
    pair: list[_Server], short_path: Path
) -> None:
    def reset() -> None:
        connection.call_once("POST", "/v1/sites/s/reset-epoch", ActionReply, body=ResetRequest())

    pair[1].answer = 200, msgspec.json.encode(ActionReply(changed=1, unchanged=0))
    connection = Connection(both(pair))
    pair[0].answer = 0, b""
    with pytest.raises(SiteError):
        reset()
    assert pair[1].seen == []
    pair[0].answer = 503, STANDBY
    reset()
    connection = Connection(both(pair))
    (short_path / "a").unlink()
    reset()
    assert len(pair[1].seen) == 2


def test_a_server_that_takes_connections_and_says_nothing_holds_nobody_up(
    pair: list[_Server], short_path: Path
) -> None:
    """Not even what must not be sent twice: it was not sent to the one that is silent."""
    (short_path / "a").unlink()
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(short_path / "a"))
        stopped.listen(8)
        connection = Connection(both(pair), timeout_s=1)
        pair[1].answer = 200, msgspec.json.encode(ActionReply(changed=1, unchanged=0))
        connection.call_once("POST", "/v1/sites/s/reset-epoch", ActionReply, body=ResetRequest())
        assert connection.address.endswith("/b")


def test_a_server_that_is_only_slow_is_asked_in_earnest_when_the_other_is_the_standby(
    pair: list[_Server],
) -> None:
    class Slow(_Handler):
        def do_GET(self) -> None:
            time.sleep(2)

    pair[0].RequestHandlerClass = Slow
    pair[1].answer = 503, STANDBY
    assert submit(Connection(both(pair), timeout_s=1)).first_job == 1


def test_one_address_says_that_its_server_is_the_standby(pair: list[_Server]) -> None:
    pair[0].answer = 503, STANDBY
    with pytest.raises(NotActiveError, match="standby"):
        submit(Connection(f"unix:{pair[0].server_address!s}"))


def test_configuration_files_name_both_servers_as_a_list_or_a_text(tmp_path: Path) -> None:
    listed = 'server = ["https://a:1", "https://b:2"]'
    assert loads(listed, ClientConfig, source=tmp_path / "client.toml").server == "https://a:1,https://b:2"
    site = loads(f'name = "s"\n{listed}', SiteConfig, source=tmp_path / "site.toml")
    assert (site.server, site.is_its_own, site.serves_others) == ("https://a:1,https://b:2", False, True)
    for text, is_own in (("unix:/a,unix:/b", True), ("unix:/a, https://b:2", False)):
        found = loads(f'name = "s"\nserver = "{text}"', SiteConfig, source=tmp_path / "site.toml")
        assert found.serves_others is not is_own
    for wrong in ("[]", "[1]", "7"):
        with pytest.raises(ConfigError, match="server"):
            loads(f"server = {wrong}", ClientConfig, source=tmp_path / "client.toml")
    broker = 'name = "s"\nserver = ["amqps://b:1/v", "https://b:2"]'
    with pytest.raises(ConfigError, match="`amqps:` is the only address"):
        loads(broker, SiteConfig, source=tmp_path / "site.toml")


@pytest.mark.parametrize(
    "address", ["https://cms:word@h:1", "amqps://cms:word@h/v", "amqp+tls://cms:word@h/v", "cms:word@h"]
)
def test_a_password_in_the_address_of_an_option_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="holds a password") as caught:
        Connection(address)
    assert "word@" not in f"{caught.value.message} {caught.value.hint}"
