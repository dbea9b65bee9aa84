"""Credentials of the server: the secret, what is revoked, who is a member, logins; what is refused at the start."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.services.server_process import until

from tidemill.config import loads
from tidemill.config.server import ServerConfig
from tidemill.config.tls import Bearer, Roles
from tidemill.errors import ConfigError
from tidemill.model.identity import Identity, Role, Via
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.errors import StrangerError
from tidemill.server.identity.access import Authenticator
from tidemill.server.identity.revocations import Revoked
from tidemill.server.identity.revocations import parse as parse_revoked
from tidemill.server.notify.start import senders_of
from tidemill.server.run import read_authenticator, sessions_of, wards_of
from tidemill.server.web.visits.sessions import Sessions

SECRET = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("scheme", "client", "is_taken"),
    [
        ("https", "10.0.0.7", True), ("http", "127.0.0.1", True), ("http", "::1", True),
        ("http", "::ffff:127.0.0.1", True), ("http", "10.0.0.7", False), ("http", "2001:db8::1", False),
    ],
)  # fmt: skip
def test_the_secret_is_refused_in_clear_text_from_another_machine(
    scheme: str, client: str, is_taken: bool
) -> None:
    headers = [(b"authorization", b"Bearer " + SECRET)]
    scope = {"method": "GET", "scheme": scheme, "headers": headers, "client": (client, 40_000)}
    authenticator = Authenticator(secret=SECRET)
    if is_taken:
        assert asyncio.run(authenticator.identify(scope)).is_local_admin
        return
    with pytest.raises(StrangerError, match="in clear text from another machine"):
        asyncio.run(authenticator.identify(scope))


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


def test_a_port_without_a_credential_is_refused(tmp_path: Path) -> None:
    text = 'dir = "s"\nlisten = "127.0.0.1:1"\n'
    with pytest.raises(ConfigError, match="needs a secret, or https"):
        read_authenticator(loads(text, ServerConfig, source=tmp_path / "server.toml"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('"x" = "site x"', "`members`: `x` names no credential"),
        ('"x@iam" = "site x"', "no issuer is called `iam`"),
        ('"/CN=x" = "site x"', "needs `tls.other_ca`"),
        ('"/CN=x" = "root x"', '`/CN=x` is `root x`, expected `"ROLE NAME"`'),
        ('"/CN=x" = ""', "expected"),
        (f'"/CN=x" = "site {"x" * 101}"', "at most 100 characters"),
        ('"/CN=x" = ["site", "x"]', "expected text"),
    ],
)
def test_a_member_that_no_credential_could_meet_is_refused_at_the_start(
    text: str, error: str, tmp_path: Path
) -> None:
    whole = f'dir = "s"\n[roles.members]\n{text}\n'
    with pytest.raises(ConfigError, match=error):
        read_authenticator(loads(whole, ServerConfig, source=tmp_path / "server.toml"))


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
