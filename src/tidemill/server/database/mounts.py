"""Refuses a database on a network file system."""

from __future__ import annotations

from pathlib import Path

from tidemill.errors import ConfigError
from tidemill.model.file_systems import file_system, is_shared


def refuse_network(path: Path, mountinfo: str | None = None) -> None:
    """Raise ConfigError if `path` lies on a network file system: SQLite's locks do not hold there."""
    kind = file_system(path, mountinfo)
    if is_shared(kind):
        raise ConfigError(
            f"database directory `{path}` is on a network file system: `{kind}`",
            hint='use a local disk of the server\'s machine, or PostgreSQL (`database = "postgresql://..."`)',
        )
