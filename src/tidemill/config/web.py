"""Sections of `server.toml`: the web pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from tidemill.config.keys import constant, doc


class Web(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[web]`: the pages for people."""

    pages: Annotated[
        bool,
        constant(
            "Show pages to browsers, on the addresses where the API answers: they show what the API would answer, to "
            "the same people"
        ),
    ] = True
    secret_file: Annotated[
        Path | None,
        doc(
            "File (mode 0600) with a secret that signs sessions, the same at both servers of a pair; none = a new "
            "secret at each start, which ends all sessions"
        ),
    ] = None
