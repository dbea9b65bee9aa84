"""Web hooks to real HTTP(S) servers of this machine: signatures, refusals, redirects, forbidden addresses."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.services.mail_world import make_certificate

from tidemill.config import loads
from tidemill.config.notify import Hook, Notify
from tidemill.config.server import ServerConfig
from tidemill.errors import ConfigError
from tidemill.net.addresses import is_public
from tidemill.server.errors import LaterError, RefusedError
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify.hook import Poster
from tidemill.wire.notification import Digest, TrialNews

SECRET = "whsec_" + base64.b64encode(b"a key of 32 bytes for these tests").decode()
DIGEST = Digest(id="5f.1", server="here", made_us=1, items=[TrialNews(first_us=1, last_us=1)])
Serve = Callable[..., "Receiver"]


class Receiver:
    """An HTTP server that answers as told and remembers what it was sent."""

    def __init__(self, answers: list[tuple[int, str]], tls: ssl.SSLContext | None = None) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        receiver, left = self, list(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append((self.path, headers, body))
                status, location = left.pop(0) if left else (204, "")
                self.send_response(status)
                if location:
                    self.send_header("location", location)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[Receiver] = []

    def begin(*answers: tuple[int, str], tls: ssl.SSLContext | None = None) -> Receiver:
        made.append(Receiver(list(answers), tls))
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET)
    return path


def poster(url: str, secret_file: Path, **more: Any) -> Poster:
    hook = Hook(name="h", url=url, secret_file=secret_file, **more)
    return Poster(Notify(hooks=[hook]), now_s=lambda: 1_795_000_000)


def test_a_digest_is_posted_as_json_with_a_signature_that_the_receiver_can_check(
    serve: Serve, secret_file: Path
) -> None:
    receiver = serve()

    poster(f"http://127.0.0.1:{receiver.port}/in?x=1", secret_file).send(Parcel("h", DIGEST))

    ((path, headers, body),) = receiver.got
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert path == "/in?x=1"
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("5f.1", "1795000000")
    assert json.loads(body)["items"] == [{"what": "test", "first_us": 1, "last_us": 1}]
    assert msgspec.json.decode(body, type=Digest) == DIGEST


def test_https_is_checked_against_the_given_certificates(
    serve: Serve, secret_file: Path, tmp_path: Path
) -> None:
    cert, key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    receiver = serve(tls=tls)
    url = f"https://localhost:{receiver.port}/"

    with pytest.raises(LaterError, match=r"(?i)certificate"):
        poster(url, secret_file).send(Parcel("h", DIGEST))
    poster(url, secret_file, ca=cert).send(Parcel("h", DIGEST))

    assert len(receiver.got) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_any_other_answer_is_tried_again_later(serve: Serve, secret_file: Path, status: int) -> None:
    receiver = serve((status, ""))

    with pytest.raises(LaterError, match=str(status)):
        poster(f"http://127.0.0.1:{receiver.port}/", secret_file).send(Parcel("h", DIGEST))


def test_a_hook_that_is_gone_is_not_asked_again(serve: Serve, secret_file: Path) -> None:
    receiver = serve((410, ""))

    with pytest.raises(RefusedError):
        poster(f"http://127.0.0.1:{receiver.port}/", secret_file).send(Parcel("h", DIGEST))


def test_a_redirect_within_the_host_is_followed(serve: Serve, secret_file: Path) -> None:
    receiver = serve((308, "/new"))

    poster(f"http://127.0.0.1:{receiver.port}/old", secret_file).send(Parcel("h", DIGEST))

    assert [path for path, _, _ in receiver.got] == ["/old", "/new"]


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1:{other}/",
        "//127.0.0.1:{other}/",
        "http://localhost:{other}/",
        "file:///etc/passwd",
        "",
        "http://[127.0.0.1:{other}/",
        "http://127.0.0.1:{other}x/",
    ],
)
def test_a_redirect_to_anywhere_else_is_not_followed(serve: Serve, secret_file: Path, to: str) -> None:
    other = serve()
    receiver = serve((307, to.format(other=other.port)))

    with pytest.raises(LaterError):
        poster(f"http://127.0.0.1:{receiver.port}/", secret_file).send(Parcel("h", DIGEST))

    assert other.got == []


def test_a_host_that_answers_a_byte_at_a_time_holds_nobody_up(secret_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"H")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        hook = Hook(
            name="h",
            url=f"http://127.0.0.1:{server.getsockname()[1]}/",
            secret_file=secret_file,
        )
        with pytest.raises(LaterError):
            Poster(Notify(hooks=[hook]), post_s=0.5).send(Parcel("h", DIGEST))


@pytest.mark.parametrize("size", [b"-1", b"-5"])
def test_an_answer_in_a_chunk_of_negative_size_neither_fills_nor_stops_the_server(
    secret_file: Path, size: bytes
) -> None:
    """http.client takes one of -1 bytes for all that comes, and raises ValueError for one of -5."""
    sent = [0]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n")
                while sent[0] < 100_000_000:
                    sent[0] += connection.send(b"x" * 65536)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        hook = Hook(name="h", url=url, secret_file=secret_file)
        Poster(Notify(hooks=[hook]), post_s=5).send(Parcel("h", DIGEST))
        thread.join(10)
    assert sent[0] < 10_000_000


def test_the_path_of_a_url_is_in_no_error(serve: Serve, secret_file: Path) -> None:
    receiver = serve((307, "http://elsewhere.example.org/other-token"))

    with pytest.raises(LaterError) as caught:
        poster(f"http://127.0.0.1:{receiver.port}/services/the-token", secret_file).send(Parcel("h", DIGEST))

    assert "127.0.0.1/..." in str(caught.value)
    assert "token" not in str(caught.value)


def test_redirects_in_a_circle_end(serve: Serve, secret_file: Path) -> None:
    receiver = serve(*[(307, "/again")] * 20)

    with pytest.raises(LaterError, match="307"):
        poster(f"http://127.0.0.1:{receiver.port}/", secret_file).send(Parcel("h", DIGEST))

    assert len(receiver.got) == 4


NAME = "127.1"  #: no address as a URL has it, but one to the resolver: as a name that somebody's DNS leads to 127.0.0.1


@pytest.mark.parametrize("host", [NAME, "2130706433"])
def test_a_name_with_a_private_address_is_refused(serve: Serve, secret_file: Path, host: str) -> None:
    receiver = serve()

    with pytest.raises(LaterError, match=r"has the address 127\.0\.0\.1") as caught:
        poster(f"http://{host}:{receiver.port}/", secret_file).send(Parcel("h", DIGEST))

    assert "set the hook's `ca`" in (caught.value.hint or "")
    assert receiver.got == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_address_that_the_operator_wrote_is_posted_to(serve: Serve, secret_file: Path, host: str) -> None:
    receiver = serve()

    poster(f"http://{host}:{receiver.port}/", secret_file).send(Parcel("h", DIGEST))

    assert len(receiver.got) == 1


def test_a_name_with_a_private_address_must_show_a_certificate_of_the_hooks_ca(
    serve: Serve, secret_file: Path, tmp_path: Path
) -> None:
    """Whoever answers for the name can lead us to any machine inside; none of them is sent anything."""
    cert, key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    inside, plain = serve(tls=tls), serve()

    for url, error in (
        (f"https://{NAME}:{inside.port}/", "certificate"),  # reached, and it is not of that name
        (f"http://{NAME}:{plain.port}/", "not of the public internet"),  # no certificate at all
    ):
        with pytest.raises(LaterError, match=f"(?i){error}"):
            poster(url, secret_file, ca=cert).send(Parcel("h", DIGEST))
    with pytest.raises(LaterError, match="not of the public internet"):
        poster(f"https://{NAME}:{inside.port}/", secret_file).send(Parcel("h", DIGEST))

    assert inside.got == plain.got == []


def test_a_name_inside_is_posted_to_if_it_shows_a_certificate_of_the_hooks_ca(
    serve: Serve, secret_file: Path, tmp_path: Path
) -> None:
    cert, key = make_certificate(tmp_path, NAME)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    inside = serve(tls=tls)

    poster(f"https://{NAME}:{inside.port}/", secret_file, ca=cert).send(Parcel("h", DIGEST))

    assert len(inside.got) == 1


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.1.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff0e::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "::127.0.0.1", "::ffff:0:7f00:1", "fec0::1", "5f00::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_known_in_every_disguise(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "129.187.254.1", "2001:4ca0::1", "::ffff:8.8.8.8"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("where", ["https://a..example.org/", f"https://{'a' * 64}.example.org/"])
def test_a_host_that_is_no_name_holds_nobody_up(secret_file: Path, where: str) -> None:
    allowed = Poster(Notify(allowed=["https://*.example.org"], secret_file=secret_file))

    with pytest.raises(LaterError, match="that is not valid"):
        allowed.send(Parcel(where, DIGEST))


@pytest.mark.parametrize("to", ["/ü", "/token of hers"])
def test_a_redirect_to_no_legal_path_holds_nobody_up(serve: Serve, secret_file: Path, to: str) -> None:
    receiver = serve((307, to))

    with pytest.raises(LaterError) as caught:
        poster(f"http://127.0.0.1:{receiver.port}/", secret_file).send(Parcel("h", DIGEST))

    assert "token" not in caught.value.message


def test_a_url_of_a_submitter_must_still_be_allowed_when_it_is_sent(secret_file: Path) -> None:
    allowed = Poster(Notify(allowed=["https://*.example.org"], secret_file=secret_file))

    with pytest.raises(RefusedError, match=r"notify\.allowed"):
        allowed.send(Parcel("https://evil.example.com/", DIGEST))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[notify.hooks]]\nname="a"\nurl="https://u:p@example.org/"\nsecret_file="s"', "is not a URL"),
        ('[[notify.hooks]]\nname="a"\nurl="ftp://example.org/"\nsecret_file="s"', "is not a URL"),
        ('[notify]\nallowed=["https://*"]', "needs `secret_file`"),
        ('[notify]\nallowed=["https://a.org/x"]\nsecret_file="s"', "a host alone"),
        ('[notify]\nallowed=["*"]', "expected `mail:"),
        ('[notify]\nallowed=["*@example.org"]', "expected `mail:"),
        ('[notify]\nallowed=["http://a.org"]', "expected `mail:"),
        ('[notify]\nallowed=["hook:x"]', "`hooks` has no `x`"),
        ('[[notify.rules]]\nto="hook:x"\nwhen=["job"]', "has no `x`"),
        ('[[notify.rules]]\nto="mail:a@b\\nBcc: c@d"\nwhen=["job"]', "is not a valid addressee"),
        ('[[notify.rules]]\nto="mail:a@b.org"\nwhen=["never"]', "never"),
        ('[mail]\nserver="m:25"', "sender"),
        ('[mail]\nserver="smtp+plain://m"\nsender="a@b.org"\nsecret_file="x"', "in the clear"),
        ('[mail]\nserver="mail://m"\nsender="a@b.org"', "is `mail://m`, expected `HOST:PORT`"),
        ('[mail]\nserver="m:x"\nsender="a@b.org"', "is `m:x`, expected"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text, ServerConfig, source=tmp_path / "server.toml")

    assert why in f"{caught.value.message} {caught.value.hint}"
