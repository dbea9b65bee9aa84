"""Keys of token issuers: asked from a real HTTP server, kept, asked again seldom; and what is revoked."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.services.server_process import until

from tidemill import clock
from tidemill.config import loads
from tidemill.config.server import ServerConfig
from tidemill.config.tls import Bearer, Issuer, Roles
from tidemill.errors import ConfigError
from tidemill.model.identity import Identity, Role, Via
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.identity import issuers
from tidemill.server.identity.issuers import IssuerKeys, parse
from tidemill.server.identity.revocations import Revoked
from tidemill.server.identity.revocations import parse as parse_revoked
from tidemill.server.notify.start import senders_of
from tidemill.server.run import read_authenticator, sessions_of, wards_of
from tidemill.server.web.visits.sessions import Sessions

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
                if status == 0:  # what is no HTTP
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
        assert keys.find("two", "ES256") is None  # within the minute nobody makes us ask
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
        assert keys.find("one", "ES256") is not None  # as of an issuer that is away: what is known is used
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
    assert keys.known("one", "ES256") is None  # whoever finds them old asks
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


# ---- what is revoked -------------------------------------------------------------------------------------------------

ADA = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE, subject="/CN=ada", credential="00ab12")


@pytest.mark.parametrize("line", ["serial AB:12", "serial 0x00AB12 # left", "subject /CN=ada", "name ada"])
def test_a_line_revokes_by_serial_subject_or_name(tmp_path: Path, line: str) -> None:
    path = tmp_path / "revoked"
    path.write_text(f"# a list\n\n{line}\n")
    assert Revoked(path).why(ADA) is not None
    assert Revoked(path).why(msgspec.structs.replace(ADA, name="b", subject="/CN=b", credential="1")) is None


def test_a_certificates_serial_is_no_tokens_number() -> None:
    entries = parse_revoked("token ab12\n", Path("x"))
    assert entries == {("token", "ab12")}


def test_a_list_that_is_gone_or_damaged_revokes_what_it_revoked(tmp_path: Path) -> None:
    path = tmp_path / "revoked"
    path.symlink_to(tmp_path / "not mounted")
    with pytest.raises(ConfigError, match="cannot be read"):
        Revoked(path)
    path.unlink()
    path.write_text("name ada\n")
    revoked = Revoked(path)
    path.write_text("name\n")
    revoked.refresh()
    assert revoked.why(ADA) is not None
    path.unlink()
    revoked.refresh()
    assert revoked.why(ADA) is not None
    path.write_text("name bob\n")
    revoked.refresh()
    assert revoked.why(ADA) is None


def test_a_list_counts_as_soon_as_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "revoked.txt"
    revoked = Revoked(path)
    revoked.refresh()
    assert revoked.why(ADA) is None
    assert list(tmp_path.iterdir()) == []
    path.write_text("name ada\n")
    revoked.refresh()
    assert revoked.why(ADA) == "name ada"


def test_a_file_system_that_hangs_holds_up_nobody_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "revoked.txt"
    path.write_text("name ada\n")
    revoked = Revoked(path)
    path.unlink()
    os.mkfifo(path)  # nobody writes: to open it does not return
    try:
        with revoked.watched(pause_s=0.01, late_s=0.02):
            until(lambda: any("unanswered" in each.getMessage() for each in caplog.records))
            assert revoked.why(ADA) == "name ada"
            assert revoked.has_entries()
    finally:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # so that the thread can go


def test_a_server_whose_list_was_lost_does_not_start_again(tmp_path: Path) -> None:
    path = tmp_path / "revoked.txt"
    path.write_text("# nobody yet\n")
    revoked = Revoked(path)
    path.unlink()
    assert Revoked(path).why(ADA) is None  # a list of nothing is as good as none
    path.write_text("name ada\n")
    revoked.refresh()
    assert revoked.why(ADA) is not None
    path.unlink()
    with pytest.raises(ConfigError, match="No such file") as caught:
        Revoked(path)
    assert "write an empty file" in (caught.value.hint or "")
    path.touch()
    assert Revoked(path).why(ADA) is None


def test_a_new_directory_without_the_list_is_refused_where_the_database_knows_of_one(tmp_path: Path) -> None:
    path, store = tmp_path / "revoked.txt", Store(path=tmp_path / "tidemill.db")
    store.init()
    revoked = Revoked(path)
    revoked.refresh()
    assert not revoked.has_entries()
    path.write_text("name ada\n")
    revoked.refresh()
    assert revoked.has_entries()
    dispatcher = Dispatcher(store)
    reader = store.reader()
    try:
        dispatcher.start()
        assert not reader.rows("revoked_known")
        assert all(dispatcher.note_revoked() for _ in range(2))
        assert reader.rows("revoked_known")
    finally:
        reader.close()
        dispatcher.close()
    new = Revoked(tmp_path / "new" / "revoked.txt")
    with pytest.raises(ConfigError, match="the list of what is revoked is missing") as caught:
        new.refuse_lost()
    assert "copy it" in (caught.value.hint or "")
    path.write_text("")
    revoked.refuse_lost()
    revoked.refresh()
    assert not revoked.has_entries()


def test_a_link_that_leads_nowhere_lets_nobody_back_in(tmp_path: Path) -> None:
    path, there = tmp_path / "revoked.txt", tmp_path / "list"
    there.write_text("name ada\n")
    path.symlink_to(there)
    revoked = Revoked(path)
    there.rename(tmp_path / "not mounted")
    revoked.refresh()
    assert revoked.why(ADA) is not None
    (tmp_path / "not mounted").rename(there)
    there.write_text("name bob\n")
    revoked.refresh()
    assert revoked.why(ADA) is None


# ---- configuration -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('"x" = "site x"', "`members`: `x` names no credential"),
        ('"x@ian" = "site x"', "there is no issuer `ian`"),
        ('"ada@cern.ch" = "site x"', "there is no issuer `cern.ch`"),
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
    issuer = 'dir = "s"\n[[tokens.issuers]]\nname = "iam"\nissuer = "https://i.example"\naudience = ["a"]\n'
    with pytest.raises(ConfigError, match=error):
        read_authenticator(
            loads(f"{issuer}[roles.members]\n{text}\n", ServerConfig, source=tmp_path / "server.toml")
        )


def test_members_are_read_in_the_order_of_the_file() -> None:
    roles = Roles(members={"group:/b@iam": "site  lrz", "group:/a@iam": "operator Ada Lovelace"})
    assert [(each.role, each.name) for each in roles.listed] == [
        ("site", "lrz"),
        ("operator", "Ada Lovelace"),
    ]


@pytest.mark.parametrize(
    ("who", "bearer"),
    [
        ("/DC=org/CN=Ada", Bearer(subject="/DC=org/CN=Ada")),
        ("/DC=org/emailAddress=ada@cern.ch", Bearer(subject="/DC=org/emailAddress=ada@cern.ch")),
        ("subject:/CN=x@iam", Bearer(subject="/CN=x@iam")),
        ("ada@iam", Bearer(token="ada", issuer="iam")),
        ("ada@cern.ch@iam", Bearer(token="ada@cern.ch", issuer="iam")),
        ("group:/atlas/production@iam", Bearer(group="/atlas/production", issuer="iam")),
        ("token:/DC=org/CN=Ada@iam", Bearer(token="/DC=org/CN=Ada", issuer="iam")),
        ("token:group:/atlas@iam", Bearer(token="group:/atlas", issuer="iam")),
        ("token:token:x@iam", Bearer(token="token:x", issuer="iam")),
        ("auth0:7@iam", Bearer(token="auth0:7", issuer="iam")),
    ],
)
def test_who_means_one_certificate_one_token_or_one_group(who: str, bearer: Bearer) -> None:
    assert Bearer.parse(who) == bearer


@pytest.mark.parametrize(
    "who", ["", "/", "ada", "@iam", "ada@", "group:@iam", "group:/atlas", "token:@iam", "subject:ada@iam", "subject:",
            " /CN=x", "ada@iam ", "ada@iam\n", "a\x00b@iam", "group:", "@"],
)  # fmt: skip
def test_who_that_means_nobody_is_refused(who: str) -> None:
    with pytest.raises(ValueError, match=r"names no credential|is not a subject|begins or ends with a blank"):
        Bearer.parse(who)


@given(st.text(min_size=1, max_size=20).filter(str.isprintable), st.sampled_from(["iam", "cern.ch"]))
def test_every_sub_can_be_written_and_never_means_a_certificate(sub: str, issuer: str) -> None:
    if sub == sub.lstrip():
        assert Bearer.parse(f"token:{sub}@{issuer}") == Bearer(token=sub, issuer=issuer)


def test_tokens_and_ports_are_refused_without_https(tmp_path: Path) -> None:
    issuer = '[[tokens.issuers]]\nname = "iam"\nissuer = "https://i.example"\naudience = ["a"]\n'
    for text, error in ((issuer, "by https only"), ('listen = "127.0.0.1:1"\n', "needs a secret, or https")):
        with pytest.raises(ConfigError, match=error):
            read_authenticator(loads(f'dir = "s"\n{text}', ServerConfig, source=tmp_path / "server.toml"))


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "10.1.2.3:1", "[::]:1", "login.example.org:1"])
def test_a_port_that_other_machines_reach_is_refused_without_https(tmp_path: Path, listen: str) -> None:
    (tmp_path / "s").write_text("a-secret-of-16-characters")
    (tmp_path / "s").chmod(0o600)
    text = f'dir = "s"\nsecret_file = "s"\nlisten = "{listen}"\n'
    with pytest.raises(ConfigError, match="needs https"):
        read_authenticator(loads(text, ServerConfig, source=tmp_path / "server.toml"))
    text = text.replace(listen, "127.0.0.1:1")
    assert read_authenticator(loads(text, ServerConfig, source=tmp_path / "server.toml")).secret is not None


def test_an_error_names_the_key_whose_file_or_table_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("a-secret-of-16-characters")
    (tmp_path / "good").chmod(0o600)

    def read(text: str) -> ServerConfig:
        return loads(text, ServerConfig, source=tmp_path / "server.toml")

    with pytest.raises(ConfigError, match=r"^server\.toml: `secret_file`: failed to read the secret file"):
        read_authenticator(read('secret_file = "none"'))
    hook = '[[notify.hooks]]\nname = "{0}"\nurl = "https://h.example/"\nsecret_file = "{0}"\n'
    with pytest.raises(
        ConfigError, match=r"^server\.toml: `notify\.hooks\[1\]\.secret_file`: failed to read"
    ):
        senders_of(read(hook.format("good") + hook.format("none")))
    with pytest.raises(ConfigError, match=r"^server\.toml: `wards\[0\]`: ward `down` admits no job"):
        wards_of(read('[[wards]]\nname = "down"'))


def test_servers_with_one_session_key_know_each_others_logins(tmp_path: Path) -> None:
    def believes(config: ServerConfig, cookie: str) -> bool:
        return made(config).read(cookie, 2) is not None

    def made(config: ServerConfig) -> Sessions:
        found = sessions_of(config)
        assert found is not None
        return found

    config, key = ServerConfig(dir=tmp_path), tmp_path / "session.key"
    own = made(config)
    cookie = own.write(own.begin(ADA, 1))
    assert not believes(config, cookie), "without the file the key is of one process"
    key.write_text("k" * 32)
    key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"session\.key` has mode 0640"):
        sessions_of(config)
    key.chmod(0o600)
    shared = made(config)
    assert believes(config, shared.write(shared.begin(ADA, 1)))
    key.rename(tmp_path / "elsewhere")
    key.symlink_to("not mounted")
    with pytest.raises(ConfigError, match="failed to read the secret file"):
        sessions_of(config)
