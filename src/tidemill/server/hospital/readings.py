"""Downtimes as they come from what reads them, which an extension makes (docs/extensions.md). Pure.

Imports little: the process that reads a calendar has a bound on its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from tidemill.wire.hospital import DowntimeRow


class Downtime(msgspec.Struct, frozen=True, array_like=True):
    """A time in which a site is out of service."""

    site: str
    start_us: int
    end_us: int
    reason: str = ""


class Reading(msgspec.Struct, frozen=True):
    """What came of reading one source. `calendar` None = nothing could be read: what it said last holds. `format`: what
    the source is, for people, such as `a calendar`."""

    source: str
    calendar: list[Downtime] | None
    error: str
    format: str = ""


class DowntimeReader(NamedTuple):
    """Where a server reads downtimes: an extension makes it of the settings (docs/extensions.md). `read` gets the time,
    and yields what came of each source; a slow one holds up no other, and none raises an error."""

    sources: tuple[str, ...]
    read: Callable[[int], Iterator[Reading]]


def _nothing(now_us: int) -> Iterator[Reading]:
    return iter(())


NOWHERE = DowntimeReader((), _nothing)


def rows_of(downtimes: list[Downtime], source: str, *, now_us: int, lead_s: float) -> list[DowntimeRow]:
    """Downtimes of a source as rows of a listing."""
    return [
        DowntimeRow(
            site=each.site, start_us=each.start_us, end_us=each.end_us, reason=each.reason, source=source,
            is_now=each.start_us - int(lead_s * 1e6) <= now_us < each.end_us,
        )
        for each in downtimes
    ]  # fmt: skip


def down_at(downtimes: list[Downtime], *, now_us: int, lead_s: float) -> dict[str, tuple[int, str]]:
    """The sites that are down now, from `lead_s` before a downtime begins: until when, and why."""
    found: dict[str, tuple[int, str]] = {}
    for each in sorted(downtimes, key=lambda one: one.start_us):
        until_us, reason = found.get(each.site, (0, ""))
        begins_us = each.start_us - int(lead_s * 1e6)
        if (begins_us <= now_us < each.end_us) or (until_us and each.start_us <= until_us < each.end_us):
            found[each.site] = (max(until_us, each.end_us), reason or each.reason)
    return found
