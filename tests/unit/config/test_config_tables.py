"""Tables that extensions add to server.toml and site.toml: read as the core's, or refused with what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import tidemill
from tidemill import config, extensions
from tidemill.cli.configfile import commented, with_examples
from tidemill.cli.main import main
from tidemill.config import tables
from tidemill.config.server import ServerConfig
from tidemill.config.site import SiteConfig
from tidemill.config.tables import provided, tables_of
from tidemill.errors import ConfigError
from tidemill.server.run import rules_of

Install = Callable[..., None]
SOURCE = Path("/etc/tidemill/server.toml")
SITE = 'name = "x"\nserver = "unix:/run/api.sock"\n'
MODULE = """
from pathlib import Path
from typing import Annotated
import msgspec
from tidemill.config.tables import SettingsTable
from tidemill.config.keys import Duration, doc

class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ca: Path | None = None
    wait_s: Annotated[Duration, doc("How long to wait")] = 60.0

class Odd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=1), doc("How many")] = 1
    inner: Inner = Inner()

    def __post_init__(self):
        if self.count == 13:
            raise ValueError("`count` is 13, which brings bad luck")

class Loose(msgspec.Struct):
    names: list[str] = []

class Needs(msgspec.Struct):
    name: str

def counted(odd):
    return odd.count

ODD = SettingsTable("server.toml", Odd, {"count": "7"})
LOOSE = SettingsTable("site.toml", Loose)
NEEDS, CACHE, NO_TABLE = SettingsTable("server.toml", Needs), SettingsTable("cache.toml", Odd), 7
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs an extension `odd` with these tables, as long as a test runs."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tidemill_odd.py").write_text(MODULE)

    def forget() -> None:
        extensions.forget_faults()
        for each in (extensions.installed, tables._added, tables._extended):
            each.cache_clear()

    def put(version: str = tidemill.__version__, provider: str = "", **named: str) -> None:
        about = tmp_path / f"tidemill_odd-{version}.dist-info"
        about.mkdir()
        lines = [f"{name} = tidemill_odd:{attribute}" for name, attribute in named.items()]
        if provider:
            lines += [f"[{extensions.PROVIDERS}]", f"odd = tidemill_odd:{provider}"]
        (about / "entry_points.txt").write_text("\n".join([f"[{extensions.SETTINGS}]", *lines]))
        forget()

    yield put
    sys.modules.pop("tidemill_odd", None)
    forget()


def read(text: str, record: type[msgspec.Struct] = ServerConfig) -> dict[str, object]:
    return tables_of(config.loads(text, record, source=SOURCE))


def refusal(text: str, record: type[msgspec.Struct] = ServerConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config.loads(text, record, source=SOURCE)
    return caught.value


def test_a_table_is_read_as_those_of_the_core(install: Install) -> None:
    install(odd="ODD", loose="LOOSE")
    found = read('[odd]\ncount = 2\n[odd.inner]\nca = "ca.pem"')["odd"]
    assert msgspec.to_builtins(found, enc_hook=str) == {
        "count": 2, "inner": {"ca": "/etc/tidemill/ca.pem", "wait_s": 60.0},
    }  # fmt: skip
    whole = config.loads('listen = "h:1"\nodd.inner.wait_s = "2m"', ServerConfig, source=SOURCE)
    assert isinstance(whole, ServerConfig)
    assert whole.listen == "h:1"
    assert tables_of(whole)["odd"].inner.wait_s == 120.0
    assert rules_of(msgspec.structs.replace(whole, dir=Path("/srv"))).added["odd"].inner.wait_s == 120.0
    assert tables_of(ServerConfig())["odd"].count == 1
    assert read(f'{SITE}[loose]\nnames = ["a"]', SiteConfig)["loose"].names == ["a"]  # type: ignore[attr-defined]
    assert "odd" not in read(SITE, SiteConfig)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[odd]\ncount = 0", "`odd.count` is `0`, expected integer, at least 1"),
        ("[odd]\ncounts = 2", "unknown key `odd.counts`"),
        ("odd = 3", "`odd` is `3`, expected a table"),
        ("[odd]\ncount = 13", "`odd`: `count` is 13, which brings bad luck"),
    ],
)
def test_what_is_wrong_in_a_table_is_named_with_its_key(install: Install, text: str, said: str) -> None:
    install(odd="ODD")
    assert said in refusal(text).message


