"""Requests that a server makes for others, by web hooks, lead nowhere inside.

Redirects, addresses in every disguise, decoded answers and floods: `tests/local/server/test_notify_hook.py`. Keys of
token issuers: `extensions/tokens/tests/attack/test_attack_issuers.py`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tidemill.config.notify import Hook, Notify
from tidemill.net import addresses
from tidemill.server.errors import LaterError, RefusedError
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify.hook import Poster
from tidemill.wire.notification import Digest, TrialNews

DIGEST = Digest(id="5f.1", server="here", made_us=1, items=[TrialNews(first_us=1, last_us=1)])
PUBLIC = "203.0.113.7"


class Inside:
    """A service of this machine that nobody outside may reach; it remembers who asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.page = b"{}"
        inside = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                inside.asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(inside.page)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def inside() -> Iterator[Inside]:
    made = Inside()
    yield made
    made.server.shutdown()
    made.server.server_close()


@contextmanager
def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> Iterator[list[str]]:
    """A hostile name server: each look-up gets the next answer, the last one again and again. Yields the look-ups."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def answer(host: str, port: Any, *more: Any, **words: Any) -> Any:
        if not host.endswith(".example.org"):
            return real(host, port, *more, **words)
        asked.append(host)
        given = answers[min(len(asked), len(answers)) - 1]
        return [each for address in given for each in real(address, port, *more, **words)]

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", answer)
        yield asked


def test_a_name_that_is_public_at_first_and_loopback_later_leads_nowhere(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []

    def connect(address: Any, timeout_s: float) -> socket.socket:
        tried.append(address[0])
        raise TimeoutError("nobody is there")

    with resolving(monkeypatch, [PUBLIC_REAL], ["127.0.0.1"]) as asked:
        monkeypatch.setattr(socket, "create_connection", connect)
        with pytest.raises(OSError, match="nobody is there"):
            addresses.socket_to("rebind.example.org", inside.port, 5, private=False)
    assert (asked, tried) == (["rebind.example.org"], [PUBLIC_REAL])


PUBLIC_REAL = "8.8.8.8"


@pytest.mark.parametrize(
    "answer",
    [["127.0.0.1"], [PUBLIC_REAL, "127.0.0.1"], ["0.0.0.0"], ["169.254.169.254"], ["::ffff:127.0.0.1"], [PUBLIC]],
)  # fmt: skip
def test_a_name_with_any_private_address_is_refused_before_anybody_is_connected_to(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, answer: list[str]
) -> None:
    with (
        resolving(monkeypatch, answer),
        pytest.raises(addresses.PrivateAddressError, match="not of the public"),
    ):
        addresses.socket_to("inside.example.org", inside.port, 5, private=False)
    assert not inside.asked


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f.1", "017700000001", "127.1", "0", "0.0.0.0", "localhost", "[::1]", "[::]",
     "[::ffff:7f00:1]", "169.254.169.254", "[fe80::1%25lo]"],
)  # fmt: skip
def test_a_hook_of_a_submitter_reaches_no_service_of_this_machine_by_any_spelling(
    inside: Inside, tmp_path: Path, host: str
) -> None:
    (secret := tmp_path / "secret").touch(0o600)
    secret.write_text("0123456789abcdef")
    anywhere = Poster(Notify(allowed=["https://*"], secret_file=secret), post_s=5)
    for url in (f"https://{host}:{inside.port}/", f"http://{host}:{inside.port}/"):
        with pytest.raises((LaterError, RefusedError)):
            anywhere.send(Parcel(url, DIGEST))
    assert not inside.asked


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "017700000001", "127.1", "0", "rebind.example.org"])
def test_a_hook_of_the_operator_reaches_a_private_address_only_as_itself(
    inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    (secret := tmp_path / "secret").touch(0o600)
    secret.write_text("0123456789abcdef")
    named = Hook(name="h", url=f"http://{host}:{inside.port}/", secret_file=secret)
    with resolving(monkeypatch, ["127.0.0.1"]), pytest.raises(LaterError, match="not of the public"):
        Poster(Notify(hooks=[named]), post_s=5).send(Parcel("h", DIGEST))
    assert not inside.asked
