"""Framed lines (CRC-32, JSON) of append-only files on file systems that cache: see `wire/node.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar
from zlib import crc32

from tidemill import clock
from tidemill.errors import UNDECODABLE, ProtocolError, SiteError
from tidemill.log import Log

READ_BYTES_MAX = 16 << 20
LINE_BYTES_MAX = 1 << 20
DAMAGE_S = 60.0
"""A line that fails its checksum while others follow counts as damaged after this time: before that, a network file
system may still show pages that it has not read yet (its cache time is often 60 s)."""

_QUOTE_BYTES_MAX = 200
_log = Log("framed")
_T = TypeVar("_T")


def frame(content: bytes) -> bytes:
    """The framed line of a JSON text without newlines."""
    return b"%08x %s\n" % (crc32(content), content)


Refuse = Callable[[str], None]
"""Takes the reason why a line is passed over."""

Damage = Callable[[int, int], None]
"""Takes where damage starts and ends that is passed over."""


def decode_lines(
    data: bytes,
    decode: Callable[[bytes], _T],
    *,
    source: str = "journal",
    refuse: Refuse | None = None,
    damage: Damage | None = None,
) -> tuple[list[_T], int]:
    """The records of the whole, correct lines at the start of `data`, and the bytes that they take.

    What follows is a torn tail. With `damage`, lines that do not check are reported to it and passed over where a
    correct one follows. A line that checks but is not such a record (a bug, a newer version or an attacker wrote it)
    raises ProtocolError, or is passed over and reported to `refuse`.
    """
    records: list[_T] = []
    used = at = 0
    end = data.rfind(b"\n")
    if end < 0:
        return records, 0
    append = records.append
    for line in data[:end].split(b"\n"):
        content = line[9:]
        start, at = at, at + len(line) + 1
        if b"%08x " % crc32(content) != line[:9]:
            if damage is None:
                break
            continue
        if start > used and damage is not None:
            damage(used, start)
        try:
            append(decode(content))
        except UNDECODABLE as error:
            quote = content[:_QUOTE_BYTES_MAX].decode(errors="replace")
            why = f"failed to read a record of {source}: {error}; the line starts with `{quote}`"
            if refuse is None:
                raise ProtocolError(why, hint="another version wrote it: update tidemill here") from error
            refuse(why)
        used = at
    return records, used


def checks(line: bytes) -> bool:
    """Whether a line without its newline is framed correctly."""
    content = line[9:]
    return b"%08x " % crc32(content) == line[:9]


def next_whole(data: bytes, *, is_all: bool = True) -> int:
    """Where the first correct line begins behind the first newline of `data`, which does not begin with one; 0 where
    there is none (yet). Where `data` is not all that there is and no line is as long, it is passed over."""
    at = data.find(b"\n") + 1
    while at:
        end = data.find(b"\n", at)
        if end < 0:
            break
        if checks(data[at:end]):
            return at
        at = end + 1
    if is_all or len(data) < LINE_BYTES_MAX:
        return 0
    return data.rfind(b"\n") + 1 or len(data)


class FramedTail(Generic[_T]):
    """Reads what is new in one file that others append to. `offset` is where the next whole line starts.

    A line that the file system has damaged is passed over and reported when correct ones have followed it for
    `damage_s`.

    Opens the file by its path each time, since network file systems cache what an open descriptor sees, and
    reads content only, and ignores times. `refuse` as in `decode_lines`.
    """

    def __init__(
        self, path: Path, decode: Callable[[bytes], _T], *, offset: int = 0, refuse: Refuse | None = None
    ) -> None:
        self.path = path
        self.offset = offset
        self.damage_s = DAMAGE_S
        self._decode = decode
        self._refuse = refuse
        self._damage: tuple[int, float] | None = None  #: its place, and when it was seen first

    def read(self, bytes_max: int = READ_BYTES_MAX) -> list[_T]:
        """The records that have become whole since the last call, from at most `bytes_max` bytes.

        Nothing where the file is not there (yet). Raises SiteError where it cannot be read, ProtocolError for
        a record of an unknown kind.
        """
        size = max(bytes_max, LINE_BYTES_MAX)
        data = self._bytes(size)
        records, used = decode_lines(data, self._decode, source=f"`{self.path}`", refuse=self._refuse)
        if not used and (length := next_whole(data, is_all=len(data) < size)):
            found = checks(data[length : data.find(b"\n", length)])
            return self._skip_damage(length, found, bytes_max)
        self.offset += used
        return records

    def _bytes(self, size: int) -> bytes:
        try:  # a FIFO of that name would block without O_NONBLOCK; a file does not know it
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise SiteError(f"failed to open `{self.path}`: {error.strerror}") from error
        try:
            return os.pread(descriptor, size, self.offset)
        except OSError as error:
            raise SiteError(f"failed to read `{self.path}` at {self.offset}: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def _skip_damage(self, length: int, found: bool, bytes_max: int) -> list[_T]:
        """What follows `length` damaged bytes, once they have been seen for `damage_s`."""
        now_s = clock.monotonic_s()
        if self._damage is None or self._damage[0] != self.offset:
            self._damage = (self.offset, now_s)
        if now_s < self._damage[1] + self.damage_s:
            return []
        _log.error(
            "file.damaged",
            file=str(self.path),
            start=self.offset,
            end=self.offset + length,
            hint="the file system damaged it: what stood there is lost, what follows is read",
        )
        self.offset += length
        self._damage = None
        # what has no whole line within reach may be endless, such as a device of that name: on with the next call
        return self.read(bytes_max) if found else []
