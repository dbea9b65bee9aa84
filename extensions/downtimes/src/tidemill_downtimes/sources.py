"""Downtimes in three formats, known by their content, and where they are read from.

The server asks `reader_of`, which its settings make, and keeps what comes of each source
(`server/hospital/downtimes` of the core).
"""

from __future__ import annotations

import codecs
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import PurePosixPath
from queue import SimpleQueue
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from tidemill import config as config_files
from tidemill import log
from tidemill.errors import UNDECODABLE, ConfigError, SiteError, TidemillError
from tidemill.net.addresses import socket_to
from tidemill.net.http_exchange import ExchangeError, HttpServer, TimeLimit
from tidemill.server.hospital.readings import DowntimeReader, Reading
from tidemill.wire.credentials import Credentials
from tidemill_downtimes import calendars
from tidemill_downtimes.entries import Calendar, Entry, Parsed, settled, shown, zone_of
from tidemill_downtimes.settings import SOURCES_MAX, Downtimes, DowntimeSource

BYTES_MAX = 5_000_000
READ_S = 30.0
AT_ONCE = 10  #: servers that are asked at the same time
ROWS_MAX = 100_000  #: of a CRIC answer or a file of our own
_NO_SITE = "it is a calendar, which names no site: set `site`"
OUT_OF_SERVICE = {"OUTAGE", ""}  #: severities of CRIC with which a site takes no work
Format = Literal["calendar", "cric", "own"]
BEGIN_CHARACTERS = 60  #: of a text that is in no format, in its error
_LIST = re.compile(r"\[\s*[{\]]")
"""How a list of JSON begins; in TOML what follows `[` is a name."""
_NAMED = {".ics": "calendar", ".toml": "own"}  #: endings of a file's or URL's name that promise a format
_WORDS = {"calendar": "a calendar", "cric": "JSON of CRIC", "own": "TOML"}
_FAULTS = {"error", "errors", "message", "detail"}  #: keys with which a service answers what it could not do
_EMPTY = re.compile(r"^\s*#\s*(no downtimes?\b|\[\[\s*downtime)", re.IGNORECASE | re.MULTILINE)
"""How comments alone say that there are no downtimes; other comments may be the text of an error, or Markdown."""
_FOLD = re.compile(rb"\r?\n[ \t]")
_NAMES = ("site", "rcsite", "rc_site", "atlas_site", "name")
_OWN = "Tidemill's own format has tables `[[downtime]]` with `site`, `start`, `end` and `reason`; `zone` before them"
_LOG = log.Log("server")


class _OwnRow(msgspec.Struct, forbid_unknown_fields=True):
    start: datetime
    site: str = ""
    end: datetime | None = None
    reason: str = ""


class _OwnFile(msgspec.Struct, forbid_unknown_fields=True):
    downtime: list[_OwnRow] = []
    zone: str = ""


# ---- formats -----------------------------------------------------------------------------------------------------


def parse(text: str, source: DowntimeSource, *, now_us: int) -> Calendar:
    """What a source's text says. Raises ConfigError for what cannot be read as a whole."""
    found = format_of(text)
    _check_name(source, found, text)
    if found == "calendar":
        if not source.site:
            raise ConfigError(_NO_SITE)
        parsed = calendars.parse(text, site=source.site, now=datetime.fromtimestamp(now_us / 1e6, UTC))
    elif found == "cric":
        parsed = _cric(text, source)
    else:
        parsed = _own(text, source.site)
    entries = [each._replace(site=source.names.get(each.site, each.site)) for each in parsed.entries]
    return settled(Parsed(entries, parsed.problems), now_us=now_us)


def format_of(text: str) -> Format:
    """What a source's text is, by its first characters: what is neither a calendar nor JSON is taken for TOML.

    A calendar begins with `BEGIN:VCALENDAR` (RFC 5545 3.4), JSON with `{`, or with `[` and then a record or nothing,
    which TOML never does. Raises ConfigError for an empty text, which is rather a failed download than no downtimes.
    """
    begin = text.lstrip()
    if not begin:
        raise ConfigError("it is empty: write a line `# no downtimes`, or `{}`, where there are none")
    if begin[:15].upper() == "BEGIN:VCALENDAR":
        return "calendar"
    return "cric" if begin.startswith("{") or _LIST.match(begin) else "own"


def _check_name(source: DowntimeSource, found: Format, text: str) -> None:
    """Raises ConfigError for a content that is not what the name of its file or URL promises."""
    ending = _ending(source)
    if found != _NAMED.get(ending, found):
        raise ConfigError(
            f"its name ends with `{ending}`, and its content is not {_WORDS[_NAMED[ending]]}: "
            f"it begins with `{shown(text.lstrip()[:BEGIN_CHARACTERS])}`"
        )


def _ending(source: DowntimeSource) -> str:
    path = source.path
    if path is not None:
        return path.suffix.lower()
    return PurePosixPath(urlsplit(source.place).path).suffix.lower()


