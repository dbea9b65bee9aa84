"""The site's I/O budget among fleets: whatever demands do, parts in use are never more than the whole."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidemill.site.fleet.io_budget import SETTLE_S, STEP_S, GivenPart, ceiling, parts

FLEETS = ("a", "b", "c", "d")
DEMANDS = st.dictionaries(st.sampled_from(FLEETS), st.floats(0, 100), max_size=4)


class Site(msgspec.Struct):
    """Fleets with what they were told, and what their leads go by: some read a work file late."""

    told: dict[str, list[GivenPart]] = {}
    in_use: dict[str, float] = {}
    unread: list[tuple[float, str, float]] = []

    def step(self, demands: dict[str, float], now_s: float, delay_s: float) -> dict[str, float]:
        for at_s, fleet, part in [each for each in self.unread if each[0] <= now_s]:
            self.in_use[fleet] = part
            self.unread.remove((at_s, fleet, part))
        news = parts(demands, self.told, now_s)
        for fleet, part in news.items():
            self.told.setdefault(fleet, []).append(GivenPart(part, now_s))
            self.unread = [each for each in self.unread if each[1] != fleet]
            self.unread.append((now_s + delay_s, fleet, part))
        return news


@given(st.lists(st.tuples(DEMANDS, st.floats(0, SETTLE_S), st.integers(1, 20)), min_size=1, max_size=12))
def test_parts_in_use_are_never_more_than_the_whole(
    story: list[tuple[dict[str, float], float, int]],
) -> None:
    site, now_s = Site(), 0.0
    for demands, delay_s, steps in story:
        for _ in range(steps):
            now_s += STEP_S
            site.step(demands, now_s, delay_s)
            assert sum(site.in_use.values()) <= 1 + 1e-6
            assert sum(ceiling(each, now_s) for each in site.told.values()) <= 1 + 1e-6


@given(st.lists(DEMANDS, min_size=1, max_size=5))
def test_every_fleet_with_demand_gets_about_its_part_in_half_a_minute(story: list[dict[str, float]]) -> None:
    site, now_s = Site(), 0.0
    for demands in story:
        total = sum(demands.values())
        for _ in range(40):
            now_s += STEP_S
            site.step(demands, now_s, 0.5)
        for fleet in demands if total > 0 else ():
            aim = demands[fleet] / total
            assert site.told[fleet][-1].part >= 0.8 * aim - 2e-3 if aim > 2e-3 else True
        assert site.step(demands, now_s + STEP_S, 0.5) == {}  # and then it is quiet


def test_without_demand_all_stays_as_it_is() -> None:
    assert parts({"a": 0.0}, {"a": [GivenPart(1.0, 0.0)]}, 100.0) == {}
