"""An issuer's web site, for tests of tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

KEY = {"kty": "EC", "crv": "P-256", "x": "eA", "y": "eQ", "use": "sig"}


class Iam:
    """An issuer's web site."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.answers.set()
        iam = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                iam.asked.append(self.path)
                iam.answers.wait(60)
                status, text = iam.pages.get(self.path, (404, b"{}"))
                if status == 0:  # something else than HTTP
                    self.wfile.write(text)
                    return
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", text.decode())
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def publish(self, *kids: str) -> None:
        told = {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
        self.pages["/.well-known/openid-configuration"] = (200, json.dumps(told).encode())
        keys = [{**KEY, "kid": kid} for kid in kids]
        self.pages["/jwks"] = (200, json.dumps({"keys": keys}).encode())


@pytest.fixture
def iam() -> Iterator[Iam]:
    made = Iam()
    yield made
    made.answers.set()
    made.server.shutdown()
    made.server.server_close()
