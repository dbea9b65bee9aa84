"""Keys of token issuers: asked from a real HTTP server, kept, asked again seldom; settings that could never work."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import pytest
from extensions.tokens.tests.iam import Iam, iam
from tests.worlds.services.server_process import until

from tidemill import clock
from tidemill.cli.main import main
from tidemill.config import loads
from tidemill.config.server import ServerConfig
from tidemill.config.tables import tables_of
from tidemill.errors import ConfigError
from tidemill.server.run import read_authenticator
from tidemill_tokens import issuers
from tidemill_tokens.issuers import IssuerKeys, parse
from tidemill_tokens.settings import Issuer

__all__ = ["iam"]


class Later:
    """A monotonic clock that is ahead by some seconds."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return clock.monotonic_s() + self.ahead_s


@pytest.fixture
def later() -> Later:
    return Later()


def issuer(iam: Iam) -> Issuer:
    return Issuer(name="iam", issuer=iam.url, audience=["a"])


def test_keys_are_discovered_kept_and_asked_again_when_a_new_one_is_named(iam: Iam, later: Later) -> None:
    iam.publish("one")
    keys = IssuerKeys(issuer(iam), kept_s=3600, monotonic_s=later)
    assert keys.find("one", "ES256") is not None
    assert keys.find(None, "ES256") is not None  # the only one
    assert keys.find("one", "RS256") is None
    assert keys.find("one", "HS256") is None
    asked = len(iam.asked)
    iam.publish("one", "two")
    for _ in range(50):
        assert keys.find("two", "ES256") is None  # within the minute no token causes a query
    assert len(iam.asked) == asked
    later.ahead_s += issuers.ASK_AGAIN_S + 1
    assert keys.find("two", "ES256") is not None
    assert keys.find(None, "ES256") is None


def test_known_keys_outlive_their_issuer_for_a_day(iam: Iam, later: Later) -> None:
    iam.publish("one")
    keys = IssuerKeys(issuer(iam), kept_s=60, monotonic_s=later)
    assert keys.find("one", "ES256") is not None
    iam.pages.clear()
    later.ahead_s += 7200
    assert keys.find("one", "ES256") is not None
    later.ahead_s += issuers.KEPT_AWAY_S
    assert keys.find("one", "ES256") is None


def test_redirects_other_issuers_and_floods_are_not_believed(iam: Iam, later: Later) -> None:
    iam.publish("one")
    keys = IssuerKeys(issuer(iam), kept_s=3600, monotonic_s=later)
    iam.pages["/evil"] = iam.pages["/jwks"]
    for status, page in ((302, f"{iam.url}/evil".encode()), (200, b"x" * (issuers.ANSWER_BYTES_MAX + 1))):
        iam.pages["/jwks"] = (status, page)
        assert keys.find("one", "ES256") is None
        later.ahead_s += issuers.ASK_AGAIN_S + 1
    told = {"issuer": "https://evil.example", "jwks_uri": f"{iam.url}/evil"}
    iam.pages["/.well-known/openid-configuration"] = (200, json.dumps(told).encode())
    assert keys.find("one", "ES256") is None


