"""XCache's record of one cached file: `NAME.cinfo` beside `NAME`. Pure.

Version 4, which XRootD 5.0 to 5.8 write (XrdPfcInfo.hh and .cc of 5.5.3; checked against files that 5.5.3 wrote).
Little-endian and without padding, as on every machine that XRootD runs on:

    int32    version
    store    block bytes, file bytes, creation, first unchecked block (int64 each), opens (uint64), status bits
             (uint32), number of accesses (int32)
    uint32   CRC-32C of the store
    bits     one for each block that is on disk, the lowest bit of a byte first
    access   open, close (int64), clients, seconds, merged, reserved (int32), bytes hit, missed, bypassed (int64)
    uint32   CRC-32C of bits and accesses

XCache rewrites the file in place. It is read without a lock: one that fails its checksum may be whole a moment later.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.errors import ProtocolError

SUFFIX = ".cinfo"
VERSION = 4
CINFO_BYTES_MAX = 32 << 20
"""A record of 250 million blocks; larger ones are not read."""
ACCESSES_MAX = 10_000
"""XCache keeps 20 unless `pfc.acchistorysize` says otherwise."""
BLOCK_BYTES_MAX = 512 << 20
FILE_BYTES_MAX = 1 << 60
TIME_S_MAX = 1 << 37
"""In the year 6325: later times are errors, and cannot be shown."""
OPENS_MAX = 1 << 53
_STORE = struct.Struct("<qqqqQIi")
_ACCESS = struct.Struct("<qqiiiiqqq")
_CRC = struct.Struct("<I")
_HEAD_BYTES = 4 + _STORE.size + _CRC.size


class CacheAccess(NamedTuple):
    """One opening of a file, or several that XCache has merged. `closed_s` 0 = was not closed when this was written."""

    opened_s: int
    closed_s: int
    clients: int
    duration_s: int
    merged: int
    hit_bytes: int
    missed_bytes: int
    bypassed_bytes: int


class CachedInfo(NamedTuple):
    """What XCache knows of a cached file; times are seconds since 1970."""

    block_bytes: int
    file_bytes: int
    created_s: int
    opens: int
    bits: bytes
    accesses: tuple[CacheAccess, ...]

    @property
    def blocks(self) -> int:
        """Blocks of the whole file."""
        return block_count(self.file_bytes, self.block_bytes)

    @property
    def blocks_held(self) -> int:
        """Blocks that are on disk."""
        return _in_file(self).bit_count()

    @property
    def held_bytes(self) -> int:
        """Bytes of the file that are on disk."""
        count = self.blocks_held
        short = self.blocks * self.block_bytes - self.file_bytes
        return count * self.block_bytes - (short if self.blocks and self.holds(self.blocks - 1) else 0)

    @property
    def is_complete(self) -> bool:
        """Whether every block is on disk."""
        return self.blocks_held == self.blocks

    @property
    def used_s(self) -> int:
        """When it was last in use, as XCache's own purge reckons."""
        if not self.accesses:
            return self.created_s
        last = self.accesses[-1]
        return last.closed_s or last.opened_s + last.duration_s

    def holds(self, index: int) -> bool:
        """Whether a block is on disk."""
        return 0 <= index < self.blocks and bool(self.bits[index >> 3] >> (index & 7) & 1)

    def held(self) -> Iterator[int]:
        """The numbers of the blocks that are on disk."""
        return (index for index in range(self.blocks) if self.holds(index))

    def extent(self, index: int) -> tuple[int, int]:
        """First byte and length of a block."""
        first = index * self.block_bytes
        return first, min(self.block_bytes, self.file_bytes - first)


