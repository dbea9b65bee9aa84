"""What a site tells of its caches, and of what payloads read through them."""

from __future__ import annotations

import msgspec

from tidemill import clock
from tidemill.config.caching import SiteCache
from tidemill.image.profile import RemoteReads
from tidemill.net.names import HostNames
from tidemill.server.web.caches import quantile_us
from tidemill.site.applications.job_reads import JOBS_MAX, PLACES_MAX, JobReads
from tidemill.site.watch.cache_views import SiteCaches, cache_samples, view_of


def cache(url: str = "root://127.0.0.1:1094") -> SiteCache:
    return SiteCache(name="dtn", url=url)


def reads(address: str = "127.0.0.1", port: int = 1094, **changes: int) -> RemoteReads:
    return RemoteReads(
        address=address, port=port, connections=1, reads=2, waits=1, wait_us=5, wait_log2_us=[0, 0, 1],
        **{"bytes": 100, **changes},
    )  # fmt: skip


def test_a_cache_of_others_has_a_row_and_no_figures() -> None:
    view = view_of(cache())
    assert (view.state, view.total.opens) == ("other", 0)
    assert not list(cache_samples(SiteCaches([cache()], JobReads()).views()))


def test_reads_of_a_job_are_told_apart_by_the_address() -> None:
    jobs = JobReads()
    jobs.add(7, "sim", [reads(), reads("192.0.2.1", 443), reads("::1", 5, bytes=9)])
    jobs.add(7, "sim", [reads()])
    rows = {each.place: each for each in SiteCaches([cache()], jobs).reads()}
    assert {place: each.way for place, each in rows.items()} == {
        "dtn": "cache", "192.0.2.1:443": "direct", "[::1]:5": "direct",
    }  # fmt: skip
    assert (rows["dtn"].bytes, rows["dtn"].payloads, rows["dtn"].wait_log2_us) == (200, 2, [0, 0, 2])
    node = SiteCaches([cache(url="root://localhost:1094")], jobs, names=HostNames(lambda _: ["127.0.0.1"]))
    end_s = clock.monotonic_s() + 60
    while {each.way for each in node.reads()} != {"node", "direct"}:
        assert clock.monotonic_s() < end_s, "the address of the nodes' cache is not known"


def test_jobs_and_places_are_bounded_and_no_byte_is_lost() -> None:
    jobs = JobReads()
    for job in range(JOBS_MAX + 50):
        jobs.add(job, "sim", [reads(port=port) for port in range(1, 100)])
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
    view = view_of(cache())
    assert msgspec.json.decode(msgspec.json.encode(view), type=type(view)) == view
