"""What a site shows of the caches that it runs: from their directories, whatever is in them."""

from __future__ import annotations

from pathlib import Path

from extensions.caches.tests.unit.test_cache_ledger import MB, close

from tidemill import clock
from tidemill.config.caching import SiteCache
from tidemill.site.applications.job_reads import JobReads
from tidemill.site.watch.cache_views import SiteCaches, cache_samples, view_of
from tidemill_caches.engine.state import CacheState, host_name, write_state
from tidemill_caches.figures.collector import FiguresCollector, sums_path


def cache(directory: Path) -> SiteCache:
    return SiteCache(name="dtn", url="root://127.0.0.1:1094", directory=directory)


def test_a_directory_that_was_never_used_or_is_broken_is_said_and_stops_nothing(tmp_path: Path) -> None:
    assert view_of(cache(tmp_path)).state == "stopped"
    (tmp_path / "run").mkdir()
    (tmp_path / "figures").mkdir()
    (tmp_path / "run" / "state.json").write_text("{")
    sums_path(tmp_path).write_text("[1")
    view = view_of(cache(tmp_path))
    assert view.state == "unknown"
    assert len(view.findings) == 2


def test_the_figures_of_a_cache_are_shown_and_its_death_too(tmp_path: Path) -> None:
    for name in ("run", "figures"):
        (tmp_path / name).mkdir()
    collector = FiguresCollector(tmp_path)
    collector.ledger.add_close(close(hit_bytes=10 * MB))
    collector.ledger.add_close(close(access=2, hit_bytes=10 * MB))
    collector.ledger.wire_origin_bytes = 10 * MB + 9
    collector.close()
    state = CacheState(
        host=host_name(),
        port=1094,
        phase="running",
        at_us=clock.now_us(),
        supervisor_pid=1,
        supervisor_started_us=1,
    )
    write_state(tmp_path, state, durable=False)
    site = SiteCaches([cache(tmp_path)], JobReads())
    (view,) = site.views()
    assert view.state == "dead"  # no process holds the lock of its supervisor
    assert (view.total.served, view.total.known, view.total.fetched) == (20 * MB, 10 * MB, 10 * MB)
    assert (view.wire_origin, view.believe, [each.name for each in view.datasets]) == (
        10 * MB + 9,
        "",
        ["/ds"],
    )
    samples = {(each.name, *dict(each.labels).values()): each.value for each in cache_samples(site.views())}
    assert samples["tidemill_cache_up", "dtn"] == 0
    assert samples["tidemill_cache_bytes_total", "dtn", "known"] == 10 * MB


def test_sums_that_cannot_be_read_are_put_aside_and_counting_goes_on(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    sums_path(tmp_path).write_text("{}x")
    collector = FiguresCollector(tmp_path)
    collector.close()
    assert (tmp_path / "figures" / "sums.json.unreadable").read_text() == "{}x"
    again = FiguresCollector(tmp_path)
    assert again.ledger.total.opens == 0
    again.close()
