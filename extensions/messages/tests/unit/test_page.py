"""The page on messages: its commands make the files that it names; `server init` shows its settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill import config
from tidemill.cli.main import main
from tidemill.client.authority import Authority, Wanted, describe
from tidemill.config.server import ServerConfig
from tidemill_messages.settings import SERVER_USER, amqp_of

MESSAGES = Path(__file__).parents[2] / "docs" / "messages.md"


def test_the_commands_of_the_page_on_messages_make_the_files_that_it_names(tmp_path: Path) -> None:
    page = MESSAGES.read_text(encoding="utf-8")
    authority = Authority.create(tmp_path, name="CA", days=2)
    commands = re.findall(r"^ *tidemill certs issue (\w+) (\S+) --dir certs$", page, re.MULTILINE)
    for role, name in commands:
        authority.issue(Wanted(role=role, name=name, days=2), tmp_path)
    named = set(re.findall(r"\"certs/(\S+)\"", page)) | set(re.findall(r"/etc/rabbitmq/(\S+)", page))
    named |= set(re.findall(r"\"(\w+\.(?:pem|key))\"", page))
    assert len(named) >= 9
    assert named - {path.name for path in tmp_path.iterdir()} == set()
    of_the_server = re.search(r"^ *\[amqp\]$.*?certs/(\S+)\"", page, re.MULTILINE | re.DOTALL)
    assert of_the_server is not None
    assert describe(tmp_path / of_the_server[1]).name == SERVER_USER


def test_a_new_server_toml_shows_the_settings_with_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    path = tmp_path / "server" / "server.toml"
    assert main(["server", "init", "--config", str(path)]) == 0
    (table,) = re.findall(r"^\[amqp\]\n[^\[]*", path.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^# (?=\w+ = [^ ])", "", table, flags=re.MULTILINE)
    read = amqp_of(config.loads(text, ServerConfig, source=path))
    assert read.sites == {"lrz": "lrz"}
    assert read.ca == (path.parent / "../ca/ca.pem").absolute()
