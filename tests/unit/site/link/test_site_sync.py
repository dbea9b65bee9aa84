"""site/link/sync.py with a real HTTP server at the other end."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest

from tidemill.config.site import SiteConfig
from tidemill.errors import ProtocolError, SiteError
from tidemill.model.failure import Evidence, FailureClass
from tidemill.site.link.sync import Sync
from tidemill.site.link.transport import HttpTransport
from tidemill.wire.api import REQUEST_BYTES_MAX, Capacity, FailureReport, SyncReply, SyncRequest
from tidemill.wire.server_connection import Connection

TAIL_BYTES = 4096  #: of a failed program's errors, as pilots cut them
REPORTS = 10_000


class Server(http.server.ThreadingHTTPServer):
    """Takes reports in requests of at most `bytes_max`."""

    daemon_threads = True
    bytes_max = REQUEST_BYTES_MAX
    acked = 0
    refused = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if len(body) > self.server.bytes_max:
            self.server.refused += 1
            self._answer(413, b"<html>too large</html>")
            return
        request = msgspec.json.decode(body, type=SyncRequest)
        numbers = [each.n for each in request.reports]
        assert numbers == list(range(self.server.acked + 1, self.server.acked + 1 + len(numbers)))
        self.server.acked += len(numbers)
        reply = SyncReply(acked=self.server.acked, orders=[], more=False, now_us=0)
        self._answer(200, msgspec.json.encode(reply))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def request(acked: int, reports: int) -> SyncRequest:
    evidence = Evidence(failure=FailureClass.PAYLOAD, message="exit 1", stderr_tail="x" * TAIL_BYTES)
    capacity = Capacity(
        want_core_s=0.0, want_ranges_max=0, slot_cores_max=1, slot_memory_mb_max=4000, devices={}, event_s={}, nodes=1,
        busy_cores=0, adhoc=False,
    )  # fmt: skip
    return SyncRequest(
        site="s", epoch=1, host="h", version="1", have=0, offers=None, capacity=capacity,
        reports=[
            FailureReport(
                n=n, lease=n, job=n, first=0, count=1, event=0, final=True, evidence=evidence
            )
            for n in range(acked + 1, reports + 1)
        ],
    )  # fmt: skip


def test_failures_whose_texts_are_too_long_for_one_request_go_with_several(
    server: Server,
) -> None:
    sync = Sync(SiteConfig(name="s", server=f"http://127.0.0.1:{server.server_port}"))
    rounds = 0
    while server.acked < REPORTS:
        sync.start(request(server.acked, REPORTS))
        sync.wait(60)
        assert sync.poll_reply() is not None, sync.last_error
        rounds += 1
    sync.close()
    assert (rounds, server.refused) == (2, 0)


def test_a_proxy_that_takes_only_short_requests_gets_short_ones(server: Server) -> None:
    server.bytes_max = 1 << 20
    sync = Sync(SiteConfig(name="s", server=f"http://127.0.0.1:{server.server_port}"))
    while server.acked < 1000:
        sync.start(request(server.acked, 1000))
        sync.wait(60)
        assert sync.poll_reply() is not None, sync.last_error
    sync.close()
    assert server.refused > 0


@contextmanager
def dripping(answer: bytes, pause_s: float) -> Iterator[tuple[int, list[int]]]:
    """A server that reads a request and answers byte by byte; its port, and how many bytes it has sent."""
    plug = socket.create_server(("127.0.0.1", 0))
    sent, over = [0], threading.Event()

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = plug.accept()
                with peer, suppress(OSError):
                    peer.recv(1 << 20)
                    for at in range(len(answer)):
                        peer.sendall(answer[at : at + 1])
                        sent[0] += 1
                        if over.wait(pause_s):
                            break
                    over.wait(60)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield plug.getsockname()[1], sent
    over.set()
    plug.shutdown(socket.SHUT_RDWR)  # a close alone leaves the accept in another thread waiting
    thread.join(10)
    plug.close()


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "], ids=["body", "head"]
)
def test_an_answer_that_comes_byte_by_byte_is_not_waited_for_for_ever(head: bytes) -> None:
    with dripping(head + b"x" * 10_000, 0.02) as (port, sent):
        transport = HttpTransport(Connection(f"http://127.0.0.1:{port}", timeout_s=5, longest_s=1.5))
        with pytest.raises((SiteError, ProtocolError)):
            transport.sync(request(0, 1))
        assert sent[0] < 1000, "of 10,000: the rest was not waited for"
        transport.close()


@pytest.mark.timing(site={"SYNC_TIMEOUT_S": 60})
def test_an_agent_that_ends_does_not_wait_for_a_silent_server() -> None:
    with dripping(b"", 0) as (port, _):
        sync = Sync(SiteConfig(name="s", server=f"http://127.0.0.1:{port}"))
        sync.start(request(0, 1))
        time.sleep(0.5)
        sync.close()
        sync.wait(30)
        assert sync.poll_reply() is None
        assert sync.failures == 1, "it gave up, long before 60 s were over"


def test_what_does_not_pass_alone_is_told(server: Server) -> None:
    server.bytes_max = 100
    sync = Sync(SiteConfig(name="s", server=f"http://127.0.0.1:{server.server_port}"))
    sync.start(request(0, 2))
    sync.wait(60)
    assert sync.poll_reply() is None
    assert sync.failures == 1
    assert "too large" in (sync.last_error or "")
    sync.close()
