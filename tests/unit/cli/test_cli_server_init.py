"""The server.toml of `server init`: its commented examples are legal, and show what a collaboration's server sets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill import config
from tidemill.cli.main import main
from tidemill.cli.server import example
from tidemill.config.server import ServerConfig, read_config

_COMMENTED = re.compile(r"^# (?=\[\[[a-z_.]+\]\]$|[a-z_]+ = [^ ])", re.MULTILINE)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    path = tmp_path / "server" / "server.toml"
    assert main(["server", "init", "--config", str(path)]) == 0
    return path


def test_the_file_with_all_its_comments_removed_is_a_legal_one(written: Path) -> None:
    assert read_config(written) == config.extended(ServerConfig)(dir=written.parent)
    text = _COMMENTED.sub("", written.read_text())
    read = config.loads(text, ServerConfig, source=written)
    assert (read.listen, read.tls.ca) == ("0.0.0.0:8443", (written.parent / "../ca/ca.pem").absolute())
    assert read.mail.server == "smtp.example.org:587"
    assert (len(read.wards), len(read.roles.members)) == (1, 1)
    assert (len(read.notify.rules), len(read.notify.hooks)) == (1, 1)


def test_every_table_that_may_stand_several_times_has_an_example() -> None:
    assert {each.key for each in config.repeated(ServerConfig)} == set(example.TABLES)
    assert {each.key for each in config.describe(ServerConfig)} >= set(example.KEYS)


def test_an_example_says_that_it_is_one(written: Path) -> None:
    lines = written.read_text().splitlines()
    assert '# server = "smtp.example.org:587"   # an example' in lines
    at = lines.index("# [[wards]]")
    assert lines[at - 1].endswith("; an example of one:")
