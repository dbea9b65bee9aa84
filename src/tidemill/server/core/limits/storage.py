"""The room for jobs: what all submitters together may store, and free space that no jobs may take."""

from __future__ import annotations

import shutil
from pathlib import Path

from tidemill.config.quotas import Quotas
from tidemill.model.quantities import bytes_text
from tidemill.server import constants
from tidemill.server.database.store import Session, value
from tidemill.server.errors import RoomError

SHARE_MAX = 0.5  #: of the file system that holds the database
POSTGRESQL_BYTES_MAX = 100_000_000_000  #: its file system may be another machine's
FREE_SHARE = 0.01  #: of the file system stays free, at most FREE_BYTES
FREE_BYTES = 1_000_000_000
SHORT_SHARE = 0.5  #: room is short from this part of what may be stored on
_HINT = (
    "try again later, or ask the server's operator to raise the quota or to archive earlier: ended campaigns leave "
    "after `archive.keep_days` days; canceling jobs frees room only a day later, and only that of specifications "
    "of more than 2 kB whose jobs never ran"
)


class Storage:
    """The limits of a server. `path`: of an SQLite database; None = the database is PostgreSQL."""

    def __init__(self, path: Path | None, quotas: Quotas, *, free_bytes_min: int | None = None) -> None:
        self._folder = None if path is None else path.parent
        total_bytes = None if self._folder is None else shutil.disk_usage(self._folder).total
        default = POSTGRESQL_BYTES_MAX if total_bytes is None else int(SHARE_MAX * total_bytes)
        self.bytes_max = quotas.all_stored_bytes_max or default
        self._owner_bytes_max = constants.STORED_BYTES_MAX
        least = 0 if self._folder is None else floor_bytes(self._folder)
        self.free_bytes_min = least if free_bytes_min is None else free_bytes_min

    def check_free(self) -> None:
        """Raises RoomError if the database's file system has too little free space for more jobs. Cost: one system
        call."""
        free_bytes = self.free_bytes()
        if free_bytes is not None and free_bytes < self.free_bytes_min:
            has, least = sizes_text(free_bytes, self.free_bytes_min)
            raise RoomError(
                f"the server's disk has {has} of free space; below {least} the server takes no more jobs, and those "
                "that it has go on",
                hint="the server's operator has to free space; then submit again",
            )

    def check_stored(self, session: Session, more_bytes: int) -> None:
        """Raises RoomError if all submitters together would store too much."""
        would_be = stored_bytes(session) + more_bytes
        if would_be > self.bytes_max:
            size, most = sizes_text(would_be, self.bytes_max)
            raise RoomError(
                f"{size} of jobs would be stored, and all submitters together may store {most} "
                "(`quotas.all_stored_bytes_max`)",
                hint=_HINT,
            )

    def free_bytes(self) -> int | None:
        """Free space of the database's file system; None = it is not known."""
        return None if self._folder is None else shutil.disk_usage(self._folder).free

    def is_over(self, session: Session) -> bool:
        """Whether submissions are refused now."""
        return self._is_low() or stored_bytes(session) >= self.bytes_max

    def short_of(self, session: Session) -> list[str] | None:
        """The owners whose canceled jobs are to make room now: those with over half of their quota. None = those of all
        owners, as all together have over half, or the disk is nearly full."""
        if self._is_low() or stored_bytes(session) > SHORT_SHARE * self.bytes_max:
            return None
        least = int(SHORT_SHARE * self._owner_bytes_max)
        return [owner for (owner,) in session.rows("owners_storing", bytes=least)]

    def _is_low(self) -> bool:
        free_bytes = self.free_bytes()
        return free_bytes is not None and free_bytes < self.free_bytes_min


def sizes_text(one: int, other: int) -> tuple[str, str]:
    """Two sizes for a sentence that compares them: in bytes where rounded ones would be the same."""
    short = bytes_text(one), bytes_text(other)
    return short if short[0] != short[1] else (f"{one:,} B", f"{other:,} B")


def floor_bytes(folder: Path) -> int:
    """Free space on the file system of a directory below which a server with its database there takes no jobs."""
    return int(min(FREE_BYTES, FREE_SHARE * shutil.disk_usage(folder).total))


def stored_bytes(session: Session) -> int:
    """What the jobs of all submitters count for."""
    found = value(session, "stored_of_all")
    return 0 if found is None else int(found)
