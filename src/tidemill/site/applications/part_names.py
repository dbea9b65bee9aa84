"""Names of the files that the parts of an output become: the output's path, filled in. Pure.

Names are the same in every delivery of a job, and different for different parts: where the path does not tell events
apart, the event's number is put before the suffix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

NAME_BYTES_MAX = 200
"""Limit of a file name. File systems take 255 bytes: the rest is room for the output's name before it and the numbers
of events behind it."""

VALUE_BYTES_MAX = 120
"""Of what a line puts into a name, so that what stands behind it, such as the event, has its place, too."""

_COLUMN = re.compile(r"column\.([0-9]{1,4})")
_PLACE = re.compile(r"\{([^{}]*)\}")
_UNFIT = re.compile(r"[/\x00-\x1f\x7f]")


class Parts(NamedTuple):
    """The parts of an output: the job's number of events, (first event, number) of each part, its seed, and
    the lines of all events where names are made of them."""

    events: int
    parts: Sequence[tuple[int, int]]
    seeds: Sequence[int]
    lines: Sequence[str] | None = None


def part_names(path: str, of: Parts) -> list[str]:
    """A file name for each part. `hits-{event}.root` -> `hits-7.root`; `out.txt` -> `out-7.txt`."""
    plain = Path(path).name
    is_told = _tells_events(plain, of)
    return [_name(plain, of, number, is_told=is_told) for number in range(len(of.parts))]


def _tells_events(plain: str, of: Parts) -> bool:
    """Whether the path alone gives each event another name."""
    places = set(_PLACE.findall(plain))
    if of.events == 1 or places & {"event", "first_event", "last_event"}:
        return True
    if of.lines is None or not any(each == "line" or each.startswith("column.") for each in places):
        return False
    filled = {_filled(plain, {"line": line})[0] for line in of.lines[: of.events]}
    return len(filled) == of.events


def _name(plain: str, of: Parts, number: int, *, is_told: bool) -> str:
    first, count = of.parts[number]
    values = {
        "event": str(first), "first_event": str(first), "last_event": str(first + count - 1), "events": str(count),
        "seed": str(of.seeds[number]),
    }  # fmt: skip
    if of.lines is not None and first < len(of.lines):
        values["line"] = of.lines[first]
    name, is_cut = _filled(plain, values)
    if is_cut or not is_told:
        stem, dot, suffix = name.partition(".")
        if not stem:  # `.hidden`
            stem, dot, suffix = name, "", ""
        events = f"{first}" if count == 1 else f"{first}-{first + count - 1}"
        name = f"{stem}-{events}{dot}{suffix}"
    return name if name not in ("", ".", "..") else f"output-{first}"


def _filled(plain: str, values: dict[str, str]) -> tuple[str, bool]:
    """The path with its templates filled in, as a file name, and whether its end was cut off; what is not known becomes
    nothing."""
    fields = values.get("line", "").rstrip("\r").split("\t")

    def value(match: re.Match[str]) -> str:
        column = _COLUMN.fullmatch(match[1])
        if column is not None:
            number = int(column[1])
            return _cut(fields[number], VALUE_BYTES_MAX) if number < len(fields) else ""
        return _cut(values.get(match[1], "").rstrip("\r"), VALUE_BYTES_MAX)

    name = _UNFIT.sub("-", _PLACE.sub(value, plain))
    cut = _cut(name, NAME_BYTES_MAX)
    return cut, cut != name


def _cut(text: str, size: int) -> str:
    """The first whole characters of a text that `size` bytes hold."""
    return text[:size].encode()[:size].decode(errors="ignore")
