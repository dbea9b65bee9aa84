"""Memory and time limits that grow by themselves: `2G..8G`. Pure.

A payload that lacked memory or time runs again with more. The value doubles until it holds the payload's measured use
and a quarter more, up to a maximum. Only events that failed for lack of it grow: the rest of the job keeps the first
value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from tidemill.config import parse_size

FACTOR = 2
"""The factor that workflow systems suggest for a second attempt; ten steps are a factor of a thousand."""

USED_SHARE = 5, 4
"""A payload was killed while it asked for more, so it gets at least a quarter more than its measured use."""

BETWEEN = ".."


class GrowthSpan(NamedTuple):
    """A first value, and the maximum to which it may grow; None = it does not grow."""

    first: int
    most: int | None = None


def span_of(text: str, parse: Callable[[str], int]) -> GrowthSpan:
    """The span of `FIRST..MOST`, or of one value. Raises ValueError."""
    first, between, most = text.partition(BETWEEN)
    if not between:
        return GrowthSpan(parse(text))
    if not first.strip() or not most.strip():
        missing = "maximum" if first.strip() else "first value"
        raise ValueError(f"`{text}` has no {missing}; write {_whole(first.strip(), most.strip())}")
    result = GrowthSpan(parse(first.strip()), parse(most.strip()))
    assert result.most is not None, "it was parsed"
    if result.most <= result.first:
        raise ValueError(f"`{text}`: the maximum is not above the first value; write `2G..8G`, or one value")
    return result


def _whole(first: str, most: str) -> str:
    """An example of a span with what was given of one."""
    number, unit = re.fullmatch(r"(\d*)(.*)", (first or most)[:20], re.DOTALL).groups()  # type: ignore[union-attr]
    if not number or not unit:
        return "`2G..8G`"
    return f"`{first}..{4 * int(number)}{unit}`" if first else f"`{max(1, int(number) // 4)}{unit}..{most}`"


def parse_memory_mb(text: str) -> int:
    """Megabytes of `2G`, `500MB`, or a number of MB. Raises ValueError."""
    size = re.sub(r"(?i)(?<=[\d ])([kmgt])$", r"\1B", text.strip())  # `2G`, as Slurm and shells write it
    megabytes = int(text) if text.isdecimal() else parse_size(size) // 10**6
    if megabytes < 1:
        raise ValueError(f"`{text}` is less than a megabyte")
    return megabytes


def next_value(now: int, most: int, *, used: int = 0) -> int | None:
    """The value after `now` for a payload with a measured use of `used`: doubled once or several times, up to `most`.
    None = it had `most`."""
    if now >= most:
        return None
    times, parts = USED_SHARE
    more = now * FACTOR
    while more < most and more * parts < used * times:
        more *= FACTOR
    return min(most, more)
