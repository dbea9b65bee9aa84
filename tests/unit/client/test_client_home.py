"""The private directory of a person."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tidemill import Client
from tidemill.client.home import make_home
from tidemill.errors import ConfigError
from tidemill.files import make_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_below_a_home_that_is_not_there_leaves_the_home_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_private(tmp_path / "state" / "tidemill" / "inputs" / "campaign")
    finally:
        os.umask(before)
    home = tmp_path / "state" / "tidemill"
    assert [mode(each) for each in (home, home / "inputs", home / "inputs" / "campaign")] == [0o700] * 3
    make_home(home)  # a later command takes it


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path / "inputs")
    assert mode(tmp_path) == 0o755


def test_a_client_without_a_server_names_the_command_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)
    with pytest.raises(ConfigError, match="no server is named, and none runs") as raised:
        Client()
    assert "`tidemill up --detach` starts your own server and site" in str(raised.value.hint)
    assert not (tmp_path / "home").exists()
