"""What a client shows: the WLCG's discovery order, private files, and nothing in clear text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill.wire.credentials import Credentials, find_token, read_key, read_secret, read_token
from tidemill.wire.server_connection import Connection


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No token anywhere but where a test puts it."""
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def token(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    path.chmod(mode)
    return path


def test_tokens_are_found_in_the_order_of_the_wlcg(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"bt_u{os.geteuid()}"
    last = bare / "tmp"
    assert find_token(last) is None
    token(last / name, "d.d.d")
    assert find_token(last) == "d.d.d"
    token(bare / "run" / name, "c.c.c")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bare / "run"))
    assert find_token(last) == "c.c.c"
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(token(bare / "named", "b.b.b")))
    assert find_token(last) == "b.b.b"
    monkeypatch.setenv("BEARER_TOKEN", " a.a.a\n")
    assert find_token(last) == "a.a.a"


def test_a_token_that_is_named_must_be_there(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token(bare / "tmp" / f"bt_u{os.geteuid()}", "d.d.d")
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(bare / "gone"))
    with pytest.raises(ConfigError, match="gone"):
        find_token(bare / "tmp")


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o604])
def test_a_token_that_others_can_read_or_write_is_refused(bare: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}") as caught:
        read_token(token(bare / "open", "a.a.a", mode))
    assert "a.a.a" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "secret", "a.b", "a.b.c d", "a.b.c\nx.y.z", "x" * 20_000 + ".b.c"])
def test_what_is_no_token_is_not_sent_and_not_quoted(bare: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="does not hold a token") as caught:
        read_token(token(bare / "t", text))
    assert not text or text not in str(caught.value)


def test_tokens_go_encrypted_only_and_a_secret_comes_first(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = token(bare / "t", "a.a.a")
    assert Credentials(token_file=file).bearer(encrypted=False) is None
    assert Credentials(token_file=file).bearer(encrypted=True) == "a.a.a"
    secret = token(bare / "s", "0123456789abcdef")
    assert Credentials(token_file=file, secret_file=secret).bearer(encrypted=True) == "0123456789abcdef"
    token(bare / "run" / f"bt_u{os.geteuid()}", "d.d.d")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(bare / "run"))
    assert Credentials().bearer(encrypted=True) == "d.d.d"
    assert Credentials(certificate=bare / "me.pem").bearer(encrypted=True) is None


def test_a_secret_never_leaves_the_machine_in_clear_text(bare: Path) -> None:
    credentials = Credentials(secret_file=token(bare / "s", "0123456789abcdef"))
    for address in ("http://server.example.org:8443", "http://10.0.0.1:1", "http://127.0.0.1.example.org:1"):
        with pytest.raises(ConfigError, match="is not sent over `http://`"):
            Connection(address, credentials=credentials)
    pair = "https://a.example.org:1,http://b.example.org:1"
    with pytest.raises(ConfigError, match="is not sent over `http://`"):
        Connection(pair, credentials=credentials)
    for address in (
        "http://127.0.0.1:1",
        "http://localhost:1",
        "http://[::1]:1",
        "unix:/tmp/s",
        "https://a.example:1",
    ):
        Connection(address, credentials=credentials).close()


def test_secrets_are_read_by_one_rule_and_those_that_check_others_are_longer(bare: Path) -> None:
    good = token(bare / "good", "0123456789abcdef")
    assert read_key(good) == read_secret(good).encode() == b"0123456789abcdef"
    short = token(bare / "short", "0123456789abcde")
    assert read_secret(short) == "0123456789abcde"
    with pytest.raises(ConfigError, match="16 to 4096 characters") as caught:
        read_key(short)
    assert "0123456789" not in str(caught.value)
    for text in ("0123456789 abcdef", "0123456789abcdé!", "0123456789\tabcdef"):
        for read in (read_key, read_secret):
            with pytest.raises(ConfigError, match="one word of printable ASCII"):
                read(token(bare / "bad", text))
