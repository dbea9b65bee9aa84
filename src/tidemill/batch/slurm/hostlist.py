"""Slurm's short forms of many: `n[01-03,7],m1` for hosts, `3-5,9:2%4` for the elements of an array."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import lru_cache

from tidemill.errors import ProtocolError
from tidemill.model.number import whole

HOSTS_MAX = 200_000
"""In one list; the largest machines have a tenth of it. What was read is kept for a while, so it counts."""
BRACKETS_MAX = 8
"""Of one name: Slurm numbers hosts in up to five dimensions (HIGHEST_DIMENSIONS of its slurm.h)."""
NAME_CHARS_MAX = 255
"""Of one name without its numbers, as in the domain name system; there may be 200,000 of it."""
_RANGE = re.compile(r"\[([^\][]*)\]")
_NUMBERS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?(?::(\d{1,18}))?", re.ASCII)


@lru_cache(maxsize=20_000)
def expand(text: str) -> tuple[str, ...]:
    """The hosts of a host list, in its order, interned; none for the words for none. Raises ProtocolError."""
    if text in ("", "(null)", "None", "N/A", "None assigned"):
        return ()
    found: list[str] = []
    for part in _split(text):
        literal, *rest = _RANGE.split(part)
        hosts = [literal]
        for ranges, literal in zip(rest[::2], rest[1::2], strict=True):
            numbers = _padded(ranges, text)
            if len(found) + len(hosts) * len(numbers) > HOSTS_MAX:
                raise ProtocolError(f"`{text[:200]}` stands for more than {HOSTS_MAX} hosts")
            hosts = [f"{host}{number}{literal}" for host in hosts for number in numbers]
        found += hosts
    return tuple(map(sys.intern, found))


def _split(text: str) -> list[str]:
    """At commas outside of brackets."""
    if "[" not in text:
        return [part for part in text.split(",") if part]
    parts, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if not 0 <= depth <= 1:
            break
        if char == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts = [part for part in [*parts, text[start:]] if part]
    if depth or not all(map(_is_name, parts)):
        raise ProtocolError(f"`{text[:200]}` is not a list of hosts")
    return parts


def _is_name(part: str) -> bool:
    return part.count("[") <= BRACKETS_MAX and len(_RANGE.sub("", part)) <= NAME_CHARS_MAX


def _padded(ranges: str, text: str) -> list[str]:
    found: list[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        first, last = whole(low), whole(high or low)
        if first is None or last is None or not first <= last <= first + HOSTS_MAX - len(found):
            raise ProtocolError(f"`{text[:200]}` is not a list of hosts")
        found += [str(number).zfill(len(low)) for number in range(first, last + 1)]
    return found


def expand_elements(text: str, most: int) -> tuple[range, ...]:
    """The elements of an array, as squeue shows those that wait: `0-9`, `1,3-5`, `0-8:2`, with `%4` behind.

    A list that Slurm has cut (`0-3,...`, squeue(1), SLURM_BITSTR_LEN) ends there. Raises ProtocolError.
    """
    ranges = []
    for part in text.partition("%")[0].split(","):
        if part == "...":
            break
        match = _NUMBERS.fullmatch(part)
        if match is None:
            raise ProtocolError(f"`{text[:200]}` are not elements of an array")
        low, high, step = match.groups()
        ranges.append(range(int(low), min(int(high or low), int(low) + most) + 1, int(step or 1) or 1))
    return tuple(ranges)


def fold(numbers: Iterable[int]) -> str:
    """`0-3,7` for numbers."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


_LAST_NUMBER = re.compile(r"(.*?)(\d{1,18})(\D*)", re.ASCII | re.DOTALL)


def compress(names: Iterable[str]) -> str:
    """`g[1-2],n[001-004,7],login` for hosts: those that differ in their last number are folded. `expand` undoes it, but
    for the order."""
    plain: list[str] = []
    groups: dict[tuple[str, str, int], set[int]] = {}
    for name in set(names):
        match = _LAST_NUMBER.fullmatch(name)
        if match is None:
            plain.append(name)
            continue
        head, digits, tail = match.groups()
        width = len(digits) if digits.startswith("0") else 0
        groups.setdefault((head, tail, width), set()).add(int(digits))
    # `09` and `10` are of one row: numbers without zeros in front join the row of their width
    for (head, tail, width), numbers in sorted(groups.items()):
        if width:
            same = groups.get((head, tail, 0), set())
            joined = {number for number in same if len(str(number)) == width}
            numbers |= joined
            same -= joined
    found = [
        f"{head}{_folded(numbers, width)}{tail}" for (head, tail, width), numbers in groups.items() if numbers
    ]
    return ",".join(sorted([*plain, *found]))


def _folded(numbers: set[int], width: int) -> str:
    text = re.sub(r"\d+", lambda match: match[0].zfill(width), fold(numbers))
    return f"[{text}]" if len(numbers) > 1 else text
