"""Readings from a file system that hangs: the tick goes on with what is known."""

from __future__ import annotations

import threading
from pathlib import Path

from tidemill.config.caching import SiteCache
from tidemill.site.applications.job_reads import JobReads
from tidemill.site.nodes.background_reading import BackgroundReading
from tidemill.site.nodes.holdings import CacheHoldings
from tidemill.site.watch.cache_views import SiteCaches
from tidemill.wire.far import CacheView


def test_a_reading_that_hangs_is_begun_once_and_its_last_value_holds() -> None:
    begun, go = [0], threading.Event()

    def read() -> int:
        begun[0] += 1
        if begun[0] > 1:
            go.wait()
        return begun[0]

    reading = BackgroundReading(read, 0, every_s=0.0)
    assert reading.now() == 1
    assert [reading.now() for _ in range(50)] == [1] * 50
    assert (begun[0], reading.under_way_s > 0) == (2, True)
    go.set()


def test_a_reading_that_fails_keeps_what_was_read_before() -> None:
    values = iter([7])
    reading = BackgroundReading(lambda: next(values), 0, every_s=0.0)
    assert [reading.now() for _ in range(3)] == [7, 7, 7]
    assert reading.under_way_s == 0


def test_a_cache_whose_directory_hangs_hides_no_other_and_stops_no_tick(tmp_path: Path) -> None:
    go = threading.Event()
    hung, well = (
        SiteCache(name=name, url="root://h:1", directory=tmp_path / name) for name in ("hung", "well")
    )

    def view(cache: SiteCache) -> CacheView:
        if cache is hung:
            go.wait()
        return CacheView(name=cache.name, state="running")

    def held(directory: Path) -> list[tuple[str, float]]:
        if directory == hung.directory:
            go.wait()
        return [("root://far.example//store/a", 1.0), ("root://far.example//store/b", 0.25)]

    views = SiteCaches([hung, well], JobReads(), view=view)
    contents = CacheHoldings([hung, well], read=held)
    assert [each.state for each in views.views()] == ["unknown", "running"]
    assert len(contents.now()) == 2
    go.set()
