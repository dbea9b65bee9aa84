"""A payload at the real home directory, at the installation, and at Tidemill's state and keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.prey import Prey, attack, opened, prey
from tests.worlds.home.world import Options, World, world

import tidemill

PACKAGE = Path(tidemill.__file__).parent


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[World, Prey]]:
    with (
        world(options=Options(nodes=1, extra="shared = true")) as it,
        prey(it.home / "me") as hidden,
    ):
        yield it, hidden


@pytest.fixture(scope="module")
def personal() -> Iterator[tuple[World, Prey]]:
    with (
        world(options=Options(nodes=1, extra='show = ["~/.aws"]')) as it,
        prey(it.home / "me") as hidden,
    ):
        yield it, hidden


def keys(hidden: Prey) -> list[tuple[str, Path | str]]:
    names = (".pgpass", ".git-credentials", ".ssh/id_rsa", ".config/rclone/rclone.conf", ".aws/credentials")
    return [(verb, hidden.home / name) for name in names for verb in ("read", "write")]


def state(it: World) -> list[tuple[str, Path | str]]:
    site, server = it.home / "site", it.home / "server"
    return [
        *(("list", path) for path in (site, server)),
        *(
            ("replace", path)
            for path in (site, server, it.home, it.home / "up.json", PACKAGE, PACKAGE.parent)
        ),
        ("read", site / "site.toml"),
        ("connect", server / "api.sock"),
        ("write", it.home / "up.json"),
        ("make", it.home),
        ("write", PACKAGE / "__init__.py"),
        ("make", PACKAGE),
    ]


def test_on_a_site_for_others_the_home_is_empty_and_nothing_outside_the_slot_is_written(
    shared: tuple[World, Prey],
) -> None:
    it, hidden = shared
    places = [Path("/"), Path("/etc"), Path("/usr"), Path.home(), hidden.home, it.home, Path("/var")]
    words: list[tuple[str, Path | str]] = [
        *keys(hidden),
        *state(it),
        ("read", hidden.home / ".bashrc"),
        ("write", hidden.home / ".bashrc"),
        ("list", hidden.home),
        ("read", PACKAGE / "__init__.py"),
        *(("make", place) for place in places),
    ]
    assert opened(attack(it, words)) == {}
    for place in ("/tmp", "/var/tmp", "/dev/shm", "."):
        assert attack(it, [("make", place)]) == {("make", place): "made"}


def test_a_persons_programs_write_where_the_person_may_but_not_to_tidemill(
    personal: tuple[World, Prey],
) -> None:
    it, hidden = personal
    shown = hidden.home / ".aws" / "credentials"
    words = [(verb, path) for verb, path in keys(hidden) if path != shown]
    assert opened(attack(it, [*words, *state(it)])) == {}
    allowed: list[tuple[str, Path | str]] = [
        ("write", hidden.home / ".bashrc"),
        ("make", hidden.own),
        ("make", hidden.home),
        ("read", shown),
        ("read", PACKAGE / "__init__.py"),
    ]
    assert len(opened(attack(it, allowed))) == len(allowed)


def test_what_is_shown_is_asked_for_when_the_site_starts(personal: tuple[World, Prey]) -> None:
    it, hidden = personal
    done = it.run("run", "--with-credentials", str(hidden.home / ".ssh"), "--", "/bin/true")
    assert done.returncode == 2
    assert f"hides `{hidden.home / '.ssh'}`" in done.stderr
    assert "tidemill up --stop" in done.stderr
    done = it.run("run", "--with-credentials", str(hidden.agent), "--", "/bin/true")
    assert done.returncode == 2
    assert "neither a directory nor a regular file" in done.stderr


def test_others_processes_and_files_stay_what_they_are(personal: tuple[World, Prey]) -> None:
    """The stand-ins are as they were."""
    _, hidden = personal
    assert (hidden.home / ".ssh" / "id_rsa").read_text() == "a secret\n"
    assert os.access(PACKAGE / "__init__.py", os.R_OK)
    assert hidden.met == []
