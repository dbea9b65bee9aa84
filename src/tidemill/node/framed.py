"""Framed lines (CRC-32, JSON) of append-only files on file systems that cache: see `wire/node.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar
from zlib import crc32

from tidemill.errors import UNDECODABLE, ProtocolError, SiteError

READ_BYTES_MAX = 16 << 20
LINE_BYTES_MAX = 1 << 20
_QUOTE_BYTES_MAX = 200
_T = TypeVar("_T")


def frame(content: bytes) -> bytes:
    """The framed line of a JSON text without newlines."""
    return b"%08x %s\n" % (crc32(content), content)


Refuse = Callable[[str], None]
"""Takes the reason why a line is passed over."""


def decode_lines(
    data: bytes, decode: Callable[[bytes], _T], *, source: str = "journal", refuse: Refuse | None = None
) -> tuple[list[_T], int]:
    """The records of the whole, correct lines at the start of `data`, and the bytes that they take.

    What follows is a torn tail. A line that checks but is not such a record (a bug, a newer version or an attacker
    wrote it) raises ProtocolError, or is passed over and reported to `refuse`.
    """
    records: list[_T] = []
    used = 0
    end = data.rfind(b"\n")
    if end < 0:
        return records, 0
    append = records.append
    for line in data[:end].split(b"\n"):
        content = line[9:]
        if b"%08x " % crc32(content) != line[:9]:
            break
        try:
            append(decode(content))
        except UNDECODABLE as error:
            quote = content[:_QUOTE_BYTES_MAX].decode(errors="replace")
            why = f"failed to read a record of {source}: {error}; the line starts with `{quote}`"
            if refuse is None:
                raise ProtocolError(why, hint="another version wrote it: update tidemill here") from error
            refuse(why)
        used += len(line) + 1
    return records, used


class FramedTail(Generic[_T]):
    """Reads what is new in one file that others append to. `offset` is where the next whole line starts.

    Opens the file by its path each time, since network file systems cache what an open descriptor sees, and
    looks at content only, never at times. `refuse` as in `decode_lines`.
    """

    def __init__(
        self, path: Path, decode: Callable[[bytes], _T], *, offset: int = 0, refuse: Refuse | None = None
    ) -> None:
        self.path = path
        self.offset = offset
        self._decode = decode
        self._refuse = refuse

    def read(self, bytes_max: int = READ_BYTES_MAX) -> list[_T]:
        """The records that have become whole since the last call, from at most `bytes_max` bytes.

        Nothing where the file is not there (yet). Raises SiteError where it cannot be read, ProtocolError for
        a record of an unknown kind.
        """
        try:  # a FIFO of that name would block without O_NONBLOCK; a file does not know it
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SiteError(f"failed to open `{self.path}`: {error.strerror}") from error
        try:
            data = os.pread(descriptor, max(bytes_max, LINE_BYTES_MAX), self.offset)
        except OSError as error:
            raise SiteError(f"failed to read `{self.path}` at {self.offset}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        records, used = decode_lines(data, self._decode, source=f"`{self.path}`", refuse=self._refuse)
        self.offset += used
        return records
