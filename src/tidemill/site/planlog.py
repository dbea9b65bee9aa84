"""SITE/harvest/YYYY-MM-DD.jsonl: what the broker did and why, as `harvest/account/records.py` has it. Appends only.

Evidence for people and for `site harm`; what must survive a crash is in the site's log. One write(2) a line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidemill.errors import ProtocolError, SiteError
from tidemill.files import open_append, write_all
from tidemill.harvest.account.records import AnyRecord, decode, encode, file_name

DAYS_KEPT = 400
RECENT_BYTES_MAX = 32 << 20
_NAME = re.compile(r"\d{4}-\d\d-\d\d\.jsonl")


class PlanLog:
    """Appends records to the file of their day."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = ""
        self._descriptor = -1

    def append(self, records: Sequence[AnyRecord]) -> None:
        """Write the records. Raises SiteError."""
        for record in records:
            name = file_name(record.at_s)
            try:
                if name != self._name:
                    self._open(name)
                write_all(self._descriptor, encode(record))  # of a crash only the last lines are missed
            except OSError as error:
                raise SiteError(f"failed to write `{self._directory / name}`: {error.strerror}") from error

    def recent(self) -> Iterator[AnyRecord]:
        """The records of the last two days, oldest first; at most the last `RECENT_BYTES_MAX` of each. A line that was
        torn by a crash is passed over. Raises SiteError."""
        for name in self._days()[-2:]:
            try:
                with (self._directory / name).open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - RECENT_BYTES_MAX))
                    lines = file.read().split(b"\n")
            except OSError as error:
                raise SiteError(f"failed to read `{self._directory / name}`: {error.strerror}") from error
            for line in lines:
                try:
                    yield decode(line)
                except ProtocolError:
                    continue

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._name = -1, ""

    def _open(self, name: str) -> None:
        self.close()
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = open_append(self._directory / name)
        self._name = name
        for old in self._days()[:-DAYS_KEPT]:
            (self._directory / old).unlink(missing_ok=True)

    def _days(self) -> list[str]:
        if not self._directory.is_dir():
            return []
        return sorted(each.name for each in self._directory.iterdir() if _NAME.fullmatch(each.name))
