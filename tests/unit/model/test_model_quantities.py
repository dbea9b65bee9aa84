"""Quantities as text."""

from __future__ import annotations

from tidemill.model.quantities import bytes_text, duration_text, percent_text, rate_text


def test_numbers_as_people_read_them() -> None:
    assert [duration_text(s) for s in (None, 0.44, 12, 185, 7620, 273600)] == [
        "-", "0.4 s", "12 s", "3 m 05 s", "2 h 07 m", "3 d 04 h",
    ]  # fmt: skip
    assert [bytes_text(n) for n in (0, 512, 1500, 20_000_000, 999_600)] == [
        "0 B",
        "512 B",
        "1.5 kB",
        "20 MB",
        "1 MB",
    ]
    assert [percent_text(s) for s in (None, 0.5, 0.994, 1.0)] == ["-", "50 %", "99.4 %", "100 %"]
    assert [rate_text(r) for r in (None, 0.1234, 1234.5)] == ["-", "0.123", "1,234"]
