"""The agent's metrics for a Prometheus that scrapes: HTTP on an address of this machine, for who knows the secret.

Serves the text that was last written; asks nothing and changes nothing, so a slow or hostile reader delays no tick.
"""

from __future__ import annotations

import hmac
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from tidemill import log
from tidemill.config.outlets import Metrics
from tidemill.errors import ConfigError
from tidemill.wire.credentials import read_secret

PATH = "/metrics"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT_S = 10
READERS_MAX = 8
_LOG = log.Log("metrics")


class Listener:
    """Serves `text` until it is closed."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        self.text = b""
        self._server = _Server((host, port), _handler(self, f"Bearer {secret}".encode()))
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._places = threading.BoundedSemaphore(READERS_MAX)

    def server_bind(self) -> None:
        """Listen, without asking a name service for our name, as HTTPServer does: one that hangs would hold up the
        agent's start."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread was to be had
                self._places.release()
                raise
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOG.debug("metrics.reader_left", peer=str(client_address))


def _handler(listener: Listener, wanted: bytes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_S
        server_version = "tidemill"
        sys_version = ""

        def do_GET(self) -> None:
            given = self.headers.get("authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, wanted):
                _LOG.warning("access.refused", peer=self.client_address[0], why="secret")
                self._answer(401, b"the secret is missing or wrong\n")
            elif self.path.partition("?")[0] != PATH:
                self._answer(404, b"metrics are at /metrics\n")
            else:
                self._answer(200, listener.text)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", TYPE)
            self.send_header("content-length", str(len(body)))
            if status == 401:
                self.send_header("www-authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            pass

    return Handler


def listener_of(config: Metrics) -> Listener | None:
    """The listener that the configuration wants. Raises ConfigError when it cannot listen there."""
    if not config.listen or config.secret_file is None:
        return None
    host, colon, port = config.listen.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise ConfigError(f"`metrics.listen` is `{config.listen}`, expected `host:port`")
    secret = read_secret(Path(config.secret_file))
    try:
        return Listener(host.strip("[]"), int(port), secret)
    except OSError as error:
        raise ConfigError(
            f"`metrics.listen`: cannot listen on `{config.listen}`: {error.strerror}"
        ) from error
