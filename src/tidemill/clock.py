"""The only place that reads a clock or sleeps. Times are UTC, as whole microseconds or seconds since 1970."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_us() -> int:
    """Wall clock, microseconds since 1970 UTC. May jump: never subtract two of them for a duration."""
    return time.time_ns() // 1000


def now_s() -> int:
    """Wall clock, seconds since 1970 UTC."""
    return time.time_ns() // 1_000_000_000


def monotonic_s() -> float:
    """Seconds from an arbitrary start, never going back; for durations and intervals."""
    return time.monotonic()


def sleep_s(duration_s: float) -> None:
    """Sleep for this many seconds."""
    if duration_s > 0:
        time.sleep(duration_s)


def utc_text(at_us: int) -> str:
    """`2026-11-20T23:05:01Z` for microseconds since 1970."""
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_duration_s(text: str) -> int:
    """Seconds of a walltime: `90s`, `90m`, `6h`, `2d`, `MM:SS`, `HH:MM:SS`, `D-HH:MM:SS`, and `0`.

    Refuses a number without a unit: Slurm takes `--time 30` as minutes, most other programs as seconds.
    Raises ValueError that quotes the text.
    """
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    stripped = text.strip()
    if stripped.isdecimal() and stripped.strip("0"):
        raise ValueError(f"`{text}` has no unit: write `{stripped}s` for seconds, `{stripped}m` for minutes")
    try:
        if stripped[-1:] in units and "-" not in stripped:
            seconds = float(stripped[:-1]) * units[stripped[-1]]
        else:
            days, dash, clock = stripped.rpartition("-")
            parts = [int(part) for part in clock.split(":")]
            if len(parts) > 3 or (dash and (not days or len(parts) != 3)):
                raise ValueError(text)  # noqa: TRY301  one place words the refusal
            seconds = float(int(days or 0) * 86400)
            for power, part in enumerate(reversed(parts)):
                seconds += part * 60**power
        whole = int(seconds)
    except (ValueError, OverflowError):  # OverflowError: `infs`
        raise ValueError(f"`{text}` is not a duration such as `90m`, `HH:MM:SS` or `D-HH:MM:SS`") from None
    if whole < 0:
        raise ValueError(f"`{text}` is negative")
    return whole
