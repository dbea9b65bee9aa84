"""Slurm's words for times and durations. Commands run with TZ=UTC, so times without a zone are UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import lru_cache

_NO_TIME = frozenset({"", "N/A", "Unknown", "NONE", "(null)", "None", "INVALID"})
_NO_SPAN = frozenset(
    {"", "UNLIMITED", "NOT_SET", "Partition_Limit", "INVALID", "N/A", "infinite", "NONE", "n/a"}
)
"""squeue(1) and scontrol(1); `Partition_Limit`, `INVALID` and `infinite` were seen in the field."""


SPAN_MAX = 10**9
"""No real limit has more days, hours, minutes or seconds than this: a larger number means no limit."""


@lru_cache(maxsize=100_000)
def parse_time(text: str) -> float | None:
    """Seconds since 1970 of `2026-11-21T03:12:11`; None for Slurm's words for no time, and for malformed text."""
    if text in _NO_TIME:
        return None
    try:
        return datetime.fromisoformat(f"{text}+00:00").timestamp()
    except ValueError:
        return None


@lru_cache(maxsize=10_000)
def parse_span(text: str) -> float | None:
    """Seconds of `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`; None = no limit, or not stated."""
    text = text.strip()
    if text in _NO_SPAN:
        return None
    days, dash, rest = text.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        whole = int(days) * 86400 if dash else 0
        if max(whole, *parts) > SPAN_MAX:
            return None
    except ValueError:
        return None
    if dash:  # hours come first
        parts += [0] * (3 - len(parts))
    elif len(parts) == 1:  # minutes alone
        parts = [0, parts[0], 0]
    else:
        parts = [0] * (3 - len(parts)) + parts
    hours, minutes, seconds = parts[:3]
    return float(whole + hours * 3600 + minutes * 60 + seconds)


def time_text(at_s: float) -> str:
    """A time as `scontrol update EndTime=` takes it, whole seconds up."""
    return datetime.fromtimestamp(math.ceil(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def minutes_up(seconds: float) -> int:
    """Whole minutes, at least one: limits have no seconds (sbatch(1), `--time`)."""
    return max(1, math.ceil(seconds / 60 - 1e-9))
