"""The settings of this extension: `[gridengine]` of site.toml."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import doc
from tidemill.config.tables import SettingsTable


class GridEngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Grid Engine is asked with, besides `[cluster]`."""

    parallel_environment: Annotated[
        str,
        doc(
            "Parallel environment that gives all slots of a node; empty = none, which does where nodes have one slot"
        ),
    ] = ""


SETTINGS = SettingsTable("site.toml", GridEngineSettings)
