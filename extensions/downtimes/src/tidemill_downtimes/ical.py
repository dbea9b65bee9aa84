"""A site's calendar (RFC 5545) as downtimes: icalendar reads it, recurring-ical-events repeats its events.

Knows no file and no server. A calendar is foreign input, and its rules may ask for any amount of work: `calendars` runs
this module in a separate process, with limits on processor time and memory. An event that it does not understand is
left out, with a remark that names it.
"""

from __future__ import annotations

import re
import resource
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

import icalendar
import msgspec
import recurring_ical_events

from tidemill.errors import ConfigError
from tidemill_downtimes.entries import HORIZON_DAYS, CalendarText, Entry, Parsed, shown, zone_of

EVENTS_MAX = 10_000
LINES_MAX = 500_000
OCCURRENCES_MAX = 1_000  #: kept for each event
PAST_DAYS = 70  #: an occurrence that began longer ago is over: none is longer
FREQUENCIES = {"DAILY", "WEEKLY", "MONTHLY", "YEARLY"}
INTERVAL_MAX = 1_000
MEMORY_BYTES_MAX = 1 << 30
MARK = "X-TIDEMILL-EVENT"
"""The property that links an occurrence to its event in the file."""

_EDGE = re.compile(r"^(BEGIN|END|DURATION)(?:;[^:]*)?:(.*)$", re.IGNORECASE)
_DURATION = re.compile(
    r"^\+?P(?:(\d{1,4})W|(?:(\d{1,4})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,6})M)?(?:(\d{1,7})S)?)?)$"
)
_TIMES = ("DTSTART", "DTEND", "RECURRENCE-ID")


class _Length(NamedTuple):
    """How long an event lasts: days of the calendar, then exact time (RFC 5545 3.3.6)."""

    days: timedelta
    exact: timedelta

    def after(self, start: datetime) -> datetime:
        """The end of an occurrence, in UTC."""
        return (start + self.days).astimezone(UTC) + self.exact


def parse(text: str, *, site: str, now: datetime) -> Parsed:
    """The downtimes of a calendar, all of one site. Raises ConfigError for text that is not a calendar."""
    durations = _durations(text)
    try:
        calendars = icalendar.Calendar.from_ical(text, multiple=True)
    except (ValueError, IndexError, KeyError) as error:
        raise ConfigError(f"it is not a calendar: {shown(str(error))}") from error
    parsed = Parsed([], [])
    first = 0
    for calendar in calendars:
        events = calendar.walk("VEVENT")
        if str(calendar.get("METHOD", "")).upper() == "CANCEL":
            parsed.problems.append("its events are canceled (METHOD:CANCEL) and left out")
        else:
            _add(parsed, _Events(events, durations[first : first + len(events)], site, now))
        first += len(events)
    return parsed


def _durations(text: str) -> list[str]:
    """The text of each VEVENT's DURATION, or "", in order: icalendar makes `PT24H` and `P1D` equal. Raises
    ConfigError for a text that is cut short or too large."""
    found: list[str] = []
    inside: list[tuple[str, int]] = []
    for word, value in _edges(text):
        if word == "DURATION":
            if inside and inside[-1][0] == "VEVENT":
                found[inside[-1][1]] = value
        elif word == "BEGIN":
            inside.append((value, len(found)))
            if value == "VEVENT":
                found.append("")
        elif not inside or inside.pop()[0] != value:
            raise ConfigError(f"`END:{shown(value)}` ends nothing")
        if len(found) > EVENTS_MAX:
            raise ConfigError(f"it has more than {EVENTS_MAX} events")
    if inside:
        raise ConfigError(f"`{shown(inside[-1][0])}` has no end: the file may be cut short")
    return found


def _edges(text: str) -> Iterator[tuple[str, str]]:
    """The lines BEGIN, END and DURATION of a calendar, in capitals."""
    rows = re.sub(r"\r?\n[ \t]", "", text).split("\n")
    if len(rows) > LINES_MAX:
        raise ConfigError(f"it has more than {LINES_MAX} lines")
    for row in rows:
        match = _EDGE.match(row.removesuffix("\r"))
        if match is not None:
            yield match[1].upper(), match[2].strip().upper()


class _Events:
    """The events of one calendar, and how they become downtimes."""

    def __init__(self, events: list[Any], durations: list[str], site: str, now: datetime) -> None:
        self.site, self.now = site, now
        self.events, self.durations = events, durations
        for number, event in enumerate(events):
            event[MARK] = str(number)

    def length(self, event: Any) -> _Length | None:
        """How long an event lasts; None = the event does not say. An all-day event lasts a day (RFC 5545 3.6.1)."""
        start, written = event["DTSTART"].dt, self.durations[int(event[MARK])]
        if "DTEND" in event:
            end = event["DTEND"].dt
            if isinstance(end, datetime) != isinstance(start, datetime):
                raise ValueError("of DTSTART and DTEND, one is a day and the other a time")
            if isinstance(start, datetime):
                return _Length(timedelta(), end.astimezone(UTC) - start.astimezone(UTC))
            return _Length(end - start, timedelta())
        if written:
            match = _DURATION.match(written)
            if match is None or not any(match.groups()):
                raise ValueError(f"DURATION is `{shown(written)}`")
            weeks, days, hours, minutes, seconds = (int(each or 0) for each in match.groups())
            exact = timedelta(hours=hours, minutes=minutes, seconds=seconds)
            return _Length(timedelta(weeks=weeks, days=days), exact)
        return None if isinstance(start, datetime) else _Length(timedelta(days=1), timedelta())

    def entry(self, occurrence: Any) -> Entry:
        """The downtime of an occurrence, which is an event itself or a copy at another time."""
        event = self.events[int(occurrence[MARK])]
        length = self.length(event)
        start = _moment(occurrence["DTSTART"].dt, event)
        reason = re.sub(r"\s+", " ", str(event.get("SUMMARY", "")))
        end_us = None if length is None else _us(length.after(start))
        return Entry(self.site, _us(start), end_us, shown(reason))


