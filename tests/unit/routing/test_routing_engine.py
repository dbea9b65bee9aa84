"""A site that runs caches: what the core asks of the extension that runs them, and what it says without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worlds.home.installed import add_extension, installed_only

from tidemill.cli.site.caches import examine_caches
from tidemill.config.caching import SiteCache
from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError
from tidemill.extensions import CACHES
from tidemill.routing.engine import check_engine, engine
from tidemill.routing.links import RouteLinks
from tidemill.routing.routes import FarCopy
from tidemill.site.data.far_reads import CacheShares, FarReads
from tidemill.site.data.node_caches import NodeCaches
from tidemill.site.data.routing import JobRoute
from tidemill.site.nodes.holdings import CacheHoldings
from tidemill.site.watch.cache_views import view_of
from tidemill.wire.far import HeldData
from tidemill.wire.node import Noted

URL = "root://far.example:1094//store/d/f"
MODULE = """
from tidemill.errors import SiteError
from tidemill.routing.engine import CacheContents, CacheEngine, CacheHealth, PastTrouble
from tidemill.wire.far import CacheView
from tidemill.wire.staged import NodeCacheDef

def holdings(directory):
    if directory.name == "broken":
        raise SiteError("its list is broken")
    return [("root://far.example//store/d", 0.5)]

ODD = CacheEngine(
    health=lambda directory: CacheHealth(past=[PastTrouble(check="process", found="it fell", first_us=5, last_us=5)]),
    contents=lambda directory: CacheContents(7, lambda path: 0.25 if path == "/store/d/f" else None),
    holdings=holdings,
    view=lambda cache: CacheView(name=cache.name, state="running"),
    readable=lambda cache: lambda url: url.startswith("root://far.example"),
    on_nodes=lambda cache: NodeCacheDef(
        name=cache.name, program="xrootd", memory_mb=2048, ram_mb=1024, config="", authdb="", environment={}
    ),
    about=lambda cache: "; it is odd",
)
NOT_ONE = 7
"""


def own(directory: Path) -> SiteCache:
    return SiteCache(name="own", url="root://dtn01:21094", directory=directory)


OTHERS = SiteCache(name="other", url="root://localhost:1094")


def add(folder: Path, name: str = "ODD") -> None:
    add_extension(folder, "odd", f"[{CACHES}]\nxcache = odd_cache_engine:{name}\n", odd_cache_engine=MODULE)


def said(mode: str, message: str = "") -> Noted:
    return Noted(
        p="a1.r0.i1", s=1, topic="cache", program=None, job=None, mode=mode, message=message, numbers={}, at_us=0
    )  # fmt: skip


def test_a_cache_that_the_site_runs_needs_the_extension_and_one_of_others_does_not(tmp_path: Path) -> None:
    with installed_only(tmp_path / "none"):
        check_engine([OTHERS])
        with pytest.raises(ConfigError, match="needs the extension `caches`") as raised:
            check_engine([OTHERS, own(tmp_path)])
        config = SiteConfig(name="s", server="unix:/x", caches=[own(tmp_path), OTHERS])
        ours, other = examine_caches(config, offline=True)
        assert view_of(OTHERS).state == "other"
    assert raised.value.hint == "install it: pip install 'tidemill[caches]'"
    assert (ours.state, other.state) == ("fail", "ok")
    assert "needs the extension `caches`" in ours.found
    assert "tidemill[caches]" in ours.hint


def test_an_agent_does_not_start_where_what_runs_its_caches_does_not_fit(tmp_path: Path) -> None:
    about = tmp_path / "tidemill_caches-0.0.9.dist-info"
    about.mkdir()
    (about / "entry_points.txt").write_text(f"[{CACHES}]\nxcache = tidemill_caches.site:ENGINE\n")
    site = tmp_path / "site"
    site.mkdir(mode=0o700)
    (site / "site.toml").write_text(
        f'name = "s"\nserver = "unix:{tmp_path}/socket"\n'
        f'[[caches]]\nname = "c"\nurl = "root://localhost:1094"\ndirectory = "{tmp_path}/c"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "tidemill.cli.main", "site", "run", str(site), "--once"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TIDEMILL_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "its version is 0.0.9" in done.stderr
    assert "pip install 'tidemill[caches]'" in done.stderr


def test_what_is_not_an_engine_is_refused_in_words(tmp_path: Path) -> None:
    add(tmp_path, "NOT_ONE")
    with installed_only(tmp_path), pytest.raises(ConfigError, match="is not a `CacheEngine`"):
        engine()


def test_health_contents_and_datasets_are_those_that_the_engine_knows(tmp_path: Path) -> None:
    add(tmp_path / "installed")
    links = RouteLinks(tmp_path / "links.json", 300)
    with installed_only(tmp_path / "installed"):
        caches = [own(tmp_path), OTHERS]
        assert "it fell, at " in FarReads(caches, links).noted("own", 0, 9)
        assert FarReads(caches, links).noted("other", 0, 9) == ""
        share = CacheShares(caches).share("own", URL)
        assert share is not None
        assert share.share == 0.25
        assert CacheShares(caches).share("own", "root://far.example//store/e/f") is None
        assert CacheShares(caches).share("other", URL) is None
        assert CacheHoldings(caches).now() == [HeldData("root://far.example//store/d", 0.5)]
        assert CacheHoldings([own(tmp_path / "broken")]).now() == []
        assert (view_of(caches[0]).state, view_of(OTHERS).state) == ("running", "other")


def test_files_go_through_the_nodes_cache_only_where_it_may_read_them(tmp_path: Path) -> None:
    add(tmp_path)
    cache = SiteCache(name="n", memory=2 << 30, directory=tmp_path, url="root://dtn:1094")
    with installed_only(tmp_path):
        caches = NodeCaches([cache])
    (near,) = caches.near(cache, [FarCopy(url=URL, place="root://far.example:1094")])
    assert near.url == "root://{node_cache}//root://dtn:1094"
    assert not near.link.is_down
    assert caches.near(cache, [FarCopy(url="root://other:1094//store/f", place="root://other:1094")]) == []


def test_a_node_that_cannot_run_it_is_named_and_none_is_asked_until_one_can(tmp_path: Path) -> None:
    add(tmp_path)
    cache = SiteCache(name="n", memory=2 << 30, directory=tmp_path)
    with installed_only(tmp_path):
        caches = NodeCaches([cache])
    row = JobRoute(name="data", event=None, way="node", url=URL, why="through cache `n`: it is far")

    caches.on_note(said("failed", "`xrootd` is not there on its PATH"))
    (near,) = caches.near(cache, [FarCopy(url=URL, place="root://far.example:1094")])
    assert near.link.is_down
    assert near.why_down == "`xrootd` is not there on its PATH (a1.r0)"
    assert "the next way: `xrootd` is not there" in caches.with_node_faults(row).why

    caches.on_note(said("runs"))
    assert caches.why_down() == ""
    assert caches.with_node_faults(row) == row
