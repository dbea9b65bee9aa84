"""wire/server_connection.py against real sockets."""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tidemill.errors import ConfigError, JobError, ProtocolError, SiteError
from tidemill.wire.api import SubmitReply
from tidemill.wire.credentials import Credentials
from tidemill.wire.server_connection import ConflictError, Connection, NotFoundError

REPLY = {"campaign": "c", "first_job": 1, "count": 2, "repeated": False}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    allow_reuse_address = True
    seen: list[tuple[str, str, dict[str, str], bytes]]
    answers: list[tuple[int, bytes]]
    hang_up_after: int = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_GET(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, dict(self.headers), content))
        status, answer = self.server.answers.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.wfile.flush()
        if self.server.hang_up_after and len(self.server.seen) == self.server.hang_up_after:
            self.close_connection = True  # without telling: what a restarted server does to kept connections

    do_POST = do_GET


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Server]:
    with _Server(str(tmp_path / "api.sock"), _Handler) as running:
        running.seen, running.answers = [], []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def test_call_decodes_the_answer_as_the_type_and_sends_query_and_body(
    server: _Server, tmp_path: Path
) -> None:
    server.answers = [(200, _json(REPLY))]
    connection = Connection(f"unix:{tmp_path}/api.sock")
    reply = connection.call(
        "POST", "/v1/jobs", SubmitReply, body={"a": 1}, query={"limit": 3, "app": None, "x": True}
    )
    connection.close()
    assert reply.count == 2
    method, path, _, content = server.seen[0]
    assert (method, path, content) == ("POST", "/v1/jobs?limit=3&x=true", b'{"a":1}')


def test_a_kept_connection_that_the_server_closed_is_opened_again_once(
    server: _Server, tmp_path: Path
) -> None:
    server.answers = [(200, _json(REPLY))] * 2
    server.hang_up_after = 1
    connection = Connection(f"unix:{tmp_path}/api.sock")
    connection.call("GET", "/a", SubmitReply)
    connection.call("GET", "/b", SubmitReply)
    connection.close()
    assert [path for _, path, _, _ in server.seen] == ["/a", "/b"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, JobError),
        (401, ConfigError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, JobError),
        (500, SiteError),
        (503, SiteError),
    ],
)
def test_status_decides_the_kind_of_error_and_keeps_the_servers_words(
    server: _Server, tmp_path: Path, status: int, kind: type[ConfigError]
) -> None:
    server.answers = [(status, _json({"error": "no job 7", "hint": "list them"}))]
    connection = Connection(f"unix:{tmp_path}/api.sock")
    with pytest.raises(kind) as caught:
        connection.call("GET", "/v1/jobs/7", SubmitReply)
    connection.close()
    assert caught.value.message == "no job 7"
    assert caught.value.hint == "list them"


def test_an_answer_that_is_no_message_is_quoted(server: _Server, tmp_path: Path) -> None:
    server.answers = [(200, b"<html>proxy</html>")]
    connection = Connection(f"unix:{tmp_path}/api.sock")
    with pytest.raises(ProtocolError, match="<html>proxy</html>"):
        connection.call("GET", "/", SubmitReply)
    connection.close()


@pytest.mark.parametrize("size", [b"-1", b"-5", b"-ffffffff", b"zz", b"fffffffffffffff", b"1"])
def test_chunks_of_any_size_are_no_way_past_the_bound(tmp_path: Path, size: bytes) -> None:
    """http.client takes a chunk of -1 bytes for all that comes, and raises ValueError for one of -5."""
    plug = socket.socket(socket.AF_UNIX)
    plug.bind(str(tmp_path / "api.sock"))
    plug.listen()
    sent: list[int] = []

    def answer() -> None:
        peer, _ = plug.accept()
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n")
        try:
            for _ in range(200):
                sent.append(peer.send(b"x" * 65536))
        except OSError:  # hung up
            pass
        peer.close()

    thread = threading.Thread(target=answer)
    thread.start()
    connection = Connection(f"unix:{tmp_path}/api.sock", reply_bytes_max=100_000)
    with pytest.raises((ProtocolError, SiteError)):
        connection.call("GET", "/", SubmitReply)
    connection.close()
    thread.join()
    plug.close()
    assert sum(sent) < 2_000_000


def test_an_answer_in_chunks_is_read_and_the_connection_kept(tmp_path: Path) -> None:
    plug = socket.socket(socket.AF_UNIX)
    plug.bind(str(tmp_path / "api.sock"))
    plug.listen()
    content = _json(REPLY)

    def answer() -> None:
        peer, _ = plug.accept()
        for _ in range(3):
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for piece in (content[:5], content[5:]):
                peer.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            peer.sendall(b"0\r\n\r\n")
        peer.close()

    thread = threading.Thread(target=answer)
    thread.start()
    connection = Connection(f"unix:{tmp_path}/api.sock")
    for _ in range(3):
        assert connection.call("GET", "/", SubmitReply).count == 2
    connection.close()
    thread.join()
    plug.close()


def test_lines_yields_the_data_of_server_sent_events(server: _Server, tmp_path: Path) -> None:
    server.answers = [(200, b": beat\n\nid: 4\ndata: {1}\n\ndata: {2}\n\n")]
    connection = Connection(f"unix:{tmp_path}/api.sock")
    assert list(connection.lines("/v1/changes", {"after": 3})) == ["{1}", "{2}"]


def test_nobody_there_is_a_transient_site_error_with_a_hint(tmp_path: Path) -> None:
    connection = Connection(f"unix:{tmp_path}/api.sock")
    with pytest.raises(SiteError, match="No such file") as caught:
        connection.call("GET", "/", SubmitReply)
    assert caught.value.transient
    assert "tidemill up" in str(caught.value.hint)


def test_a_socket_path_longer_than_the_kernel_takes_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    short = tmp_path / "s"
    with _Server(str(short), _Handler) as running:
        running.seen, running.answers = [], [(200, _json(REPLY))]
        short.rename(deep / "api.sock")
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        connection = Connection(f"unix:{deep}/api.sock")
        assert connection.call("GET", "/", SubmitReply).count == 2
        connection.close()
        running.shutdown()
        thread.join()


def test_secret_is_sent_as_bearer(server: _Server, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("s3cret\n")
    server.answers = [(200, _json(REPLY))]
    connection = Connection(f"unix:{tmp_path}/api.sock", credentials=Credentials(secret_file=secret))
    connection.call("GET", "/", SubmitReply)
    connection.close()
    assert server.seen[0][2]["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(("mode", "text"), [(0o640, "s"), (0o604, "s"), (0o600, ""), (0o600, "two words")])
def test_a_secret_file_that_others_read_or_that_holds_no_word_is_refused(
    tmp_path: Path, mode: int, text: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(text)
    secret.chmod(mode)
    with pytest.raises(ConfigError, match="secret file"):
        Connection("http://localhost:1", credentials=Credentials(secret_file=secret))


@pytest.mark.parametrize("address", ["", "unix:api.sock", "ftp://a", "http://", "http://h:x", "localhost:80"])
def test_an_address_that_is_none_is_a_config_error(address: str) -> None:
    with pytest.raises(ConfigError, match="not a server address"):
        Connection(address)