def _own(text: str, site: str) -> Parsed:
    try:
        table = config_files.parse_toml(text)
    except UNDECODABLE as error:
        raise ConfigError(
            "it is neither a calendar (`BEGIN:VCALENDAR`), nor JSON of CRIC (`{`), nor a TOML file: "
            f"it begins with `{shown(text.lstrip()[:BEGIN_CHARACTERS])}`; as TOML: {error}",
            hint=_OWN,
        ) from error
    try:
        file = msgspec.convert(table, _OwnFile)
        zone: tzinfo | None = zone_of(file.zone) if file.zone else None
    except UNDECODABLE as error:
        raise ConfigError(
            f"it is not a file of downtimes: {error}",
            hint=_OWN,
        ) from error
    if not table and not _EMPTY.search(text):
        raise ConfigError(
            f"it holds comments only, and begins with `{shown(text.lstrip()[:BEGIN_CHARACTERS])}`: "
            "write a line `# no downtimes` where there are none",
            hint=_OWN,
        )
    parsed = Parsed([], [])
    for row in file.downtime[:ROWS_MAX]:
        name = site or row.site
        moments = [row.start] if row.end is None else [row.start, row.end]
        if not name:
            parsed.problems.append(f"downtime from {row.start} names no site, and is left out")
        elif any(each.tzinfo is None for each in moments) and zone is None:
            parsed.problems.append(
                f"downtime of `{shown(name)}` from {row.start} names no time zone, and is left out: set `zone`, or "
                "write `2026-11-25T08:00:00+01:00`"
            )
        else:
            begin, *end = (
                _us(each if each.tzinfo is not None else each.replace(tzinfo=zone)) for each in moments
            )
            parsed.entries.append(Entry(name, begin, end[0] if end else None, row.reason))
    return parsed


