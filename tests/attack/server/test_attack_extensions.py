"""A page and a route that an extension adds ask for the same credentials and rights as the core's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.example_extension import install_reach
from tests.worlds.services.attack_world import Attacked, attacked

__all__ = ["attacked"]


@pytest.fixture(scope="module", autouse=True)
def reach(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The extension of docs/extensions.md, where the server of this module finds it."""
    place: Path = tmp_path_factory.mktemp("extension")
    install_reach(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")])))
        yield


def test_strangers_see_the_door_only(attacked: Attacked) -> None:
    assert attacked.ask(None, "GET", "/v1/reach")[0] == 401
    status, headers, _ = attacked.ask(None, "GET", "/reach")
    assert (status, headers["location"]) == (303, "/login?next=%2Freach")
    assert attacked.ask("ada", "POST", "/v1/reach", b"{}")[0] == 405


def test_each_role_sees_what_its_right_allows(attacked: Attacked) -> None:
    for who, sites in (("ada", {"lrz", "nemo"}), ("olga", {"lrz", "nemo"}), ("lrz", {"lrz"})):
        status, rows = attacked.call(who, "GET", "/v1/reach")
        assert (status, {each["site"] for each in rows}) == (200, sites), who
        status, headers, page = attacked.ask(who, "GET", "/reach")
        assert status == 200
        assert {site for site in ("lrz", "nemo") if f"<p>{site}," in page.decode()} == sites
        assert headers["content-security-policy"].startswith("default-src 'none'")
