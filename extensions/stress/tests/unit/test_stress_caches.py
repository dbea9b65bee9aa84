"""Rates of caches from sums of several times: between two of them, never across a new beginning."""

from __future__ import annotations

from tidemill.wire.far import CacheFigures, CacheView
from tidemill_stress.series.site_sums import CacheLook, cache_series_of


def look(at_s: float, served: int, *, known: int = 0, since_us: int = 1) -> CacheLook:
    return CacheLook(
        at_s, CacheView(name="dtn", since_us=since_us, total=CacheFigures(served=served, known=known))
    )


def test_rates_stand_at_the_middle_of_their_interval_and_what_stays_zero_is_left_out() -> None:
    (found,) = cache_series_of("cache dtn", [look(100, 500), look(110, 1500), look(130, 1500)], 100, 200)
    assert (found.title, found.unit, found.source) == ("bytes to clients", "bytes/s", "cache dtn")
    assert found.points == [(105, 100.0), (120, 0.0)]


def test_sums_that_began_anew_give_no_rate() -> None:
    looks = [look(100, 9000), look(110, 10, since_us=2), look(120, 60, since_us=2)]
    (found,) = cache_series_of("cache dtn", looks, 0, 200)
    assert found.points == [(115, 5.0)]


def test_only_the_interval_counts() -> None:
    looks = [look(100, 0), look(110, 100, known=100), look(120, 300, known=100)]
    served, *rest = cache_series_of("cache dtn", looks, 112, 200)
    assert served.points == [(115, 20.0)]
    assert rest == []


def test_a_clock_that_stood_still_divides_nothing() -> None:
    assert cache_series_of("cache dtn", [look(100, 0), look(100, 50)], 0, 200) == []
