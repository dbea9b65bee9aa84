"""An HTTP server that answers byte for byte as a test wants, and remembers its requests."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Served = TypeVar("Served", bound=socketserver.BaseServer)


def answer(status: str, body: bytes = b"", *headers: str, is_head: bool = False) -> bytes:
    """An answer with the length of its body, which HEAD does not send."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + (b"" if is_head else body)


class _Asked(socketserver.StreamRequestHandler):
    timeout = 20

    def handle(self) -> None:
        server: Any = self.server
        while line := self.rfile.readline(65536).decode("latin-1").split():
            headers = {}
            while (head := self.rfile.readline(65536).strip()) != b"":
                name, _, value = head.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            if "expect" in headers:
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = self.rfile.read(int(headers.get("content-length", 0)))
            server.asked.append((line[0], line[1], headers, body))
            said = server.decide(line[0], line[1], headers) or server.said.get((line[0], line[1]))
            said = said or server.said.get(("*", line[1]))
            said = said or answer("404 Not Found", is_head=line[0] == "HEAD")
            self.wfile.write(said)
            self.wfile.flush()
            if b"\r\nConnection: close\r\n" in said:
                return


class Origin(socketserver.ThreadingTCPServer):
    """`said`: method (`*`: any) and target -> answer; may be changed at any time, and `decide` comes before it.
    `asked`: method, target, headers and body of each request."""

    daemon_threads = False  # closing waits for them
    allow_reuse_address = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self._tls = tls
        self.said: dict[tuple[str, str], bytes] = {}
        self.decide: Callable[[str, str, dict[str, str]], bytes | None] = lambda method, target, headers: None
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
        self.base = f"{scheme}://{host}:{self.server_address[1]}"

    def targets(self, method: str) -> list[str]:
        """The targets of requests with this method, in order."""
        return [target for each, target, _, _ in self.asked if each == method]

    def serve(self, target: str, content: bytes, *headers: str) -> str:
        """A file for GET and HEAD, its URL."""
        self.said["HEAD", target] = answer("200 OK", content, *headers, is_head=True)
        self.said["GET", target] = answer("200 OK", content, *headers)
        return self.base + target

    def get_request(self) -> tuple[Any, Any]:
        connection, client = super().get_request()
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, client

    def handle_error(self, *_: object) -> None:
        """Ignore clients that have left."""


@contextmanager
def served(server: Served) -> Iterator[Served]:
    """The server, running in a separate thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def origin(tls: ssl.SSLContext | None = None) -> Iterator[Origin]:
    """A running server."""
    with served(Origin(tls)) as server:
        yield server
