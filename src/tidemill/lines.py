"""Lines of a large text file by their number: a million of them are never held.

A line ends only at a newline, as in the pilot: a form feed or U+2028 is part of its line. A byte order mark at the
beginning of the file is not.
"""

from __future__ import annotations

import threading
from array import array
from codecs import BOM_UTF8
from pathlib import Path

STEP = 1000
"""The start of every STEP-th line is held."""

KNOWN_MAX = 1000
"""Files whose lines are found without reading them from their beginning."""


class NumberedLines:
    """The lines of a file that does not change. Takes one read of the file to make, and 8 bytes for each 1000 lines."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._starts = array("Q")
        self.count = 0
        offset = 0
        with path.open("rb") as file:
            for line in file:
                if self.count % STEP == 0:
                    self._starts.append(offset)
                offset += len(line)
                self.count += 1
            file.seek(0)
            if self.count and file.read(len(BOM_UTF8)) == BOM_UTF8:
                self._starts[0] = len(BOM_UTF8)

    def read(self, first: int, end: int) -> list[str]:
        """The lines `first` to `end - 1` without blanks at their ends, as far as the file has them. Raises OSError."""
        end = min(end, self.count)
        if first >= end:
            return []
        with self._path.open("rb") as file:
            file.seek(self._starts[first // STEP])
            for _ in range(first % STEP):
                file.readline()
            return [file.readline().decode(errors="replace").strip() for _ in range(first, end)]


class KnownLines:
    """The lines of the files that were asked for last. Thread-safe: two that ask for a new file may both read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, NumberedLines] = {}  #: the newest last

    def numbered(self, path: Path) -> NumberedLines:
        """The lines of a file; one that has changed is another file. Raises OSError."""
        status = path.stat()
        key = f"{path} {status.st_ino} {status.st_mtime_ns} {status.st_size}"
        with self._lock:
            result = self._known.pop(key, None)
        if result is None:
            result = NumberedLines(path)
        with self._lock:
            while len(self._known) >= KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = result
        return result
