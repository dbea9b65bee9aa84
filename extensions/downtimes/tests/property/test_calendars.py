"""Properties of what is read of downtimes: calendars are bounded, and any text is one or is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import ConfigError
from tidemill_downtimes import ical
from tidemill_downtimes.entries import (
    DAY_US,
    ENTRIES_MAX,
    HORIZON_DAYS,
    LONGEST_DAYS,
    Entry,
    Parsed,
    settled,
)

NOW_US = 1_800_000_000_000_000
ENTRIES = st.lists(
    st.builds(
        Entry,
        st.sampled_from(["a", "b"]),
        st.integers(NOW_US - 100 * DAY_US, NOW_US + 500 * DAY_US),
        st.none() | st.integers(NOW_US - 100 * DAY_US, NOW_US + 10_000 * DAY_US),
        st.text(max_size=300),
    ),
    max_size=50,
)


@given(ENTRIES)
def test_what_counts_of_a_calendar_overlaps_nowhere_and_is_bounded(entries: list[Entry]) -> None:
    found = settled(Parsed(entries, []), now_us=NOW_US).downtimes
    assert len(found) <= ENTRIES_MAX
    for site in ("a", "b"):
        mine = [each for each in found if each.site == site]
        assert all(one.end_us < other.start_us for one, other in pairwise(mine))
    for each in found:
        assert each.end_us > NOW_US
        assert each.start_us <= NOW_US + HORIZON_DAYS * DAY_US
        assert each.end_us - each.start_us <= len(entries) * LONGEST_DAYS * DAY_US


LINES = st.lists(
    st.sampled_from([
        "BEGIN:VCALENDAR", "END:VCALENDAR", "BEGIN:VEVENT", "END:VEVENT", "DTSTART:20270101T000000Z", "DTEND:20270102",
        "DTSTART;TZID=Europe/Berlin:20240229T020000", "DURATION:P9999W", "DURATION:PT1H",
        "RRULE:FREQ=MONTHLY;BYDAY=5MO",
        "RRULE:FREQ=WEEKLY;INTERVAL=999", "RRULE:FREQ=DAILY;UNTIL=99991231", "EXDATE:20270101T000000Z", " folded",
        "DTSTART:99991231T235959Z", "DTSTART:00010101T000000Z", "SUMMARY:x\\n\\,", "RRULE:FREQ=MONTHLY;BYMONTHDAY=31",
    ]) | st.text(max_size=30),
    max_size=25,
)  # fmt: skip


@settings(max_examples=300, deadline=2000)
@given(LINES)
def test_any_text_is_a_calendar_or_refused(lines: list[str]) -> None:
    text = "\r\n".join(["BEGIN:VCALENDAR", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR"])
    now = datetime(2026, 11, 20, tzinfo=UTC)
    try:
        parsed = ical.parse(text, site="x", now=now)
    except ConfigError:
        return
    found = settled(parsed, now_us=int(now.timestamp() * 1e6))
    assert len(found.downtimes) <= ENTRIES_MAX
