"""Sections of `server.toml`: the archive of ended campaigns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from tidemill.config.keys import doc


class Archiving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[archive]`: where ended campaigns go."""

    keep_days: Annotated[
        float,
        msgspec.Meta(gt=0, le=36_500),
        doc("Keep ended campaigns in the database, where they can be retried, for N days; then archive them"),
    ] = 90.0
    dir: Annotated[
        Path | None,
        doc(
            "Directory of the archive; none = `archive` in the server's directory. A pair of servers shares it"
        ),
    ] = None
