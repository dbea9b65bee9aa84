"""What is no setting: constants of the records, which `[tuning]` replaces, and keys that went."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill import config
from tidemill.client.home import ClientConfig
from tidemill.config.amqp import Amqp
from tidemill.config.cache import CacheConfig
from tidemill.config.removed import REMOVED, REPLACED
from tidemill.config.server import SITE_LOST_S, ServerConfig
from tidemill.config.site import Cluster, SiteConfig
from tidemill.errors import ConfigError
from tidemill.model.metrics import AGENT
from tidemill.model.state import LEASE_TRANSITIONS, LeaseState

ROOT = Path(__file__).parents[3]
FORMER = Path(__file__).parent / "former_keys.txt"
RECORDS: dict[str, type[msgspec.Struct]] = {
    "site.toml": SiteConfig, "server.toml": ServerConfig, "cache.toml": CacheConfig, "client.toml": ClientConfig,
}  # fmt: skip
REQUIRED: dict[str, dict[str, Any]] = {
    "site.toml": {"name": "x", "server": "unix:/run/api.sock"},
    "server.toml": {},
    "client.toml": {"server": "unix:/run/api.sock"},
    "cache.toml": {"origins": [], "space": {"max": 10}},
}
SITE = 'name = "x"\nserver = "unix:/run/api.sock"\n'


def former() -> list[tuple[str, str]]:
    """(file, key) of every key that a version of Tidemill had."""
    return [tuple(line.split()) for line in FORMER.read_text().splitlines()]  # type: ignore[misc]


def setting(key: str, value: Any) -> dict[str, Any]:
    """The table that sets this dotted key."""
    name, dot, rest = key.partition(".")
    inner = setting(rest, value) if dot else value
    return {name.removesuffix("[]"): [inner] if name.endswith("[]") else inner}


def refusal(data: dict[str, Any], record: type[msgspec.Struct]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config.convert(data, record, source=Path("/etc/x.toml"))
    return caught.value


def site(text: str) -> SiteConfig:
    return config.loads(SITE + text, SiteConfig, source=Path("/etc/site.toml"))


@pytest.mark.parametrize(("file", "key"), former())
def test_a_former_key_is_refused_with_what_applies_instead(file: str, key: str) -> None:
    given = setting(key, 1)
    base = {name: value for name, value in REQUIRED[file].items() if name not in given}
    error = refusal(base | given, RECORDS[file])
    shown = re.escape(key).replace(re.escape("[]"), r"\[0\]")
    assert re.match(rf"/etc/x.toml: `{shown}` is not a setting any more: [\w`].{{15,}}", error.message), error
    is_replaced = key in REPLACED.get(RECORDS[file].__name__, {})
    assert error.hint == ("write what replaces it, then remove this key" if is_replaced else "remove the key")


def test_a_key_that_another_one_replaces_is_not_told_to_be_removed_alone() -> None:
    """Without its replacement the site would use a grant again that is partly used, or take nodes for other ones."""
    renamed = [
        ("site.toml", "accounts[].used_node_hours"), ("site.toml", "cluster.cores_per_node"),
        ("site.toml", "harvest.lead"), ("server.toml", "roles.members[].subject"), ("server.toml", "mail.login_file"),
    ]  # fmt: skip
    for file, key in renamed:
        given = setting(key, 1)
        base = {name: value for name, value in REQUIRED[file].items() if name not in given}
        hint = refusal(base | given, RECORDS[file]).hint
        assert hint == "write what replaces it, then remove this key", key
    with pytest.raises(ConfigError) as caught:
        site('[containers.podman]\npath = "/usr/bin/podman"\n')
    assert caught.value.hint == "write what replaces it, then remove this key"


def test_a_sentence_about_a_replaced_key_names_what_to_write() -> None:
    """A key, a table, a command or a file, each as code."""
    for keys in REPLACED.values():
        for key, sentence in keys.items():
            assert "`" in sentence, key
    assert not any(set(REPLACED[record]) & set(REMOVED.get(record, {})) for record in REPLACED)


def test_a_former_key_of_a_named_table_is_known_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match=r"`containers\.podman\.global_options` is not a setting any more"):
        site('[containers.podman]\ncommand = ["/usr/bin/podman"]\nglobal_options = []\n')
    with pytest.raises(ConfigError, match=r"unknown key `containers\.podman\.global_option`"):
        site('[containers.podman]\ncommand = ["/usr/bin/podman"]\nglobal_option = []\n')


def test_every_constant_and_removed_key_is_a_former_one() -> None:
    known = {(file, key) for file, record in RECORDS.items() for key in config.removed(record)}
    assert known == set(former())


def test_constants_that_sentences_name_exist_where_they_say() -> None:
    sentences = [each for table in (REMOVED, REPLACED) for keys in table.values() for each in keys.values()]
    named = [
        (name, path) for each in sentences for name, path in re.findall(r"\((\w+) in ([\w/]+\.py)\)", each)
    ]
    assert len(named) > 20
    for name, path in named:
        source = (ROOT / "src" / "tidemill" / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *(\w+, )?{name}\b[^=\n]* = ", source, re.MULTILINE), f"{path} has no {name}"


def test_tuning_sets_constants_of_every_table_beside_its_settings() -> None:
    read = site(
        'tuning.idle_s = "1m"\n[harvest]\npoll_s = 7\n[tuning.harvest]\ncycle_s = 3\n[tuning.limits]\njobs_max = 5'
    )
    assert (read.idle_s, read.harvest.poll_s, read.harvest.cycle_s, read.limits.jobs_max) == (
        60.0,
        7.0,
        3.0,
        5,
    )
    assert site("").idle_s == 20.0


def test_tuning_takes_no_settings_and_no_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `tuning\.nodes_max`"):
        site("tuning.nodes_max = 3")
    with pytest.raises(ConfigError, match=r"unknown key `tuning\.harvest\.cycle`") as caught:
        site("tuning.harvest.cycle = 3")
    assert caught.value.hint == "did you mean `cycle_s`?"
    with pytest.raises(ConfigError, match=r"`tuning\.idle_s`.*is not a duration"):
        site('tuning.idle_s = "soon"')


def test_a_record_without_constants_has_no_tuning() -> None:
    class Plain(msgspec.Struct, frozen=True):
        name: str = ""

    assert config.has_constants(Amqp)
    assert not config.has_constants(Plain)
    assert "unknown key `tuning`" in refusal({"tuning": {}}, Plain).message


def test_tables_of_states_and_metrics_name_the_constants_that_hold() -> None:
    lost = LEASE_TRANSITIONS[LeaseState.ACTIVE, LeaseState.LOST]
    assert f"longer than {SITE_LOST_S / 60:.0f} minutes" in lost
    assert f"over {Cluster().slow_s:g} s" in AGENT["tidemill_batch_slow_total"].help
