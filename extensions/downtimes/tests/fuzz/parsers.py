"""The reader of calendars, as its process runs it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tests.fuzz.parser import Parser

from tidemill.errors import ConfigError
from tidemill_downtimes import ical

CORPUS = Path(__file__).parent / "corpus"


def _calendar(content: bytes) -> object:
    found = ical.parse(content.decode(errors="replace"), site="lmu", now=datetime(2026, 11, 28, tzinfo=UTC))
    assert all(each.site == "lmu" for each in found.entries)
    return found


PARSERS = [Parser("calendar", _calendar, (ConfigError,), corpus=CORPUS)]
