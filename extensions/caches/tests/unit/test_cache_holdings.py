"""What a site reports of its caches' contents."""

from __future__ import annotations

from pathlib import Path

import msgspec
from extensions.caches.tests.cached_files import running_cache

from tidemill.site.nodes.holdings import CacheHoldings
from tidemill.wire.far import HeldData


def test_a_site_reports_what_its_running_caches_hold(tmp_path: Path) -> None:
    with running_cache(tmp_path / "c", "root://far.example:1095//store/") as cache:
        assert CacheHoldings([cache]).now() == [
            HeldData("root://far.example:1095//store/a", 1.0),
            HeldData("root://far.example:1095//store/b", 0.25),
        ]


def test_a_cache_that_does_not_run_holds_nothing_that_could_be_read(tmp_path: Path) -> None:
    with running_cache(tmp_path / "c", "root://far.example//") as cache:
        pass

    assert CacheHoldings([cache]).now() == []


def test_a_summary_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    with running_cache(tmp_path / "c", "root://far.example//") as cache:
        (tmp_path / "c/run/contents.json").write_bytes(b"\xff")
        others = msgspec.structs.replace(cache, directory=None)
        assert CacheHoldings([cache, others]).now() == []
