"""Which file system a path lies on, from /proc/self/mountinfo; refuses a database on a network file system."""

from __future__ import annotations

from pathlib import Path

from tidemill.errors import ConfigError
from tidemill.model.file_systems import is_shared

MOUNTINFO = Path("/proc/self/mountinfo")


def file_system(path: Path, mountinfo: str | None = None) -> str:
    """Type of the file system below `path` (or below its nearest parent that exists), such as `ext4`; `` if unknown.

    The format is that of proc_pid_mountinfo(5): field 5 is the mount point, the type follows the lone dash.
    """
    real = path.resolve()
    text = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape") if mountinfo is None else mountinfo
    best, found = -1, ""
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(_unescape(fields[4]))
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), right.split(" ", 1)[0]
    return found


def refuse_network(path: Path, mountinfo: str | None = None) -> None:
    """Raise ConfigError if `path` lies on a network file system: SQLite's locks do not hold there."""
    kind = file_system(path, mountinfo)
    if is_shared(kind):
        raise ConfigError(
            f"database directory `{path}` is on a network file system: `{kind}`",
            hint='use a local disk of the server\'s machine, or PostgreSQL (`database = "postgresql://..."`)',
        )


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
