"""A site's calendar (RFC 5545) as downtimes: a small strict reader of VEVENT. Pure.

Why no library: a calendar is foreign input of which five properties are wanted, and `RRULE` may ask for 10^18 entries.
What is read here is a bounded part of the standard: times in UTC or in a zone of the IANA, all-day events, DURATION,
EXDATE, and RRULE with FREQ of DAILY, WEEKLY or MONTHLY. What is not understood is named, and that event is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tidemill.errors import ConfigError
from tidemill.server.hospital.entries import HORIZON_DAYS, Entry, Parsed, shown, zone_of

EVENTS_MAX = 10_000
LINES_MAX = 500_000
STEPS_MAX = 5_000  #: occurrences of one rule that are examined
STEPS_ALL_MAX = 200_000
"""Days that are examined for all rules of a calendar together, well below a second: a rule may match no day for 8,000
years, and a calendar may hold 10,000 rules."""

OCCURRENCES_MAX = 1_000  #: of one rule that are kept
PAST_DAYS = 70  #: an occurrence that began longer ago is over: none is longer
DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_VALUE = r"(?:\"[^\"]*\"|[^\";:,]*)"
_OPTION = rf";([A-Za-z0-9-]+)=({_VALUE}(?:,{_VALUE})*)"
_LINE = re.compile(rf"^([A-Za-z0-9-]+)((?:{_OPTION})*):(.*)$", re.DOTALL)
_OPTIONS = re.compile(_OPTION)
_DURATION = re.compile(
    r"^\+?P(?:(\d{1,4})W|(?:(\d{1,4})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,6})M)?(?:(\d{1,7})S)?)?)$"
)
_RULE_KEYS = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "BYMONTHDAY", "WKST"}
_MARKUP = re.compile(r"\\([\\;,nN])")


class _Line(NamedTuple):
    name: str
    options: dict[str, str]
    value: str


def parse(text: str, *, site: str, now: datetime) -> Parsed:
    """The downtimes of a calendar, all of one site. Raises ConfigError for text that is not a calendar."""
    lines = _lines(text)
    if not lines or (lines[0].name, lines[0].value.upper()) != ("BEGIN", "VCALENDAR"):
        raise ConfigError("it does not begin with `BEGIN:VCALENDAR`")
    found = Parsed([], [])
    effort = _Effort()
    for number, event in enumerate(_events(lines), 1):
        if number > EVENTS_MAX:
            raise ConfigError(f"it holds more than {EVENTS_MAX} events")
        try:
            found.entries.extend(_entries(event, site, now, effort))
        except (ValueError, OverflowError) as error:
            name = next((each.value for each in event if each.name == "SUMMARY"), f"number {number}")
            found.problems.append(f"event `{shown(name)}` is left out: {error}")
    return found


def _lines(text: str) -> list[_Line]:
    """Content lines, unfolded (RFC 5545 3.1)."""
    unfolded = re.sub(r"\r?\n[ \t]", "", text)
    rows = unfolded.split("\n")  # not `splitlines`: a text may hold U+2028 and the like
    if len(rows) > LINES_MAX:
        raise ConfigError(f"it holds more than {LINES_MAX} lines")
    found = []
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        match = _LINE.match(row.removesuffix("\r"))
        if match is None:
            raise ConfigError(f"line {number} is not a content line: `{shown(row)}`")
        options = {each[1].upper(): each[2].strip('"') for each in _OPTIONS.finditer(match[2])}
        found.append(_Line(match[1].upper(), options, match[5]))
    return found


def _events(lines: list[_Line]) -> Iterator[list[_Line]]:
    """The properties of each VEVENT; those of alarms inside of it are left out."""
    inside: list[str] = []
    event: list[_Line] = []
    for each in lines:
        name = each.value.upper()
        if each.name == "BEGIN":
            inside.append(name)
            if name == "VEVENT":
                event = []
        elif each.name == "END":
            if not inside or inside.pop() != name:
                raise ConfigError(f"`END:{shown(each.value)}` ends nothing")
            if name == "VEVENT":
                yield event
        elif inside[-1:] == ["VEVENT"]:
            event.append(each)
    if inside:
        raise ConfigError(f"`{shown(inside[-1])}` is not ended: the file may be cut short")


class _Effort:
    """How much the rules of one calendar have cost."""

    def __init__(self) -> None:
        self._left = STEPS_ALL_MAX

    def spend(self, days: int) -> None:
        """Count more days as examined. Raises ConfigError beyond STEPS_ALL_MAX."""
        self._left -= days
        if self._left < 0:
            raise ConfigError(f"its rules (RRULE) span more than {STEPS_ALL_MAX} days")


def _entries(event: list[_Line], site: str, now: datetime, effort: _Effort) -> list[Entry]:
    """The occurrences of an event from now on. Raises ValueError for what is not understood."""
    of = {each.name: each for each in event}
    if of.get("STATUS", _Line("", {}, "")).value.upper() == "CANCELLED":
        return []
    if "DTSTART" not in of:
        raise ValueError("it has no DTSTART")
    if "RDATE" in of or "EXRULE" in of:
        raise ValueError("RDATE and EXRULE are not understood")
    start = _moment(of["DTSTART"])
    length = _length(of, start)
    reason = (
        _MARKUP.sub(lambda found: " " if found[1] in "nN" else found[1], of["SUMMARY"].value)
        if "SUMMARY" in of
        else ""
    )
    starts = [start]
    if "RRULE" in of:
        starts = _occurrences(of["RRULE"].value, start, now, effort)
        left_out = {_moment(_Line(each.name, each.options, value))
                    for each in event if each.name == "EXDATE" for value in each.value.split(",")}  # fmt: skip
        starts = [each for each in starts if each not in left_out]
    return [
        Entry(site, _us(each), None if length is None else _us(each + length), shown(reason))
        for each in starts
    ]


def _length(of: dict[str, _Line], start: datetime) -> timedelta | None:
    """How long an event lasts; None = nothing says so. One of whole days lasts a day (RFC 5545 3.6.1)."""
    if "DTEND" in of:
        end = _moment(of["DTEND"])
        return end - start if start.tzinfo is end.tzinfo else end.astimezone(UTC) - start.astimezone(UTC)
    if "DURATION" in of:
        match = _DURATION.match(of["DURATION"].value)
        if match is None or not any(match.groups()):
            raise ValueError(f"DURATION is `{shown(of['DURATION'].value)}`")
        weeks, days, hours, minutes, seconds = (int(each or 0) for each in match.groups())
        return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    return timedelta(days=1) if _is_date(of["DTSTART"]) else None


def _is_date(line: _Line) -> bool:
    return line.options.get("VALUE", "").upper() == "DATE"


def _moment(line: _Line) -> datetime:
    """A time with its zone. Raises ValueError for a time of day without one: it would be ambiguous."""
    text, zone = line.value.strip(), line.options.get("TZID", "")
    where: ZoneInfo | None = zone_of(zone) if zone else None
    if _is_date(line) or re.fullmatch(r"\d{8}", text):
        day = date(int(text[:4]), int(text[4:6]), int(text[6:8]))
        return datetime.combine(day, time(), where or UTC)
    if not re.fullmatch(r"\d{8}T\d{6}Z?", text):
        raise ValueError(f"{line.name} is `{shown(text)}`")
    digits = [int(each) for each in re.findall(r"^\d{4}|\d{2}", text)]
    found = datetime(*digits)  # type: ignore[arg-type]  # noqa: DTZ001 - the zone follows; may raise ValueError
    if text.endswith("Z"):
        return found.replace(tzinfo=UTC)
    if where is None:
        raise ValueError(f"{line.name} names no time zone: write UTC (`Z`) or TZID")
    return found.replace(tzinfo=where)


def _us(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


class _Rule(NamedTuple):
    freq: str
    interval: int
    times: int | None
    until: datetime | None
    days: list[tuple[int, int]]  #: (which of the month or 0, day of the week)
    month_days: list[int]


def _rule(text: str, start: datetime) -> _Rule:
    pairs = dict(each.split("=", 1) for each in text.upper().split(";") if "=" in each)
    strange = sorted(pairs.keys() - _RULE_KEYS)
    if strange or pairs.get("FREQ") not in ("DAILY", "WEEKLY", "MONTHLY"):
        raise ValueError(f"RRULE `{shown(text)}` is not understood")
    until = None
    if "UNTIL" in pairs:
        is_local = not pairs["UNTIL"].endswith("Z")
        until = _moment(
            _Line("UNTIL", {}, pairs["UNTIL"] + ("Z" if is_local and "T" in pairs["UNTIL"] else ""))
        )
        if is_local:
            until = until.replace(tzinfo=start.tzinfo)
            until += timedelta(days=1, microseconds=-1) if "T" not in pairs["UNTIL"] else timedelta()
    days = []
    for each in pairs.get("BYDAY", "").split(",") if "BYDAY" in pairs else ():
        match = re.fullmatch(r"([+-]?[1-5])?(MO|TU|WE|TH|FR|SA|SU)", each)
        if match is None or (match[1] and pairs["FREQ"] != "MONTHLY"):
            raise ValueError(f"BYDAY `{shown(each)}` is not understood")
        days.append((int(match[1] or 0), DAYS.index(match[2])))
    month_days = [int(each) for each in pairs["BYMONTHDAY"].split(",")] if "BYMONTHDAY" in pairs else []
    if any(not 1 <= each <= 31 for each in month_days) or (month_days and pairs["FREQ"] != "MONTHLY"):
        raise ValueError(f"BYMONTHDAY `{shown(pairs['BYMONTHDAY'])}` is not understood")
    interval, count = int(pairs.get("INTERVAL", "1")), int(pairs["COUNT"]) if "COUNT" in pairs else None
    if not 1 <= interval <= 1000 or (count is not None and count < 1):
        raise ValueError(f"RRULE `{shown(text)}` is not understood")
    return _Rule(pairs["FREQ"], interval, count, until, days, month_days)


def _occurrences(text: str, start: datetime, now: datetime, effort: _Effort) -> list[datetime]:
    """When an event begins, from a while ago on and within the horizon. Wall-clock times stay what they are when clocks
    change. A rule without an end that began years ago starts near to now."""
    rule = _rule(text, start)
    first, last = now - timedelta(days=PAST_DAYS), now + timedelta(days=HORIZON_DAYS)
    found: list[datetime] = []
    steps = counted = 0
    for each in _days(rule, start, None if rule.times is not None else first, effort):
        at = datetime.combine(each, start.timetz())
        steps += 1
        if at > last or (rule.until is not None and at > rule.until) or len(found) >= OCCURRENCES_MAX:
            break
        if steps > STEPS_MAX:
            raise ValueError(f"RRULE `{shown(text)}` has more than {STEPS_MAX} occurrences before today")
        if at < start:
            continue
        counted += 1
        if rule.times is not None and counted > rule.times:
            break
        if at >= first:
            found.append(at)
    return found


def _days(rule: _Rule, start: datetime, skip_to: datetime | None, effort: _Effort) -> Iterator[date]:
    """The days of a rule, ascending. `skip_to`: whole intervals before it may be left out."""
    day = start.date()
    behind = max(0, (skip_to.date() - day).days - 1) if skip_to is not None else 0
    if rule.freq == "DAILY":
        day += timedelta(days=behind // rule.interval * rule.interval)
        while True:
            effort.spend(1)
            if not rule.days or day.weekday() in [weekday for _, weekday in rule.days]:
                yield day
            day += timedelta(days=rule.interval)
    elif rule.freq == "WEEKLY":
        monday = day - timedelta(days=day.weekday())
        monday += timedelta(weeks=behind // (7 * rule.interval) * rule.interval)
        weekdays = sorted({weekday for _, weekday in rule.days}) or [day.weekday()]
        while True:
            effort.spend(7)
            yield from (monday + timedelta(days=each) for each in weekdays)
            monday += timedelta(weeks=rule.interval)
    else:
        months = day.year * 12 + day.month - 1 + behind // (31 * rule.interval) * rule.interval
        while True:
            effort.spend(31)
            yield from _days_of_month(rule, months // 12, months % 12 + 1, day.day)
            months += rule.interval


def _days_of_month(rule: _Rule, year: int, month: int, default: int) -> list[date]:
    first = date(year, month, 1)
    days = [first + timedelta(days=each) for each in range(31)]
    days = [each for each in days if each.month == month]
    if rule.days:
        chosen: set[date] = set()
        for nth, weekday in rule.days:
            of_day = [each for each in days if each.weekday() == weekday]
            if not nth:
                chosen.update(of_day)
            elif len(of_day) >= abs(nth):
                chosen.add(of_day[nth - 1 if nth > 0 else nth])
        return sorted(chosen)
    wanted = rule.month_days or [default]
    return [each for each in days if each.day in wanted]