def test_its_keys_are_described_and_shown_in_a_new_file(install: Install) -> None:
    install(odd="ODD")
    whole = config.extended(ServerConfig)
    keys = {key.key: key for key in config.describe(whole, inside=True)}
    assert (keys["odd.count"].doc, keys["odd.inner.wait_s"].unit, keys["odd.inner.ca"].is_credential) == (
        "How many", "s", True,
    )  # fmt: skip
    text = with_examples(commented(whole, title="A server", values={}), {"odd.count": "7"}, {})
    assert "[odd]" in text
    assert "# count = 7   # an example" in text
    assert "odd.count" not in {key.key for key in config.describe(ServerConfig)}


@pytest.mark.parametrize(
    ("name", "attribute", "why"),
    [
        ("quotas", "ODD", "that name is taken"),
        ("odd-one", "ODD", "a table cannot have that name"),
        ("odd", "NO_TABLE", "it is not a `SettingsTable` of client.toml, server.toml or site.toml"),
        ("odd", "CACHE", "it is not a `SettingsTable` of client.toml, server.toml or site.toml"),
        ("odd", "NEEDS", "its record cannot be used: Missing required argument 'name'"),
    ],
)
def test_a_table_that_cannot_be_one_is_left_out(
    install: Install, name: str, attribute: str, why: str
) -> None:
    install(**{name: attribute})
    assert name not in read("")
    assert extensions.faults() == {"odd": f"its settings `[{name}]` are left out: {why}"}
    if name == "odd":
        assert refusal("[odd]\nx = 1").message.endswith(
            f"`[odd]` needs the extension `odd`: {extensions.faults()['odd']}"
        )


def test_a_table_of_another_version_is_refused(install: Install) -> None:
    install("0.0.1", odd="ODD")
    assert "its version is 0.0.1, and Tidemill's is" in refusal("[odd]\ncount = 2").message
    assert read("") == {name: table.record() for name, table in config.added(ServerConfig).items()}


def test_a_table_of_the_other_file_says_where_it_belongs(install: Install) -> None:
    install(odd="ODD", loose="LOOSE")
    assert refusal("[loose]\nnames = []").message == f"{SOURCE}: `[loose]` is a table of site.toml"


def test_a_table_of_an_extension_that_is_away_says_which_command_installs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, table in (
        (name, table) for name, brings in extensions.KNOWN.items() for table in brings.settings
    ):
        error = extensions.missing(extensions.SETTINGS, table)
        assert error is not None
        assert (error.exit_code, error.hint) == (2, f"install it: pip install 'tidemill[{name}]'")
        if name not in extensions.installed():  # where `make test-core` runs this
            (tmp_path / "server.toml").write_text(f"[{table}]\nx = 1\n")
            assert main(["server", "run", "--config", str(tmp_path / "server.toml")]) == 2
            assert f"server.toml: `[{table}]` needs the extension `{name}`" in capsys.readouterr().err


def test_an_extension_makes_of_its_table_what_the_core_asks_for(install: Install) -> None:
    install(odd="ODD", provider="counted")
    whole = config.loads("[odd]\ncount = 2", ServerConfig, source=SOURCE)
    assert provided("odd", int, whole) == 2
    assert provided("even", int, whole) is None
    assert provided("odd", int, ServerConfig()) is None, "it says nothing"
    with pytest.raises(ConfigError, match=r"`\[odd\]`: its extension makes no `str` of this table"):
        provided("odd", str, whole)


@pytest.mark.parametrize(
    ("provider", "why"), [("", "makes no `int`"), ("gone", "has no `tidemill_odd:gone`")]
)
def test_a_table_of_which_nothing_can_be_made_is_refused_where_it_says_something(
    install: Install, provider: str, why: str
) -> None:
    install(odd="ODD", provider=provider)
    assert provided("odd", int, ServerConfig()) is None
    with pytest.raises(ConfigError, match=why):
        provided("odd", int, config.loads("[odd]\ncount = 2", ServerConfig, source=SOURCE))


def test_only_the_extension_whose_table_it_is_provides_what_the_table_sets(
    install: Install, tmp_path: Path
) -> None:
    about = tmp_path / f"tidemill_aaa-{tidemill.__version__}.dist-info"
    about.mkdir()
    (about / "entry_points.txt").write_text(f"[{extensions.PROVIDERS}]\nodd = tidemill_odd:counted")
    install(odd="ODD")
    with pytest.raises(ConfigError, match="a table of the extension `odd`, and `aaa` would provide"):
        provided("odd", int, config.loads("[odd]\ncount = 2", ServerConfig, source=SOURCE))


def test_records_that_are_no_file_have_no_more_tables(install: Install) -> None:
    install(odd="ODD")
    assert config.added(config.Key) == {}
    assert config.extended(config.Key) is config.Key
