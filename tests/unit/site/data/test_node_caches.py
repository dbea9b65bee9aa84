"""The caches that pilots run on their nodes: their configuration, and what routing makes of what pilots say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.cache.engine.nodeform import node_definition
from tidemill.config.caching import SiteCache
from tidemill.errors import ConfigError
from tidemill.routing.routes import FarCopy, FarRoute, RouteWay
from tidemill.site.data.node_caches import NodeCaches
from tidemill.site.data.routing import JobRoute, write_url
from tidemill.wire.node import Noted

URL = "root://far.example:1094//store/d/f"


def made(folder: Path, memory: int = 2 << 30, upstream: str | None = None) -> SiteCache:
    (folder / "cache.toml").write_text(
        'origins = ["root://far.example:1094//store/"]\n[space]\nmax = "10GB"\n'
    )
    return SiteCache(name="n", memory=memory, directory=folder, url=upstream or "")


def said(mode: str, message: str = "") -> Noted:
    return Noted(
        p="a1.r0.i1",
        s=1,
        topic="cache",
        program=None,
        job=None,
        mode=mode,
        message=message,
        numbers={},
        at_us=0,
    )


def test_pilots_get_one_configuration_with_places_for_what_only_the_node_knows(tmp_path: Path) -> None:
    found = node_definition(made(tmp_path))

    assert found is not None
    assert (found.memory_mb, found.ram_mb, found.program) == (2048, 1024, "xrootd")
    for line in (
        "oss.localroot {dir}/data",
        "acc.authdb {dir}/run/authdb",
        "xrd.report 127.0.0.1:{report} every 5s link",
        "xrd.allow host 127.0.0.1",
    ):
        assert line in found.config.splitlines()
    assert "/store/" in found.authdb


def test_too_little_memory_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs 1178599424 bytes"):
        node_definition(made(tmp_path, memory=1 << 30))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"memory": 2 << 30}, "`memory` needs `directory`"),
        ({"url": "https://c:1094", "memory": 2 << 30, "directory": Path("/c")}, "of a cache to read through"),
        (
            {"url": "root://localhost", "memory": 2 << 30, "directory": Path("/c")},
            "of a cache to read through",
        ),
        ({}, "`url` is missing"),
    ],
)
def test_a_cache_that_cannot_be_run_or_reached_is_refused(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SiteCache(name="n", **wrong)  # type: ignore[arg-type]


def test_an_xrootd_in_the_directory_is_what_pilots_start(tmp_path: Path) -> None:
    """Also a link to what is on nodes alone."""
    cache = made(tmp_path)
    (tmp_path / "xrootd").symlink_to("/on/nodes/alone/xrootd")

    found = node_definition(cache)

    assert found is not None
    assert found.program == str(tmp_path / "xrootd")


@pytest.mark.parametrize(
    ("url", "address", "origins", "is_node"),
    [
        ("root://dtn01:21094", "root://dtn01:21094", ["root", "roots", "xroot", "xroots"], False),
        ("root://localhost:21094//", "root://localhost:21094", ["root", "roots", "xroot", "xroots"], True),
        ("https://dtn01:8443//https:", "https://dtn01:8443", ["https"], False),
        ("root://[2001:db8::1]:1094//davs://", "root://[2001:db8::1]:1094", ["davs"], False),
    ],
)
def test_the_url_of_a_cache_says_where_it_is_and_what_it_fetches(
    url: str, address: str, origins: list[str], is_node: bool
) -> None:
    read = msgspec.convert({"name": "n", "url": url}, SiteCache)

    assert (read.address, read.origins, read.is_node) == (address, origins, is_node)
    assert (read.upstream, read.settings, read.watched) == (None, None, None)


@pytest.mark.parametrize(
    "url", ["dtn01:21094", "root://dtn01/https:", "root://dtn01//gsiftp:", "root://dtn01//x", "root://[::1"]
)
def test_a_url_of_a_cache_that_says_anything_else_is_refused(url: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"url|IPv6|Port"):
        msgspec.convert({"name": "n", "url": url}, SiteCache)


def test_a_cache_in_memory_is_on_each_node_and_reads_through_its_url(tmp_path: Path) -> None:
    cache = made(tmp_path, upstream="root://dtn:1094")

    assert (cache.is_node, cache.address, cache.upstream) == (True, "root://localhost", "root://dtn:1094")
    assert (cache.settings, cache.watched) == (tmp_path / "cache.toml", None)
    assert made(tmp_path).upstream is None


def test_files_go_through_the_nodes_cache_only_where_it_may_read_them(tmp_path: Path) -> None:
    cache = made(tmp_path, upstream="root://dtn:1094")
    caches = NodeCaches([cache])

    (near,) = caches.near(cache, [FarCopy(url=URL, place="root://far.example:1094")])
    assert near.url == "root://{node_cache}//root://dtn:1094"
    assert not near.link.is_down
    assert caches.near(cache, [FarCopy(url="root://other:1094//store/f", place="root://other:1094")]) == []


def test_a_node_that_cannot_run_it_is_named_and_none_is_asked_until_one_can(tmp_path: Path) -> None:
    cache = made(tmp_path)
    caches = NodeCaches([cache])
    row = JobRoute(name="data", event=None, way="node", url=URL, why="through cache `n`: it is far")

    caches.heard(said("failed", "`xrootd` is not there on its PATH"))
    (near,) = caches.near(cache, [FarCopy(url=URL, place="root://far.example:1094")])
    assert near.link.is_down
    assert near.why_down == "`xrootd` is not there on its PATH (a1.r0)"
    assert "the next way: `xrootd` is not there" in caches.told(row).why

    caches.heard(said("runs"))
    assert caches.why_down() == ""
    assert caches.told(row) == row


def test_the_next_way_stands_below_that_through_the_nodes_cache(tmp_path: Path) -> None:
    first = FarRoute(
        way=RouteWay.NODE, url="root://{node_cache}//" + URL, place="root://far.example:1094", why="", via="n"
    )
    then = FarRoute(way=RouteWay.DIRECT, url=URL, place="root://far.example:1094", why="")

    write_url(tmp_path / "u", first, then)

    lines = (tmp_path / "u").read_text().splitlines()
    assert lines[::2] == [first.url, URL]
    assert lines[3] == "directly from root://far.example:1094"
