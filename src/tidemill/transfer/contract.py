"""What moves data for one URL scheme."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A file that came. `sha256`: hexadecimal, of the bytes that were written; None = nobody asked for it."""

    size_bytes: int
    sha256: str | None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file to come, as its place tells it now. `version` differs whenever the content may differ."""

    path: str
    size_bytes: int
    version: str


class Transfer(Protocol):
    """One way of moving files. Raises SiteError (transient or not) naming the URL and what came back."""

    def look(self, url: str) -> Source:
        """Size and version of what the URL names."""

    def fetch(self, source: Source, target: Path, *, sha256: str | None) -> Fetched:
        """Copy it to `target`, which does not exist; with `sha256` a file with another checksum is refused."""
