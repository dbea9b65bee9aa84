"""When a site counts as down."""

from __future__ import annotations

from tidemill.server.hospital.readings import Downtime, down_at

NOW_US = 1_795_176_000_000_000
HOUR_US = 3_600_000_000


def test_a_site_is_down_from_shortly_before_until_the_end_of_all_that_follow_at_once() -> None:
    calendar = [
        Downtime("a", NOW_US + HOUR_US, NOW_US + 2 * HOUR_US, "x"), Downtime("b", NOW_US - HOUR_US, NOW_US, "over"),
        Downtime("a", NOW_US + 2 * HOUR_US, NOW_US + 5 * HOUR_US, "y"),
    ]  # fmt: skip
    assert down_at(calendar, now_us=NOW_US, lead_s=3599) == {}
    assert down_at(calendar, now_us=NOW_US, lead_s=3600) == {"a": (NOW_US + 5 * HOUR_US, "x")}
