"""What a site tells of its caches: from their directories, whatever is in them, and from what payloads read."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.unit.cache.test_cache_ledger import MB, close

from tidemill import clock
from tidemill.cache.engine.state import CacheState, host_name, write_state
from tidemill.cache.figures.collector import FiguresCollector, sums_path
from tidemill.config.caching import SiteCache
from tidemill.image.profile import RemoteReads
from tidemill.net.names import HostNames
from tidemill.server.web.caches import quantile_us
from tidemill.site.applications.job_reads import JOBS_MAX, PLACES_MAX, JobReads
from tidemill.site.watch.cache_views import SiteCaches, cache_samples, view_of


def cache(directory: Path | None, url: str = "root://127.0.0.1:1094") -> SiteCache:
    return SiteCache(name="dtn", url=url, directory=directory)


def reads(address: str = "127.0.0.1", port: int = 1094, **changes: int) -> RemoteReads:
    return RemoteReads(
        address=address, port=port, connections=1, reads=2, waits=1, wait_us=5, wait_log2_us=[0, 0, 1],
        **{"bytes": 100, **changes},
    )  # fmt: skip


def test_a_cache_of_others_has_a_row_and_no_figures() -> None:
    view = view_of(cache(None))
    assert (view.state, view.total.opens) == ("other", 0)
    assert not list(cache_samples(SiteCaches([cache(None)], JobReads()).views()))


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
    collector.ledger.take(close(hit_bytes=10 * MB))
    collector.ledger.take(close(access=2, hit_bytes=10 * MB))
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
    assert view.state == "dead"  # nobody holds the lock of its supervisor
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


def test_reads_of_a_job_are_told_apart_by_the_address() -> None:
    jobs = JobReads()
    jobs.take(7, "sim", [reads(), reads("192.0.2.1", 443), reads("::1", 5, bytes=9)])
    jobs.take(7, "sim", [reads()])
    rows = {each.place: each for each in SiteCaches([cache(None)], jobs).reads()}
    assert {place: each.way for place, each in rows.items()} == {
        "dtn": "cache", "192.0.2.1:443": "direct", "[::1]:5": "direct",
    }  # fmt: skip
    assert (rows["dtn"].bytes, rows["dtn"].payloads, rows["dtn"].wait_log2_us) == (200, 2, [0, 0, 2])
    node = SiteCaches(
        [cache(None, url="root://localhost:1094")], jobs, names=HostNames(lambda _: ["127.0.0.1"])
    )
    end_s = clock.monotonic_s() + 60
    while {each.way for each in node.reads()} != {"node", "direct"}:
        assert clock.monotonic_s() < end_s, "the address of the nodes' cache is not known"


def test_jobs_and_places_are_bounded_and_no_byte_is_lost() -> None:
    jobs = JobReads()
    for job in range(JOBS_MAX + 50):
        jobs.take(job, "sim", [reads(port=port) for port in range(1, 100)])
    rows = list(jobs.rows({}))
    assert len(rows) == JOBS_MAX * (PLACES_MAX + 1)
    assert sum(each.bytes for each in rows) == JOBS_MAX * 99 * 100
    assert rows[0].job == JOBS_MAX + 49


def test_the_share_of_waits_below_a_time_is_the_bound_of_its_bin() -> None:
    assert quantile_us([], 0.5) is None
    assert quantile_us([0, 0, 10], 0.5) == 8
    assert quantile_us([99, 0, 0, 1], 0.99) == 2
    assert quantile_us([99, 0, 0, 1], 1.0) == 16


def test_views_are_bounded_messages() -> None:
    view = view_of(cache(None))
    assert msgspec.json.decode(msgspec.json.encode(view), type=type(view)) == view
