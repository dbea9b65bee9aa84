"""The room for jobs: what all submitters together may store, and free space that no jobs may take."""

from __future__ import annotations

import shutil
from pathlib import Path

from tidemill.config.quotas import Quotas
from tidemill.server.database.store import Session, row
from tidemill.server.errors import RoomError

SHARE_MAX = 0.5  #: of the file system that holds the database
POSTGRESQL_BYTES_MAX = 100_000_000_000  #: its file system may be another machine's
FREE_SHARE = 0.02  #: of the file system stays free, at most FREE_BYTES
FREE_BYTES = 5_000_000_000
_HINT = (
    "cancel or wait for jobs that are not needed and try again later, or ask the server's operator: what was canceled "
    "before it ran is freed after a day, what ended after `archive.keep_days`"
)


class Storage:
    """The limits of a server. `path`: of an SQLite database; None = the database is PostgreSQL."""

    def __init__(self, path: Path | None, quotas: Quotas, *, free_bytes_min: int | None = None) -> None:
        self._folder = None if path is None else path.parent
        total_bytes = None if self._folder is None else shutil.disk_usage(self._folder).total
        default = POSTGRESQL_BYTES_MAX if total_bytes is None else int(SHARE_MAX * total_bytes)
        self.bytes_max = quotas.all_stored_bytes_max or default
        least = 0 if total_bytes is None else int(min(FREE_BYTES, FREE_SHARE * total_bytes))
        self.free_bytes_min = least if free_bytes_min is None else free_bytes_min

    def check_free(self) -> None:
        """Raises RoomError if the database's file system has too little free space for more jobs. Cost: one system
        call."""
        free_bytes = self.free_bytes()
        if free_bytes is not None and free_bytes < self.free_bytes_min:
            raise RoomError(
                f"the server's disk has {free_bytes} bytes of free space; below "
                f"{self.free_bytes_min} it takes no more jobs, and those that it has go on",
                hint="the server's operator has to free space; then submit again",
            )

    def check_stored(self, session: Session, more_bytes: int) -> None:
        """Raises RoomError if all submitters together would store too much."""
        would_be = stored_bytes(session) + more_bytes
        if would_be > self.bytes_max:
            raise RoomError(
                f"there would be {would_be} bytes of jobs of all submitters; the quota "
                f"`quotas.all_stored_bytes_max` is {self.bytes_max}",
                hint=_HINT,
            )

    def free_bytes(self) -> int | None:
        """Free space of the database's file system; None = it is not known."""
        return None if self._folder is None else shutil.disk_usage(self._folder).free

    def is_short(self, session: Session) -> bool:
        """Whether submissions are refused now."""
        free_bytes = self.free_bytes()
        is_low = free_bytes is not None and free_bytes < self.free_bytes_min
        return is_low or stored_bytes(session) >= self.bytes_max


def stored_bytes(session: Session) -> int:
    """What the jobs of all submitters count for."""
    found = row(session, "stored_of_all")
    return 0 if found is None else int(found[0])
