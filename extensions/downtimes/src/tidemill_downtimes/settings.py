"""The settings of this extension: `[downtimes]` of server.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from tidemill.config.keys import CREDENTIALS, Place, doc, path_in
from tidemill.config.tables import SettingsTable

SOURCES_MAX = 50


class DowntimeSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[downtimes.sources]]`: a file or an https address with downtimes."""

    place: Annotated[
        Place,
        doc(
            "File or `https` URL to read: a calendar (RFC 5545), JSON as CRIC answers, or Tidemill's own TOML, "
            "which its content shows. No redirect is followed"
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
    """When sites are out of service."""

    sources: Annotated[list[DowntimeSource], doc("Where downtimes are read from")] = []


SETTINGS = SettingsTable("server.toml", Downtimes, examples={"sources": 'from = "downtimes.toml"'})
