"""Configuration files that are written with comments and edited without losing one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tidemill import config
from tidemill.cli.configfile import brief, commented, locate, set_keys, write_new
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError

HERE = Path("/x/site.toml")
NEEDED = {"name": '"n"', "server": '"unix:/s"'}


def drawn(**values: str) -> str:
    return commented(SiteConfig, title="T", values=NEEDED | values)


def test_a_drawn_file_reads_as_its_values_and_shows_every_key() -> None:
    text = drawn(nodes_max="7")
    read = config.loads(text, SiteConfig, source=HERE)
    assert (read.name, read.nodes_max) == ("n", 7)
    for key in config.describe(SiteConfig):
        assert f"{key.key.rpartition('.')[2]} =" in text


def test_origins_stand_above_their_keys_and_lists_of_tables_at_the_end() -> None:
    text = commented(
        SiteConfig,
        title="T",
        values=NEEDED,
        origins={"name": "you said so"},
        tail='[[accounts]]\nname = "a"\nnode_hours = 5',
    )
    lines = text.splitlines()
    assert lines[lines.index('name = "n"') - 1] == "# -> you said so"
    assert config.loads(text, SiteConfig, source=HERE).accounts[0].name == "a"
    assert locate(text)["accounts"] == lines.index("[[accounts]]") + 1


def test_setting_keys_changes_these_lines_only() -> None:
    text = drawn(mode='"observe"').replace('mode = "observe"', 'mode = "observe"   # ask Ann first')
    changed = set_keys(text, {"mode": '"run"', "harvest.node_hours_max": "250"}, source=HERE)
    read = config.loads(changed, SiteConfig, source=HERE)
    assert (read.mode, read.harvest.node_hours_max) == ("run", 250)
    before, after = text.splitlines(), changed.splitlines()
    assert len(before) == len(after)
    differing = [new for old, new in zip(before, after, strict=True) if old != new]
    assert differing == ['mode = "run"   # ask Ann first', "node_hours_max = 250"]


def test_keys_and_tables_that_are_missing_are_added() -> None:
    changed = set_keys(
        'name = "n"\n\n[local]\nnodes = 2\n', {"local.grace_s": "3", "harvest.width": "2"}, source=HERE
    )
    assert tomllib.loads(changed) == {
        "name": "n",
        "local": {"nodes": 2, "grace_s": 3},
        "harvest": {"width": 2},
    }
    assert tomllib.loads(set_keys("", {"nodes_max": "1"}, source=HERE)) == {"nodes_max": 1}


def test_what_cannot_be_edited_safely_is_left_to_its_owner() -> None:
    text = 'data_roots = [\n  "/a",\n]\n'
    with pytest.raises(ConfigError, match="cannot be edited safely") as caught:
        set_keys(text, {"data_roots": "[]"}, source=HERE)
    assert "`data_roots = []` by hand" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="is not TOML"):
        set_keys("a = = 1", {"x": "1"}, source=HERE)


def test_lines_of_set_keys_are_found() -> None:
    text = '# name = "x"\nname = "n"\n[harvest]   # this\nwidth = 1\n[[accounts]]\nname = "a"\n'
    assert locate(text) == {"name": 2, "harvest.width": 4, "accounts": 5}


def test_a_new_file_is_private_and_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "new" / "f.toml"
    write_new(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists already"):
        write_new(path, "other")
    assert path.read_text() == "new"
    assert [each.name for each in path.parent.iterdir()] == ["f.toml"]


def test_a_short_file_has_the_keys_that_people_change_and_tables_behind_them() -> None:
    text = brief(
        SiteConfig,
        head=["T"],
        values=NEEDED
        | {"harvest.tcp": '"nodes"', "data_roots": "[]", "allow_adhoc": "true"}
        | {"nodes_max": "", "cluster.directives": "", "contact": ""},
        origins={"name": "you said so", "harvest.tcp": "unknown", "allow_adhoc": "yours"},
    )
    read = config.loads(text, SiteConfig, source=HERE)
    assert (read.name, read.harvest.tcp, read.nodes_max, read.allow_adhoc) == ("n", "nodes", 100, True)
    assert "# Name of the site. -> you said so\nname" in text
    assert "# What pilots reach by TCP. -> unknown\ntcp" in text
    assert "approves? -> yours\n" in text
    assert "# nodes_max = 100\n" in text
    assert "walltime_s" not in text
    assert text.index("data_roots") < text.index("[cluster]") < text.index("[harvest]")
    changed = set_keys(text, {"nodes_max": "3", "walltime_s": "60", "mail.server": '"m"'}, source=HERE)
    read = config.loads(changed, SiteConfig, source=HERE)
    assert (read.nodes_max, read.walltime_s, read.mail.server) == (3, 60, "m")
