"""The caches that pilots run on their nodes: their configuration, and what they may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config.caching import SiteCache
from tidemill.errors import ConfigError
from tidemill.routing.routes import FarCopy
from tidemill.site.data.node_caches import NodeCaches
from tidemill_caches.engine.nodeform import node_definition

URL = "root://far.example:1094//store/d/f"


def made(folder: Path, memory: int = 2 << 30, upstream: str | None = None) -> SiteCache:
    (folder / "cache.toml").write_text(
        'origins = ["root://far.example:1094//store/"]\n[space]\nmax = "10GB"\n'
    )
    return SiteCache(name="n", memory=memory, directory=folder, url=upstream or "")


def test_pilots_get_one_configuration_with_places_for_what_only_the_node_knows(tmp_path: Path) -> None:
    found = node_definition(made(tmp_path))

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


def test_an_xrootd_in_the_directory_is_what_pilots_start(tmp_path: Path) -> None:
    """Also a link to what is on nodes alone."""
    cache = made(tmp_path)
    (tmp_path / "xrootd").symlink_to("/on/nodes/alone/xrootd")

    found = node_definition(cache)

    assert found.program == str(tmp_path / "xrootd")


def test_files_go_through_the_nodes_cache_only_where_it_may_read_them(tmp_path: Path) -> None:
    cache = made(tmp_path, upstream="root://dtn:1094")
    caches = NodeCaches([cache])

    (near,) = caches.near(cache, [FarCopy(url=URL, place="root://far.example:1094")])
    assert near.url == "root://{node_cache}//root://dtn:1094"
    assert not near.link.is_down
    assert caches.near(cache, [FarCopy(url="root://other:1094//store/f", place="root://other:1094")]) == []
