"""`[replicas]` of site.toml: what is refused, what the site gets of it, and what payloads do not see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config import loads
from tidemill.config.site import SiteConfig
from tidemill.config.tables import tables_of
from tidemill.errors import ConfigError
from tidemill.routing.copies import copies_of
from tidemill.site.data.masks import masked_paths

BASE = 'name = "x"\nserver = "unix:/run/api.sock"\n'
SOURCE = Path("/etc/tidemill/site.toml")


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loads(BASE + text, SiteConfig, source=SOURCE)
    return caught.value


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ('url = "https://r.example.org"\nsecret_file = "login"', "names no account"),
        ('url = "https://me@r.example.org"\nsecret_file = "login"\ntoken_file = "jwt"', "give one of"),
        ('url = "http://me@r.example.org"\nsecret_file = "login"', "is not encrypted"),
        (
            'url = "https://me:secret@r.example.org"',
            "the account that logs in `https://ACCOUNT@rucio.example.org`",
        ),
        ('url = "rucio.example.org"', "expected a server such as `https://rucio.example.org`"),
    ],
)
def test_a_login_to_rucio_names_its_account_in_the_url(keys: str, why: str) -> None:
    message = refusal(f"[replicas.rucio]\n{keys}").message
    assert why in message
    assert "me:secret" not in message
    assert "regex" not in message
    text = f'{BASE}[replicas.rucio]\nurl = "https://me@r.example.org/x"\nsecret_file = "login"'
    read = tables_of(loads(text, SiteConfig, source=SOURCE))["replicas"].rucio
    assert (read.account, read.address) == ("me", "https://r.example.org/x")


def test_what_follows_a_question_mark_in_a_url_is_not_repeated() -> None:
    message = refusal('[replicas.rucio]\nurl = "https://h/?token=geheim"').message
    assert "geheim" not in message
    assert "?..." in message


def test_a_table_in_the_wrong_place_is_sent_to_its_own() -> None:
    assert refusal('[rucio]\nurl = "https://r.example.org"').hint == "write `[replicas.rucio]`"


def test_a_site_knows_the_copies_of_its_lists_and_asks_rucio_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("root://o//* root://a//*\n")

    def read(text: str) -> SiteConfig:
        return loads(BASE + text, SiteConfig, source=tmp_path / "site.toml")

    listed = copies_of(read('[replicas]\nfiles = "list"'))
    assert (listed.copies("root://o//x"), listed.look_up) == (["root://a//x"], None)
    asked = copies_of(read('[replicas.rucio]\nurl = "https://r.example.org"'))
    assert asked.copies("root://o//x") == []
    assert asked.look_up is not None
    assert copies_of(read("")).copies("root://o//x") == []


def test_payloads_do_not_see_what_shows_the_site_to_rucio(tmp_path: Path) -> None:
    text = (
        '[replicas.rucio]\nurl = "https://me@rucio.example.org"\ncertificate = "/srv/keys/robot.pem"\n'
        'key = "/srv/keys/robot.key"\nca = "/srv/keys/ca.pem"'
    )
    masked = masked_paths(tmp_path / "site", loads(BASE + text, SiteConfig, source=SOURCE), {})
    assert [path.name for path in masked if path.parent == Path("/srv/keys")] == ["robot.key"]
    token = '[replicas.rucio]\nurl = "https://rucio.example.org"\ntoken_file = "/srv/keys/jwt"'
    masked = masked_paths(tmp_path / "site", loads(BASE + token, SiteConfig, source=SOURCE), {})
    assert Path("/srv/keys/jwt") in masked
