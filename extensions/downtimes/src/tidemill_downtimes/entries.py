"""Downtimes as they are read from any source, and what becomes of them: bounded, merged, sorted. Pure."""

from __future__ import annotations

from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from tidemill import clock
from tidemill.server.hospital.readings import Downtime

HORIZON_DAYS = 400  #: what begins later is ignored
LONGEST_DAYS = 60  #: the longest downtime: a longer one has to be announced again
ENTRIES_MAX = 1_000  #: kept of one source, the next ones
PROBLEMS_MAX = 20
TEXT_MAX = 200
DAY_US = 86_400_000_000


class Entry(NamedTuple):
    """A downtime as a source says it. `end_us` None = the source names no end."""

    site: str
    start_us: int
    end_us: int | None
    reason: str


class Parsed(NamedTuple):
    """What a source holds, and what of it is left out."""

    entries: list[Entry]
    problems: list[str]


class CalendarText(msgspec.Struct, frozen=True):
    """The text of a calendar (RFC 5545), to be read as downtimes of one site."""

    site: str
    now_us: int
    cpu_s: int  #: processor time that reading may take
    text: str


class Calendar(NamedTuple):
    """Downtimes of one source that are not over: those of a site overlap nowhere."""

    downtimes: list[Downtime]
    problems: list[str]


def shown(text: str) -> str:
    """A foreign text in a message or page: short, on one line."""
    return "".join(each if each.isprintable() else " " for each in text[:TEXT_MAX]).strip()


def zone_of(name: str) -> ZoneInfo:
    """A time zone of the IANA. Raises ValueError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"`{shown(name)}` is not a time zone of the IANA, such as `Europe/Berlin`"
        ) from error


def settled(parsed: Parsed, *, now_us: int) -> Calendar:
    """What counts of a source: without what is over, malformed or far away; overlaps are one downtime."""
    problems = list(parsed.problems)
    kept: list[Downtime] = []
    for each in parsed.entries:
        made, problem = _bounded(each, now_us)
        if problem:
            problems.append(problem)
        if made is not None:
            kept.append(made)
    merged = _merged(kept)
    if len(merged) > ENTRIES_MAX:
        problems.append(f"of {len(merged)} downtimes the next {ENTRIES_MAX} are kept")
    if len(problems) > PROBLEMS_MAX:
        problems = [*problems[: PROBLEMS_MAX - 1], f"and {len(problems) - PROBLEMS_MAX + 1} more"]
    return Calendar(merged[:ENTRIES_MAX], problems)


def _bounded(entry: Entry, now_us: int) -> tuple[Downtime | None, str]:
    name = f"downtime of `{shown(entry.site)}` from {_when(entry.start_us)}"
    longest = entry.start_us + LONGEST_DAYS * DAY_US
    end_us, problem = entry.end_us, ""
    if end_us is None:
        end_us, problem = (
            longest,
            f"{name} has no end: it counts until it is removed, at most {LONGEST_DAYS} days",
        )
    if end_us <= entry.start_us:
        return None, f"{name} ends before it begins, and is left out"
    if end_us > longest:
        end_us, problem = (
            longest,
            f"{name} lasts longer than {LONGEST_DAYS} days: it counts for that time only",
        )
    if end_us <= now_us or entry.start_us > now_us + HORIZON_DAYS * DAY_US:
        return None, ""
    return Downtime(shown(entry.site), entry.start_us, end_us, shown(entry.reason)), problem


def _when(at_us: int) -> str:
    try:
        return clock.utc_text(at_us)
    except (ValueError, OverflowError, OSError):
        return "a time that cannot be read as a date"


def _merged(downtimes: list[Downtime]) -> list[Downtime]:
    """Those that touch become one, of each site, by when they begin."""
    found: dict[str, list[Downtime]] = {}
    for each in sorted(downtimes, key=lambda one: (one.start_us, one.end_us)):
        of_site = found.setdefault(each.site, [])
        last = of_site[-1] if of_site else None
        if last is not None and each.start_us <= last.end_us:
            reasons = [last.reason] if each.reason in last.reason else [last.reason, each.reason]
            text = shown("; ".join(one for one in reasons if one))
            of_site[-1] = Downtime(last.site, last.start_us, max(last.end_us, each.end_us), text)
        else:
            of_site.append(each)
    return sorted(
        (each for of_site in found.values() for each in of_site), key=lambda one: (one.start_us, one.site)
    )