def _us(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def _cric(text: str, source: DowntimeSource) -> Parsed:
    """JSON of CRIC, or of AGIS before it. Times are UTC.

    The shapes are those that programs of experiments read: by site and then by entry (wlcg-cric, in a notebook of
    CERN's transfer monitoring); records with `rc_site` in a list or by their number (in the collector of ePIC's
    production); lists of records by site (AGIS, in ATLAS's Switcher).
    """
    try:
        told = msgspec.json.decode(text.encode())
    except UNDECODABLE as error:
        raise ConfigError(f"it is not JSON: {error}") from error
    if not isinstance(told, list | dict):
        raise ConfigError("it holds neither a list nor a table of downtimes")
    if isinstance(told, dict) and (faults := sorted(_FAULTS & told.keys())):
        raise ConfigError(
            f"it is an error instead of downtimes: it has a key `{faults[0]}`, and begins with "
            f"`{shown(text.lstrip()[:BEGIN_CHARACTERS])}`"
        )
    parsed = Parsed([], [])
    is_understood = False
    for number, (name, row) in enumerate(_cric_rows(told), 1):
        if number > ROWS_MAX:
            raise ConfigError(f"it holds more than {ROWS_MAX} downtimes")
        try:
            entry = _cric_entry(row, source, name)
        except (ValueError, OverflowError) as error:
            parsed.problems.append(f"downtime number {number} is left out: {error}")
            continue
        is_understood = True
        if entry is not None:
            parsed.entries.append(entry)
    if parsed.problems and not is_understood:
        raise ConfigError(f"nothing in it is a downtime of CRIC: {parsed.problems[0]}")
    return parsed


def _cric_rows(told: list[Any] | dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each record, with the site's name where that is its key, or the key of the table that holds it."""
    if isinstance(told, list):
        yield from (("", each) for each in told)
        return
    for key, value in told.items():
        if isinstance(value, list):
            yield from ((key, each) for each in value)
        elif isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values()):
            yield from ((key, each) for each in value.values())
        elif value != {}:  # a site without downtimes
            yield "", value


def _cric_services(row: dict[str, Any]) -> set[str]:
    """What a record says is out of service, in lower case: a text, a list of texts, or of records with `type`."""
    told = row.get("affected_services") or row.get("services") or ""
    if isinstance(told, str):
        return {each.lower() for each in re.split(r"[\s,;]+", told) if each}
    words: set[str] = set()
    for each in told if isinstance(told, list) else ():
        names = (each.get("type"), each.get("name")) if isinstance(each, dict) else (each,)
        words.update(name.lower() for name in names if isinstance(name, str))
    return words


def _cric_entry(row: Any, source: DowntimeSource, key: str) -> Entry | None:
    if not isinstance(row, dict):
        raise ValueError("it is not a record")  # noqa: TRY004 - of foreign content, as all that is wrong there
    if str(row.get("severity") or "").upper() not in OUT_OF_SERVICE:
        return None  # such as WARNING: it works on
    services = _cric_services(row)
    if source.services and services and not services & {each.lower() for each in source.services}:
        return None  # what jobs need works on
    names = (row[each] for each in _NAMES if isinstance(row.get(each), str) and row[each])
    name = source.site or next(names, "") or key
    if not name:
        raise ValueError("it names no site")
    start = _cric_time(row.get("start_time"))
    if start is None:
        raise ValueError("it has no `start_time`")
    return Entry(name, start, _cric_time(row.get("end_time")), str(row.get("description") or ""))


def _cric_time(value: Any) -> int | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ValueError(f"`{shown(str(value))}` is not a time")  # noqa: TRY004 - the same
    found = datetime.fromisoformat(value)
    return _us(found if found.tzinfo is not None else found.replace(tzinfo=UTC))


# ---- reading -----------------------------------------------------------------------------------------------------


def reader_of(settings: Downtimes) -> DowntimeReader:
    """What reads the sources of these settings. Raises ConfigError for sources that could never be read."""
    check(settings)
    sources = tuple(each.place for each in settings.sources)
    return DowntimeReader(sources, lambda now_us: read_all(settings, now_us=now_us))


def check(rules: Downtimes) -> None:
    """Raises ConfigError for sources that could never be read. A file that is not there yet, or damaged, may be mended
    while the server runs."""
    if len(rules.sources) > SOURCES_MAX:
        raise ConfigError(f"`downtimes.sources` names {len(rules.sources)} sources, at most {SOURCES_MAX}")
    for each in rules.sources:
        if not each.place:
            raise ConfigError("a source of downtimes has no `from`", hint="name a file or an https URL")
        if each.path is None:
            check_url(each.place)
        if _is_calendar(each) and not each.site:
            raise ConfigError(f"source of downtimes `{shown(each.place)}`: {_NO_SITE}")


def _is_calendar(source: DowntimeSource) -> bool:
    """Whether a source is a calendar, by its name or, of a file, its content now."""
    if _NAMED.get(_ending(source)) == "calendar":
        return True
    if source.path is None or not source.path.is_file():
        return False
    try:
        return format_of(read(source)) == "calendar"
    except ConfigError:
        return False


def check_url(url: str) -> None:
    """Raises ConfigError for an address that is not read."""
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.username is not None or parts.hostname is None:
        raise ConfigError(f"`{shown(url)}` is not an https address without credentials")


def read(source: DowntimeSource) -> str:
    """A source's text. Raises ConfigError, or SiteError for one that does not answer now."""
    if source.path is not None:
        try:
            with source.path.open("rb") as file:
                content = file.read(BYTES_MAX + 1)
        except OSError as error:
            raise ConfigError(f"it cannot be read: {error.strerror}") from error
    else:
        check_url(source.place)
        content = _fetched(source)
    if len(content) > BYTES_MAX:
        raise ConfigError(f"it is longer than {BYTES_MAX} bytes")
    if content.removeprefix(codecs.BOM_UTF8).lstrip()[:15].upper() == b"BEGIN:VCALENDAR":
        content = _FOLD.sub(
            b"", content
        )  # before decoding: lines may be folded inside a character (RFC 5545 3.1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error


def _fetched(source: DowntimeSource) -> bytes:
    """The page there. Redirections are not followed: they may lead to another host. Raises SiteError."""
    parts = urlsplit(source.place)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    bound = TimeLimit(READ_S)
    try:
        tls = Credentials(ca=source.ca).context()
        host, port = parts.hostname or "", parts.port or 443
        server = HttpServer(
            host, port, timeout_s=READ_S, tls=tls, connect=partial(socket_to, host, port, private=True)
        )
        with closing(server.ask("GET", path, headers={}, bound=bound)) as answer:
            content = answer.body(BYTES_MAX + 1)
    except (ExchangeError, OSError, ValueError) as error:
        raise SiteError(f"{source.place} does not answer: {error}") from error
    if answer.status != 200:
        raise SiteError(f"{source.place} answers {answer.status} {answer.reason}")
    return content


def read_all(rules: Downtimes, *, now_us: int) -> Iterator[Reading]:
    """Read every source; none of them holds up the others with what is wrong with it. Files come first, then those that
    answer, as they answer. Threads that wait for a server end with this process."""
    for each in rules.sources:
        if each.path is not None:
            yield _reading(each, now_us)
    far = [each for each in rules.sources if each.path is None]
    for first in range(0, len(far), AT_ONCE):
        found: SimpleQueue[Reading] = SimpleQueue()
        asked = far[first : first + AT_ONCE]
        for each in asked:
            threading.Thread(target=_read_into, args=(found, each, now_us), daemon=True).start()
        for _ in asked:
            yield found.get()


def _read_into(found: SimpleQueue[Reading], source: DowntimeSource, now_us: int) -> None:
    found.put(_reading(source, now_us))


def _reading(source: DowntimeSource, now_us: int) -> Reading:
    try:
        text = read(source)
        calendar = parse(text, source, now_us=now_us)
    except TidemillError as error:
        return Reading(source.place, None, shown(error.message))
    except Exception as error:  # noqa: BLE001 - foreign content: what is wrong with it holds up no other source
        _LOG.error("downtimes.unreadable", source=source.place, error=repr(error)[:500])
        return Reading(source.place, None, shown(repr(error)))
    problems = "; ".join(calendar.problems)[:2000]
    return Reading(source.place, calendar.downtimes, problems, _WORDS[format_of(text)])
