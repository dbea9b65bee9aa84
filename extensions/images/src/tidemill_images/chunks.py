"""Where a squashfs is cut, so that equal files of two images become equal chunks wherever they are in them.

Without fragments the compressed blocks of a file depend on its bytes alone and lie together, so the image is cut at
the data of files, and large files at every block: no rolling hash has to guess. The rest, the head and the tables at
the end, belongs to no file. Reads images that `squash` wrote: little-endian, format 4.0, inode table not compressed.

Source of the layout: the kernel's fs/squashfs/squashfs_fs.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from tidemill.errors import ProtocolError, SiteError

_SUPER = struct.Struct("<IIIIIHHHHHHQQQQQQQQ")
_MAGIC = 0x73717368
_UNCOMPRESSED = 0x8000
_BLOCK_SIZE_MASK = (1 << 24) - 1
_NO_FRAGMENT = 0xFFFFFFFF

_COMMON = struct.Struct("<HHHHII")
_FILE = struct.Struct("<IIII")  # start, fragment, offset in it, size
_LONG_FILE = struct.Struct("<QQQIIII")  # start, size, sparse bytes, links, fragment, offset in it, attributes
_LINK = struct.Struct("<II")  # links, size
_LONG_DIRECTORY = struct.Struct("<IIIIHHI")
_INDEX = struct.Struct("<III")
_FIXED = {1: 32, 4: 24, 5: 24, 6: 20, 7: 20, 11: 28, 12: 28, 13: 24, 14: 24}
"""Whole size of inodes without a variable part: directory, devices, FIFO, socket; and their long forms."""


class Head(msgspec.Struct, frozen=True):
    """What is needed of the superblock."""

    inodes: int
    block_bytes: int
    root: int
    inode_table: int
    directory_table: int


def read_head(file: BinaryIO) -> Head:
    """The superblock. Raises ProtocolError."""
    file.seek(0)
    content = file.read(_SUPER.size)
    fields = _SUPER.unpack(content) if len(content) == _SUPER.size else (0,) * 19
    if fields[0] != _MAGIC or fields[9:11] != (4, 0):
        raise ProtocolError(f"`{file.name}` is not a squashfs image of format 4.0")
    return Head(fields[1], fields[3], fields[11], fields[15], fields[16])


def settle_time(image: Path) -> None:
    """Set the root directory's time to 0: mksquashfs 4.5.1 takes the time of today whatever `-root-time` says.

    Raises ProtocolError, SiteError.
    """
    try:
        with image.open("r+b") as file:
            head = read_head(file)
            file.seek(head.inode_table + (head.root >> 16) + 2 + (head.root & 0xFFFF) + 8)
            file.write(bytes(4))
    except OSError as error:
        raise _failed("change", image, error) from error


def cuts(image: Path) -> list[tuple[int, int]]:
    """Offset and length of all chunks of an image, in order and without gaps. Raises ProtocolError, SiteError."""
    try:
        size = image.stat().st_size
        with image.open("rb") as file:
            head = read_head(file)
            table = _inode_table(file, head)
    except OSError as error:
        raise _failed("read", image, error) from error
    # Files with equal bytes share their blocks: each is cut once
    data = sorted(set(_blocks(table, head)))
    found: list[tuple[int, int]] = []
    at = 0
    for offset, length in data:
        if offset > at:
            found.append((at, offset - at))
        found.append((offset, length))
        at = offset + length
    if at < size:
        found.append((at, size - at))
    if any(length < 1 for _, length in found) or at > size:
        raise ProtocolError(f"the blocks of `{image}` overlap: Tidemill did not write it")
    return found


def _failed(verb: str, image: Path, error: OSError) -> SiteError:
    return SiteError(
        f"failed to {verb} squashfs `{image}`: {error.strerror}",
        hint="check that the store is there and has space, and build again",
    )


def _inode_table(file: BinaryIO, head: Head) -> bytes:
    file.seek(head.inode_table)
    raw = file.read(head.directory_table - head.inode_table)
    parts: list[bytes] = []
    at = 0
    while at + 2 <= len(raw):
        (size,) = struct.unpack_from("<H", raw, at)
        if not size & _UNCOMPRESSED:
            raise ProtocolError(f"`{file.name}` has a compressed inode table", hint="build the image anew")
        size &= ~_UNCOMPRESSED
        parts.append(raw[at + 2 : at + 2 + size])
        at += 2 + size
    return b"".join(parts)


def _blocks(table: bytes, head: Head) -> Iterator[tuple[int, int]]:
    """Offset and length of each data block that is not a hole."""
    at = 0
    for _ in range(head.inodes):
        kind = _COMMON.unpack_from(table, at)[0]
        body = at + _COMMON.size
        if kind in (2, 9):
            if kind == 2:
                start, fragment, _, size = _FILE.unpack_from(table, body)
                at = body + _FILE.size
            else:
                start, size, _, _, fragment, _, _ = _LONG_FILE.unpack_from(table, body)
                at = body + _LONG_FILE.size
            if fragment != _NO_FRAGMENT:
                raise ProtocolError("the image has fragments: Tidemill did not write it")
            number = -(-size // head.block_bytes)
            for (word,) in struct.iter_unpack("<I", table[at : at + 4 * number]):
                length = word & _BLOCK_SIZE_MASK
                if length:
                    yield start, length
                start += length
            at += 4 * number
        elif kind in (3, 10):
            at = body + _LINK.size + _LINK.unpack_from(table, body)[1] + (4 if kind == 10 else 0)
        elif kind == 8:
            at = _after_directory(table, body)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise ProtocolError(
                f"the image has an inode of type {kind}: it is not a squashfs image of format 4.0"
            )


def _after_directory(table: bytes, body: int) -> int:
    """Where a long directory inode ends: an index of some names follows it."""
    number = _LONG_DIRECTORY.unpack_from(table, body)[4]
    at = body + _LONG_DIRECTORY.size
    for _ in range(number):
        at += _INDEX.size + _INDEX.unpack_from(table, at)[2] + 1
    return at
