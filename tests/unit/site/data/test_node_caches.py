"""The caches that pilots run on their nodes: their configuration, and what routing makes of what pilots say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidemill.config.caching import SiteCache
from tidemill.routing.routes import FarRoute, RouteWay
from tidemill.site.data.routing import write_url

URL = "root://far.example:1094//store/d/f"


def made(folder: Path, upstream: str | None = None) -> SiteCache:
    return SiteCache(name="n", memory=2 << 30, directory=folder, url=upstream or "")


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


def test_the_next_way_stands_below_that_through_the_nodes_cache(tmp_path: Path) -> None:
    first = FarRoute(
        way=RouteWay.NODE, url="root://{node_cache}//" + URL, place="root://far.example:1094", why="", via="n"
    )
    then = FarRoute(way=RouteWay.DIRECT, url=URL, place="root://far.example:1094", why="")

    write_url(tmp_path / "u", first, then)

    lines = (tmp_path / "u").read_text().splitlines()
    assert lines[::2] == [first.url, URL]
    assert lines[3] == "directly from root://far.example:1094"
