"""The page of a run: which levels it shows in which state, and what its charts draw."""

from __future__ import annotations

from tidemill.model.job import PlannedLevel
from tidemill.wire.api import CampaignRow, PayloadTime, PayloadUsage
from tidemill_stress.run_page import QUIET_US, LevelTimes, levels, run_of, views

S = 1_000_000


def payload(slot: int, start_s: float, length_s: float) -> PayloadTime:
    return PayloadTime(
        first=0, count=1, payloads=1, node="n1", slot=slot, started_us=int(start_s * S),
        ended_us=int((start_s + length_s) * S), wall_us=int(length_s * S), setup_us=0, user_us=int(length_s * S / 2),
        system_us=0,
    )  # fmt: skip


def steady(slots: int, from_s: int, until_s: int) -> list[PayloadTime]:
    return [payload(slot, at, 10) for slot in range(slots) for at in range(from_s, until_s - 9, 10)]


def test_a_campaign_of_a_level_names_its_run_and_others_do_not() -> None:
    assert run_of("stress-night-20261125T030000Z-12-64a1b2c3d4e5f") == ("night-20261125T030000Z", 12)
    assert run_of("stress-night") is None
    assert run_of("night-20261125T030000Z-12-64a1b2c3d4e5f") is None


def test_levels_on_one_axis_with_a_line_for_each_and_zero_between_them() -> None:
    four, eight = PlannedLevel(title="4", level=4), PlannedLevel(title="8", level=8)
    known = [LevelTimes(four, steady(4, 1000, 1300), True), LevelTimes(eight, steady(8, 1400, 1700), False)]
    (found,) = views(known, now_us=1700 * S)
    running = found.charts[0]
    assert running.drawing.count('class="member"') == 2
    assert "<title>level 4</title>" in running.drawing
    assert (running.title, running.top) == ("Payloads that run", "10")
    assert 5 < float(running.now) < 6  # 300 s of 4, 100 s of 0, 288 s of 8
    assert found.marks[-1] <= "00:28:08"  # what runs is known up to a payload's length and 2 s ago


def test_each_site_has_its_charts_on_the_common_axis() -> None:
    known = [
        LevelTimes(PlannedLevel(title=f"{site}: 2", level=2, site=site), steady(2, begin, 1300), True)
        for site, begin in (("a", 1000), ("b", 1100))
    ]
    first, second = views(known, now_us=2000 * S)
    assert (first.site, second.site) == ("a", "b")
    assert first.marks == second.marks
    assert views([], now_us=0) == []


def campaign(*, state: str, at_s: int) -> CampaignRow:
    return CampaignRow(
        name="stress-x-1-0011223344", owner="", jobs=1, events=10, events_done=1, events_failed=0,
        states={state: 1}, usage=PayloadUsage(), failures={}, created_us=at_s * S, first_started_us=None,
        last_ended_us=None, shares=1,
    )  # fmt: skip


def test_levels_that_have_not_begun_are_planned_while_the_run_goes_on_and_not_run_when_it_was_broken_off() -> (
    None
):
    planned = [PlannedLevel(title=str(level), level=level) for level in (4, 8)]
    runs = levels(planned, {1: campaign(state="RUNNING", at_s=1000)}, {}, now_us=9_000 * S)
    assert [each.state for each in runs] == ["running", "planned"]
    between = levels(planned, {1: campaign(state="CANCELED", at_s=1000)}, {}, now_us=1_010 * S)
    assert [each.state for each in between] == ["ended", "planned"]
    left = levels(planned, {1: campaign(state="CANCELED", at_s=1000)}, {}, now_us=1_001 * S + QUIET_US)
    assert [each.state for each in left] == ["ended", "not run"]
