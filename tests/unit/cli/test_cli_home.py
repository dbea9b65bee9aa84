"""Where a person's things are, and which server a client finds."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path

import msgspec
import pytest

from tidemill.client.home import UpFile, find_server, home_dir, make_home, read_up
from tidemill.errors import ConfigError

UP = UpFile(
    version="0.1.0",
    pid=7,
    address="unix:/x/api.sock",
    site_dir="/x",
    server_pid=8,
    site_pid=9,
    started_us=1,
    nodes=1,
    cores=2,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)
    make_home(tmp_path / "home")
    return tmp_path / "home"


def test_home_is_named_by_option_before_variable_before_default(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home_dir(Path("/named")) == Path("/named")
    assert home_dir() == home
    monkeypatch.delenv("TIDEMILL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_dir() == tmp_path / ".local" / "state" / "tidemill"


def test_a_home_is_private(home: Path) -> None:
    assert home.stat().st_mode & 0o777 == 0o700
    home.chmod(0o755)
    with pytest.raises(ConfigError, match="open to other users"):
        make_home(home)


def test_up_json_counts_only_while_its_writer_holds_the_lock(home: Path) -> None:
    (home / "up.json").write_bytes(msgspec.json.encode(UP))
    assert read_up(home) is None
    with (home / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_up(home) == UP
        found = find_server()
    assert found is not None
    assert found.address == UP.address
    assert find_server() is None


def test_a_torn_up_json_is_no_server(home: Path) -> None:
    (home / "up.json").write_bytes(b'{"version": "0')
    assert read_up(home) is None


def test_a_server_is_found_in_the_documented_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "client.toml").write_text('server = "http://b:1"\nsecret_file = "key"\n')
    monkeypatch.setenv("TIDEMILL_SERVER", "http://a:1")
    named, from_variable = find_server("http://c:1"), find_server()
    monkeypatch.delenv("TIDEMILL_SERVER")
    from_file = find_server()
    assert [named and named.address, from_variable and from_variable.address] == ["http://c:1", "http://a:1"]
    assert from_file is not None
    assert (from_file.address, from_file.secret_file) == ("http://b:1", home / "key")


def test_the_socket_of_a_server_without_up_is_found_last(home: Path) -> None:
    (home / "server").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "server" / "api.sock"))
        found = find_server()
    assert found is not None
    assert found.address == f"unix:{home}/server/api.sock"


def test_a_wrong_key_of_client_toml_is_named_with_the_nearest(home: Path) -> None:
    (home / "client.toml").write_text('sever = "http://b:1"\n')
    with pytest.raises(ConfigError, match="unknown key `sever`") as caught:
        find_server()
    assert caught.value.hint == "did you mean `server`?"