@pytest.mark.parametrize(
    ("path", "status", "page"),
    [
        ("/jwks", 0, b"nonsense\r\n\r\n"),
        ("/jwks", 0, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
        ("/jwks", 200, b"[" * 200_000),
        ("/.well-known/openid-configuration", 0, b"HTTP/9.9"),
        ("/.well-known/openid-configuration", 200, b'{"a":' * 200_000),
        ("/.well-known/openid-configuration", 200, b"http"),
    ],
)
def test_an_issuer_that_answers_nonsense_is_one_that_is_away(
    iam: Iam, later: Later, path: str, status: int, page: bytes
) -> None:
    iam.publish("one")
    good = iam.pages[path]
    if page == b"http":
        page = json.dumps({"issuer": iam.url, "jwks_uri": "http://iam.example.org/jwks"}).encode()
    iam.pages[path] = (status, page)
    keys = IssuerKeys(issuer(iam), kept_s=3600, monotonic_s=later)
    assert keys.find("one", "ES256") is None
    iam.pages[path] = good
    later.ahead_s += issuers.ASK_AGAIN_S + 1
    assert keys.find("one", "ES256") is not None


class Trickle:
    """A server that answers each connection with `first` at once, then with `drop` again and again, and never ends."""

    def __init__(self, first: bytes, drop: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = self.drops = 0
        self._first, self._drop = first, drop
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plug, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(plug,), daemon=True).start()

    def _serve(self, plug: socket.socket) -> None:
        with plug, contextlib.suppress(OSError):
            plug.recv(65536)
            plug.sendall(self._first)
            while True:
                self.drops += 1
                plug.sendall(self._drop)
                time.sleep(0.02)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_an_issuer_that_trickles_holds_up_for_a_bounded_time(
    iam: Iam, later: Later, first: bytes, drop: bytes
) -> None:
    """Each byte comes long before a socket's own timeout, and the last one never."""
    iam.publish("one")
    slow = Trickle(first, drop)
    try:
        keys = IssuerKeys(issuer(iam), kept_s=60, ask_s=0.7, monotonic_s=later)
        assert keys.find("one", "ES256") is not None
        told = {"issuer": iam.url, "jwks_uri": f"{slow.url}/jwks"}
        iam.pages["/.well-known/openid-configuration"] = (200, json.dumps(told).encode())
        later.ahead_s += 100
        assert (
            keys.find("one", "ES256") is not None
        )  # as where an issuer does not answer: what is known is used
        assert slow.connections == 1
        assert 1 < slow.drops < 250, "0.7 s of a drop each 20 ms"
    finally:
        slow.close()


def test_one_asks_and_the_others_use_what_is_there(iam: Iam, later: Later) -> None:
    iam.publish("one")
    keys = IssuerKeys(issuer(iam), kept_s=60, monotonic_s=later)
    assert keys.known("one", "ES256") is None
    assert keys.find("one", "ES256") is not None
    assert keys.known("one", "ES256") is not None
    later.ahead_s += 100
    assert keys.known("one", "ES256") is None  # a thread that finds them old asks
    iam.asked.clear()
    iam.answers.clear()
    first = threading.Thread(target=keys.find, args=("one", "ES256"))
    first.start()
    until(lambda: bool(iam.asked))
    assert keys.find("one", "ES256") is not None
    assert len(iam.asked) == 1
    iam.answers.set()
    first.join(30)


def test_an_issuer_without_tls_is_refused() -> None:
    for url in ("http://iam.example.org", "ftp://iam.example.org", "iam.example.org"):
        with pytest.raises(ConfigError, match="cannot be asked"):
            IssuerKeys(Issuer(name="x", issuer=url, audience=["a"]), kept_s=60)


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"keys": 1}', b'{"keys": ["x"]}', b"{"])
def test_what_is_no_set_of_keys_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


# ---- settings ----------------------------------------------------------------------------------------------------

ISSUER = '[[tokens.issuers]]\nname = "iam"\nissuer = "https://i.example"\naudience = ["a"]\n'


def read(text: str, folder: Path) -> ServerConfig:
    return loads(f'dir = "s"\n{text}', ServerConfig, source=folder / "server.toml")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('"x" = "site x"', "`members`: `x` names no credential"),
        ('"x@ian" = "site x"', "no issuer is called `ian`"),
        ('"ada@cern.ch" = "site x"', "no issuer is called `cern.ch`"),
        ('"/CN=x" = "site x"', "needs `tls.other_ca`"),
        ('"/CN=x@iam" = "site x"', "may mean a certificate or a token"),
        ('"/CN=x" = "root x"', '`/CN=x` is `root x`, expected `"ROLE NAME"`'),
        ('"x@iam" = "site"', "`x@iam` is `site`, expected"),
        ('"x@iam" = ""', "expected"),
        (f'"x@iam" = "site {"x" * 101}"', "at most 100 characters"),
        ('"x@iam" = ["site", "x"]', "expected text"),
        ('"x@iam" = "site x"\n"x@iam" = "operator y"', "is not TOML"),
        ('"x@iam" = "site x"\n"token:x@iam" = "operator y"', "as that of `x` does"),
    ],
)
def test_a_member_that_could_never_be_met_is_refused_at_the_start(
    text: str, error: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=error):
        read_authenticator(read(f"{ISSUER}[roles.members]\n{text}\n", tmp_path))


def test_tokens_are_refused_without_https(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by https only"):
        read_authenticator(read(ISSUER, tmp_path))


def test_issuers_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for other in (ISSUER.replace("iam", "other"), ISSUER.replace("i.example", "j.example")):
        with pytest.raises(ConfigError, match="have the same `issuer` or `name`"):
            read_authenticator(read(ISSUER + other, tmp_path))


def test_an_issuer_without_an_audience_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected list of text, of length 1 or more"):
        read(ISSUER.replace('["a"]', "[]"), tmp_path)


def test_a_new_server_toml_shows_an_example_of_an_issuer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    path = tmp_path / "server" / "server.toml"
    assert main(["server", "init", "--config", str(path)]) == 0
    lines = path.read_text().splitlines()
    at = lines.index("# [[tokens.issuers]]")
    assert lines[at - 1].endswith("; an example of one:")
    example = "\n".join(line.removeprefix("# ") for line in lines[at : at + 4])
    (issuer,) = tables_of(loads(example, ServerConfig, source=path))["tokens"].issuers
    assert (issuer.name, issuer.profile) == ("cms", "wlcg")
