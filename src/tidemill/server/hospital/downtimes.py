"""Downtimes of sites: which extension reads them, and what the database keeps.

A source that cannot be read changes nothing: what it said last holds on, and listings say since when.
"""

from __future__ import annotations

import msgspec

from tidemill.config.server import ServerConfig
from tidemill.config.tables import provided
from tidemill.server import constants
from tidemill.server.database.store import Session
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.hospital.readings import (
    NOWHERE,
    Downtime,
    DowntimeReader,
    Reading,
    down_at,
    rows_of,
)
from tidemill.wire.hospital import CalendarRow, DowntimeList, DowntimeRow

NAME = "downtimes"
"""Of the table of settings, and of the entry point."""


class _Kept(msgspec.Struct, frozen=True):
    """What the database keeps of a source, in column `body`. `format` empty: it was never read."""

    format: str = ""
    downtimes: list[Downtime] = []


_BODY = msgspec.json.Decoder(_Kept)


def reader_of(config: ServerConfig) -> DowntimeReader:
    """What reads the downtimes of a server. Raises ConfigError for sources that could never be read."""
    return provided(NAME, DowntimeReader, config) or NOWHERE


def store(work: UnitOfWork, reading: Reading) -> None:
    """Keep what was read. Of a source that could not be read the last calendar stays, with what is wrong now."""
    old = next((row for row in work.session.rows("calendars") if row.source == reading.source), None)
    last = _Kept() if old is None else _kept(old.body)
    error = reading.error
    why = "" if reading.calendar is None else _why_not(last, reading, work.now_us)
    if reading.calendar is None or why:
        read_us, kept, error = (0 if old is None else old.read_us), last, why or error
    else:
        read_us, kept = work.now_us, _Kept(reading.format, reading.calendar)
    body = msgspec.json.encode(kept)
    work.session.run("upsert_calendar", source=reading.source, read_us=read_us, error=error, body=body)


def _why_not(last: _Kept, reading: Reading, now_us: int) -> str:
    """Why what was read does not take the place of what the source said last; empty = it does.

    A source that changes its format has rather become an answer of another service, such as an error, than a
    calendar without the downtimes that it announced.
    """
    if last.format in ("", reading.format) or not any(each.end_us > now_us for each in last.downtimes):
        return ""
    return (
        f"it was {last.format} with downtimes that are not over, and is {reading.format} now: "
        "what it said last holds. Bring the former format back; or, if the change is meant, remove the source from "
        "server.toml, restart the server, add it again, and restart the server"
    )


def _kept(body: bytes) -> _Kept:
    return _BODY.decode(bytes(body))


def forget_others(work: UnitOfWork, reader: DowntimeReader) -> None:
    """Drop what sources said that server.toml names no more."""
    for row in work.session.rows("calendars"):
        if row.source not in reader.sources:
            work.session.run("delete_calendar", source=row.source)


def down_now(session: Session, reader: DowntimeReader, *, now_us: int) -> dict[str, tuple[int, str]]:
    """The sites that are down now by all calendars together: until when, and why. What a source said that server.toml
    names no more does not count."""
    rows = [row for row in session.rows("calendars") if row.source in reader.sources]
    found = [each for row in rows for each in _kept(row.body).downtimes]
    return down_at(found, now_us=now_us, lead_s=constants.DOWNTIMES_LEAD_S)


def listed(session: Session, reader: DowntimeReader, *, now_us: int) -> DowntimeList:
    """Every downtime that is not over, and every source."""
    rows: list[DowntimeRow] = []
    sources: list[CalendarRow] = []
    for source, read_us, error, body in session.rows("calendars"):
        if source not in reader.sources:
            continue
        left = [each for each in _kept(body).downtimes if each.end_us > now_us]
        sources.append(CalendarRow(source=source, read_us=read_us, error=error, entries=len(left)))
        rows += rows_of(left, source, now_us=now_us, lead_s=constants.DOWNTIMES_LEAD_S)
    return DowntimeList(downtimes=sorted(rows, key=lambda row: (row.start_us, row.site)), sources=sources)