def _add(parsed: Parsed, events: _Events) -> None:
    """Add the downtimes of the events, series by series, so that a fault in one does not affect the others."""
    for series in _series(events.events):
        try:
            parsed.entries.extend(_entries(series, events, parsed.problems))
        except (ValueError, OverflowError, TypeError, AttributeError, LookupError) as error:
            name = str(series[0].get("SUMMARY", "")) or f"number {int(series[0][MARK]) + 1}"
            parsed.problems.append(f"event `{shown(name)}` is left out: {shown(str(error))}")


def _series(events: Iterable[Any]) -> Iterator[list[Any]]:
    """Groups of events: one with its rules, followed by its occurrences that were moved or canceled.

    A later version of an event (SEQUENCE) replaces earlier ones (RFC 5545 3.8.7.4); all events of one version count.
    """
    of_uid: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        of_uid[str(event.get("UID", "")) or f"\0{event[MARK]}"].append(event)
    for group in of_uid.values():
        changes = [each for each in group if "RECURRENCE-ID" in each]
        whole = [each for each in group if "RECURRENCE-ID" not in each]
        newest = max((_sequence(each) for each in whole), default=0)
        *others, last = [each for each in whole if _sequence(each) == newest] or [None]
        yield from ([each] for each in others)
        yield [each for each in (last, *changes) if each is not None]


def _sequence(event: Any) -> int:
    number = event.get("SEQUENCE", 0)
    return number if isinstance(number, int) else 0


def _entries(series: list[Any], events: _Events, problems: list[str]) -> list[Entry]:
    """The occurrences of a series from PAST_DAYS ago on. Raises ValueError for a series that it does not understand."""
    for event in series:
        _check(event)
        length = events.length(event)
        if len(series) > 1 and length is not None and min(length) < timedelta():
            raise ValueError("it ends before it begins")
    if len(series) == 1 and not series[0].keys() & {"RRULE", "RDATE", "RECURRENCE-ID"}:
        occurrences = series
    else:
        calendar = icalendar.Calendar()
        for event in series:
            calendar.add_component(event)
        first, last = (
            events.now - timedelta(days=PAST_DAYS),
            events.now + timedelta(days=HORIZON_DAYS),
        )
        occurrences = recurring_ical_events.of(calendar).between(first, last)
    down = [each for each in occurrences if str(each.get("STATUS", "")).upper() != "CANCELLED"]
    kept = [each for each in down if str(each.get("TRANSP", "")).upper() != "TRANSPARENT"]
    name = shown(str(series[0].get("SUMMARY", "")))
    if len(kept) < len(down):
        problems.append(f"event `{name}` is left out: it takes no time (TRANSP:TRANSPARENT)")
    if len(kept) > OCCURRENCES_MAX:
        problems.append(
            f"event `{name}`: only the first {OCCURRENCES_MAX} of {len(kept)} occurrences are kept"
        )
    return sorted(events.entry(each) for each in kept)[:OCCURRENCES_MAX]


def _check(event: Any) -> None:
    """Raises ValueError for an event whose times or rules could be misread."""
    for name, why in event.errors:
        if name in (*_TIMES, "DURATION", "RRULE", "RDATE", "EXDATE", "SEQUENCE"):
            raise ValueError(f"{name}: {why}")
    if "DTSTART" not in event:
        raise ValueError("it has no DTSTART")
    if "EXRULE" in event:
        raise ValueError("EXRULE is not understood")
    for name in _TIMES:
        if isinstance(event.get(name), list):
            raise ValueError(f"it has several {name}")  # noqa: TRY004 - all faults of foreign content are ValueErrors
        if name in event:
            _moment(event[name].dt, event, name)
    rules = event.get("RRULE", [])
    for rule in rules if isinstance(rules, list) else [rules]:
        intervals, counts = rule.get("INTERVAL", [1]), rule.get("COUNT", [1])
        is_known = {str(each).upper() for each in rule.get("FREQ", [])} <= FREQUENCIES
        is_known = is_known and not rule.keys() >= {"COUNT", "UNTIL"}  # RFC 5545 3.3.10
        if not is_known or min(*intervals, *counts) < 1 or max(intervals) > INTERVAL_MAX:
            raise ValueError(f"RRULE `{shown(rule.to_ical().decode())}` is not understood")


def _moment(moment: date | datetime, event: Any, name: str = "DTSTART") -> datetime:
    """A time with its zone. A day starts in its own zone, else in UTC. Raises ValueError for a time of day without a
    zone: it would be ambiguous."""
    zone = str(event[name].params.get("TZID", "")) if name in event else ""
    if not isinstance(moment, datetime):
        return datetime.combine(moment, time(), zone_of(zone) if zone else UTC)
    if moment.tzinfo is None:
        raise ValueError(
            f"`{shown(zone)}` is neither a time zone of IANA or Windows nor a VTIMEZONE of this file"
            if zone
            else f"{name} has no time zone: write UTC (`Z`) or TZID"
        )
    return moment


def _us(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def main() -> None:
    """Read a `CalendarText` from stdin, write `Parsed`, or a ConfigError's message as a text, to stdout."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=CalendarText)
    resource.setrlimit(resource.RLIMIT_CPU, (asked.cpu_s, asked.cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    now = datetime.fromtimestamp(asked.now_us / 1e6, UTC)
    try:
        answer: Parsed | str = parse(asked.text, site=asked.site, now=now)
    except ConfigError as error:
        answer = error.message
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
