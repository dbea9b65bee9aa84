"""Sums that sites report of themselves: rates of files that agents move, and reasons to stop that they are."""

from __future__ import annotations

import msgspec

from tidemill.wire.api import SiteRow
from tidemill.wire.monitoring import AreaSums, MoveSums, SiteSums
from tidemill_stress import saturation
from tidemill_stress.plan import StopPlan, StressStep
from tidemill_stress.run import StepRun
from tidemill_stress.series.site_sums import SumsGuard, SumsSource, series_of

S = 1_000_000


def sums(
    at_s: float, *, moved: int = 0, ops: float = 0, over: int = 0, harm_s: float | None = 0.0, since: int = 1
) -> SiteSums:
    return SiteSums(
        since_us=since, at_us=int(at_s * S), harm_s=harm_s,
        moves=[MoveSums(way="in", done=moved // 100, failed=0, bytes=moved)],
        areas=[AreaSums(area="sw", ops=ops, bytes=0, over=over, ops_per_s=2000)],
    )  # fmt: skip


def row(of: SiteSums | None, name: str = "here") -> SiteRow:
    return SiteRow(
        name=name, state="UP", epoch=1, host="", version="", seen_us=0, capacity={"nodes": 2}, allocations={},
        applications=[], leased_events=0, sums=of,
    )  # fmt: skip


def test_rates_of_moves_and_areas_stand_between_two_reports() -> None:
    found = {
        each.title: each
        for each in series_of("here", [sums(100, ops=50), sums(110, moved=5000, ops=19_050)], 0, 200)
    }
    assert found["bytes moved to the site"].points == [(105.0, 500.0)]
    assert found["files moved to the site"].points == [(105.0, 5.0)]
    assert found["bytes moved to the site"].source == "transfers of here"
    assert (found["operations on sw"].points, found["operations on sw"].limit) == ([(105.0, 1900.0)], 2000)
    assert "failed moves to the site" not in found  # it stayed zero


def test_an_agent_that_was_started_again_gives_no_rate_with_the_one_before_it() -> None:
    looks = [sums(100, moved=9000), sums(110, moved=10, since=2), sums(120, moved=60, since=2)]
    (moved,) = [each for each in series_of("here", looks, 0, 200) if each.unit == "bytes/s"]
    assert moved.points == [(115.0, 5.0)]


def test_a_report_that_is_seen_twice_counts_once_and_only_the_site_and_the_interval_count() -> None:
    source = SumsSource()
    for now in (sums(100), sums(100), sums(110, moved=1000), sums(110, moved=1000)):
        source.observe([row(now), row(sums(now.at_us / S, moved=7), "other"), row(None, "old")])
    (moved,) = [each for each in source.series("here", 0, 200) if each.unit == "bytes/s"]
    assert moved.points == [(105.0, 100.0)]
    assert source.series("here", 106, 200) == []
    assert source.series("old", 0, 200) == []


def test_a_budget_that_is_full_is_named_as_what_saturated() -> None:
    steps = []
    for number, rate in enumerate((400, 900, 1950), 1):
        series = series_of("here", [sums(100), sums(110, ops=10 * rate)], 0, 200)
        step = StressStep(number, "here", 4 * number)
        steps.append(StepRun(step=step, campaign="", status="measured", start_s=90, end_s=120, series=series))
    (found,) = saturation.find(steps)
    assert (found.title, found.level, found.source) == ("operations on sw", 12, "I/O budget of here")


def guard(stop: StopPlan, *looks: SiteSums | None, site: str = "here") -> list[str]:
    one = SumsGuard(stop, site)
    for each in looks:
        one.observe([row(each), row(sums(1, over=99, harm_s=9e9), "other")])
    return one.over()


def test_an_area_over_its_budget_stops_and_what_was_before_the_level_does_not() -> None:
    assert guard(StopPlan(), sums(1, over=3), sums(2, over=3)) == []
    assert guard(StopPlan(), sums(1, over=3), sums(2, over=5)) == [
        "site here exceeded its I/O budget of area `sw`: 2 reports of its nodes (`stop.io_budget`)"
    ]
    assert guard(StopPlan(io_budget=False), sums(1, over=3), sums(2, over=5)) == []


def test_waits_of_regular_jobs_stop_above_their_limit() -> None:
    assert guard(StopPlan(harm_s=60), sums(1, harm_s=500), sums(2, harm_s=560)) == []
    assert guard(StopPlan(harm_s=60), sums(1, harm_s=500), sums(2, harm_s=530), sums(3, harm_s=561)) == [
        "regular jobs of site here have waited 61 s because of Tidemill during this level, "
        "more than 60 s (`stop.harm_s`)"
    ]
    assert guard(StopPlan(harm_s=60), sums(1, harm_s=None), sums(2, harm_s=None)) == []


def test_sums_that_begin_anew_count_from_there_and_sites_without_sums_say_nothing() -> None:
    again = sums(2, over=40, harm_s=400, since=2)
    assert guard(StopPlan(), sums(1), again) == []
    assert guard(StopPlan(), sums(1), again, msgspec.structs.replace(again, harm_s=701.0)) != []
    assert guard(StopPlan(), None, None) == []
    assert guard(StopPlan(), sums(1), sums(2), site="") == []
