"""Sections of `server.toml`: the web pages."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import constant


class Web(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[web]`: the pages for people."""

    pages: Annotated[
        bool,
        constant(
            "Show pages to browsers, on the addresses where the API answers: they show what the API would answer, to "
            "the same people"
        ),
    ] = True
