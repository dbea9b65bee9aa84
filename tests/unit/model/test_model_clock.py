"""Durations as users of batch systems write them."""

from __future__ import annotations

import pytest

from tidemill import clock


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90s", 90),
        ("90m", 5400),
        ("1.5h", 5400),
        ("6h", 21600),
        ("2d", 172800),
        ("5:00", 300),
        ("01:30:00", 5400),
        ("2-00:00:00", 172800),
        ("1-02:03:04", 93784),
        (" 10m ", 600),
    ],
)
def test_a_duration_is_read_as_batch_systems_write_it(text: str, seconds: int) -> None:
    assert clock.parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "-5m", "1:2:3:4", "1-2", "1-02:03", "5x", "::", "inf", "nan", "nanh", "infs"]
)
def test_what_is_no_duration_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="`"):
        clock.parse_duration_s(text)


def test_a_duration_without_a_unit_is_refused_with_both_readings() -> None:
    for text in ("30", " 090 "):
        number = text.strip()
        with pytest.raises(ValueError, match=f"write `{number}s` for seconds, `{number}m` for minutes"):
            clock.parse_duration_s(text)


def test_a_time_is_told_in_utc() -> None:
    assert clock.utc_text(1_795_216_501_000_000) == "2026-11-20T23:15:01Z"


def test_the_monotonic_clock_never_goes_back() -> None:
    times = [clock.monotonic_s() for _ in range(1000)]

    assert times == sorted(times)


def test_both_wall_clocks_tell_the_same_time() -> None:
    before = clock.now_s()
    between_us = clock.now_us()
    after = clock.now_s()

    assert before * 1_000_000 <= between_us < (after + 1) * 1_000_000
