"""`[[wards]]` and `[downtimes]` of server.toml: where jobs are treated that wait or fail at home; downtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import CREDENTIALS, Duration, Place, doc, name_of, path_in

WARDS_MAX = 20
SOURCES_MAX = 50


class WardCure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cure` of a ward: gentler settings for the jobs that are treated there."""

    memory_factor: Annotated[
        float, msgspec.Meta(ge=1, le=64), doc("Factor on the memory that the job asks for")
    ] = 1.0
    read: Annotated[
        Literal["", "file", "cache"],
        doc(
            "How inputs are read: `file` = staged whole, `cache` = through the treating site's cache; empty = as the "
            "job asks"
        ),
    ] = ""
    whole_node: Annotated[bool, doc("A node runs one payload of the job at a time")] = False

    @property
    def text(self) -> str:
        """What the cure changes, for people; empty = nothing."""
        parts = [f"memory x {self.memory_factor:g}"] if self.memory_factor > 1 else []
        parts += {"file": ["inputs staged whole"], "cache": ["read through the cache"]}.get(self.read, [])
        parts += ["one payload per node"] if self.whole_node else []
        return ", ".join(parts)


class Ward(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[wards]]`: which jobs that have a home become eligible at other sites, and with which settings. The first ward
    that admits a job takes it."""

    name: Annotated[
        str,
        name_of(100, "._+-"),
        doc("Name: letters, digits and `._+-`"),
    ]
    waited_s: Annotated[
        Annotated[Duration, msgspec.Meta(ge=0)] | None,
        doc("Admit jobs that have waited this long for their home site; none = do not admit by waiting"),
    ] = None
    failures: Annotated[
        list[str],
        doc(
            "Admit jobs whose events failed for good in one of these classes, such as `memory`: the events run again "
            "here instead"
        ),
    ] = []
    home_down: Annotated[
        bool, doc("Admit jobs whose home site is down or silent, and send them home afterwards")
    ] = False
    sites: Annotated[list[str], doc("Sites that treat the jobs; empty = every site but their home")] = []
    cure: Annotated[WardCure, doc("Gentler settings")] = WardCure()


class DowntimeSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[downtimes.sources]]`: a file or an https address with downtimes."""

    place: Annotated[
        Place,
        doc(
            "File or `https` URL to read: a calendar (RFC 5545), JSON as CRIC answers, or Tidemill's own TOML "
            "(docs/hospital.md), which its content shows. No redirect is followed"
        ),
    ] = msgspec.field(name="from")
    site: Annotated[
        str, doc("Every entry concerns this site; empty = entries name it (a calendar needs it)")
    ] = ""
    names: Annotated[
        dict[str, str],
        doc("What the source calls a site -> what it is called here, such as `LRZ-LMU = 'lmu'`"),
    ] = {}
    services: Annotated[
        list[str],
        doc(
            "Of JSON of CRIC only entries that affect one of these services count, such as `CE`; entries that name "
            "none always do; empty = all count"
        ),
    ] = []
    ca: Annotated[Path | None, doc(CREDENTIALS["ca"])] = None

    @property
    def path(self) -> Path | None:
        """The file to read; None where it is a URL."""
        return path_in(self.place)


class Downtimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[downtimes]`: when sites are out of service."""

    sources: Annotated[list[DowntimeSource], doc("Where downtimes are read from")] = []
