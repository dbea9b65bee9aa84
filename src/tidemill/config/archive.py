"""Sections of `server.toml`: the archive of ended campaigns."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import doc


class Archiving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[archive]`: when ended campaigns go to `archive/` in the server's directory."""

    keep_days: Annotated[
        float,
        msgspec.Meta(gt=0, le=36_500),
        doc(
            "Keep ended campaigns in the database, where their jobs can be retried, for N days; then archive them. "
            "Jobs that were canceled before they ran may lose large specifications earlier (docs/operations.md, Room "
            "for jobs)"
        ),
    ] = 90.0
