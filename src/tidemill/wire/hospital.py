"""The hospital in messages: cures in orders; wards, stays and downtimes in answers to clients."""

from __future__ import annotations

import msgspec


class Cure(msgspec.Struct, frozen=True, kw_only=True):
    """Gentler settings with which a job of a ward runs at this site. Memory and cores stand in the order's `spec`."""

    ward: str
    memory_factor: float = 1.0
    read: str = (
        ""  #: `file` = inputs are staged whole, `cache` = read through the site's cache; empty = as it asks
    )
    whole_node: bool = False  #: one payload on a node


class StayRow(msgspec.Struct, kw_only=True):
    """A job's stay in a ward. `outcome`: `there`, `cured`, `failed`, `canceled` or `home` (it went back)."""

    ward: str
    cure: str  #: what was changed; empty = nothing
    why: str  #: it was admitted
    admitted_us: int
    outcome: str
    site: str  #: that treated it
    ended_us: int | None


class WardRow(msgspec.Struct, kw_only=True):
    """A ward with the outcomes of all stays there ever were. `share`: cured, of those that ended there; None = none."""

    ward: str
    sites: list[str]  #: that treat; empty = every site but the job's home
    cure: str
    admits: str
    moves_max: int
    there: int
    cured: int
    failed: int
    canceled: int
    home: int
    share: float | None
    is_open: bool = True  #: False: server.toml does not name it any more


class DowntimeRow(msgspec.Struct, kw_only=True):
    """A downtime of a site. `is_now`: the site counts as down for it now, from shortly before it begins."""

    site: str
    start_us: int
    end_us: int
    reason: str
    source: str
    is_now: bool = False


class CalendarRow(msgspec.Struct, kw_only=True):
    """A source of downtimes, and what is wrong with it. `entries`: that end in the future."""

    source: str
    read_us: int
    error: str
    entries: int


class DowntimeList(msgspec.Struct, kw_only=True):
    """Answer of `GET /v1/downtimes`."""

    downtimes: list[DowntimeRow]
    sources: list[CalendarRow]