def block_count(file_bytes: int, block_bytes: int) -> int:
    """How many blocks a file has."""
    return -(-file_bytes // block_bytes)


def _in_file(info: CachedInfo) -> int:
    """The bits as one number, without those behind the file's end."""
    return int.from_bytes(info.bits, "little") & ((1 << info.blocks) - 1)


def parse(content: bytes, *, verify: bool = True) -> CachedInfo:
    """The record in a `.cinfo` file. Raises ProtocolError.

    `verify=False` leaves out the checksum of bits and accesses, which takes most of the time (some 80 ns a byte); the
    one of sizes is always compared, before anything is reckoned with them.
    """
    if len(content) < 4:
        raise ProtocolError(f"it has {len(content)} bytes: it was not written to its end")
    version = int.from_bytes(content[:4], "little", signed=True)
    if version != VERSION:
        raise ProtocolError(f"its version is {version}, not {VERSION}")
    if len(content) < _HEAD_BYTES:
        raise ProtocolError(f"it has {len(content)} bytes: it was not written to its end")
    if len(content) > CINFO_BYTES_MAX:
        raise ProtocolError(f"it has more than {CINFO_BYTES_MAX} bytes")
    store = content[4 : 4 + _STORE.size]
    if crc32c(store) != _CRC.unpack_from(content, 4 + _STORE.size)[0]:
        raise ProtocolError("the checksum of its first part is wrong")
    block_bytes, file_bytes, created_s, _, opens, _, count = _STORE.unpack(store)
    if not 0 < block_bytes <= BLOCK_BYTES_MAX or not 0 <= file_bytes <= FILE_BYTES_MAX:
        raise ProtocolError(f"its sizes are impossible: {file_bytes} bytes in blocks of {block_bytes}")
    if not 0 <= count <= ACCESSES_MAX or opens > OPENS_MAX:
        raise ProtocolError(f"it claims {count} accesses of {opens}")
    # XCache keeps one bit for an empty file: (0 - 1) / block + 1 is 1 in C
    bits_bytes = (max(1, block_count(file_bytes, block_bytes)) + 7) // 8
    end = _HEAD_BYTES + bits_bytes + count * _ACCESS.size
    if len(content) < end + _CRC.size:
        raise ProtocolError(f"it has {len(content)} bytes instead of {end + _CRC.size}")
    if verify and crc32c(content[_HEAD_BYTES:end]) != _CRC.unpack_from(content, end)[0]:
        raise ProtocolError("the checksum of its blocks is wrong")
    accesses = _accesses(content[_HEAD_BYTES + bits_bytes : end], created_s)
    return CachedInfo(
        block_bytes, file_bytes, created_s, opens, content[_HEAD_BYTES : _HEAD_BYTES + bits_bytes], accesses
    )


def _accesses(content: bytes, created_s: int) -> tuple[CacheAccess, ...]:
    """The accesses of a file that was created then. Raises ProtocolError."""
    result = tuple(
        CacheAccess(opened, closed, clients, duration, merged, hit, missed, bypassed)
        for opened, closed, clients, duration, merged, _, hit, missed, bypassed in _ACCESS.iter_unpack(
            content
        )
    )
    times = (created_s, *(at_s for each in result for at_s in each[:2]))
    if max(map(abs, times)) > TIME_S_MAX:
        raise ProtocolError("its times are impossible")
    return result


def written(info: CachedInfo) -> bytes:
    """The bytes that XCache would write: tests and benchmarks make caches with them."""
    store = _STORE.pack(
        info.block_bytes, info.file_bytes, info.created_s, 0, info.opens, 2, len(info.accesses)
    )
    body = info.bits + b"".join(
        _ACCESS.pack(
            each.opened_s, each.closed_s, each.clients, each.duration_s, each.merged, 0, each.hit_bytes,
            each.missed_bytes, each.bypassed_bytes,
        )
        for each in info.accesses
    )  # fmt: skip
    return b"".join(
        [VERSION.to_bytes(4, "little"), store, _CRC.pack(crc32c(store)), body, _CRC.pack(crc32c(body))]
    )


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # the polynomial of Castagnoli, reversed
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(content: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4)."""
    value, table = 0xFFFFFFFF, _TABLE
    for byte in content:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
