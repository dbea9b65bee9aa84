"""Reads calendars by `ical` in a separate process, with limits on processor time and memory.

A rule of a few bytes can ask for hours of work (RFC 5545 3.3.10 sets no bound). In the server's process that would hold
up all threads; a separate process can be killed.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import msgspec

from tidemill.errors import UNDECODABLE, ConfigError, SiteError
from tidemill_downtimes.entries import CalendarText, Parsed, shown

CPU_S_MAX = 20
"""Ten thousand events without rules take 2 s, and a thousand weekly rules of five years take 6 s (one core, 2026)."""

WALL_S_MAX = 120.0  #: the machine may be busy

_COMMAND = [sys.executable, "-I", "-m", "tidemill_downtimes.ical"]


def parse(text: str, *, site: str, now: datetime, cpu_s: int = CPU_S_MAX) -> Parsed:
    """The downtimes of a calendar, all of one site. Takes half a second. Raises ConfigError for text that is not a
    calendar or takes too much work, and SiteError if the process does not start or end."""
    asked = CalendarText(site, int(now.timestamp() * 1_000_000), cpu_s, text)
    try:
        ended = subprocess.run(
            _COMMAND, input=msgspec.json.encode(asked), capture_output=True, timeout=WALL_S_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SiteError(
            f"reading it took more than {WALL_S_MAX:.0f} s: this machine may be overloaded"
        ) from error
    except OSError as error:
        raise SiteError(f"failed to start the process that reads calendars: {error.strerror}") from error
    if ended.returncode < 0:
        raise ConfigError(
            f"reading it takes more than {cpu_s} s of processor time: simplify its rules (RRULE)"
        )
    try:
        answer = msgspec.json.decode(ended.stdout, type=Parsed | str)
    except UNDECODABLE as error:
        last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        if last.startswith("MemoryError"):
            raise ConfigError("reading it takes more than 1 GB of memory") from error
        raise ConfigError(f"it cannot be read: {shown(last)}") from error
    if isinstance(answer, str):
        raise ConfigError(answer)
    return answer
