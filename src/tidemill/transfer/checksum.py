"""Checksums of local files: adler32, which grid storage keeps, and sha256, by which the site knows contents."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import zlib
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple, Protocol, cast

from tidemill.transfer.contract import TransferError, Watch, of_os_error

SLICE_BYTES = 1 << 19
"""Fits into the caches of a processor: with 4 MB Adler-32 takes a quarter longer."""

LOOK_S = 0.02
"""The pause before a growing file is read again after a read found no more."""

EARLY_S = 0.25
"""Measuring how fast a file arrives takes this time."""

QUICK_BYTES_PER_S = 250e6
"""A file that arrives faster leaves no processor time for checksums that are not compared (SHA-256: 0.8 s for a GB,
with the processor's own instructions): on few cores they would slow down the client and hold up its connection. They
are computed when the file is complete, and so are those of a file that arrives slowly because all processors are
busy."""

ADLER_BASE = 65521
PART_BYTES = 64 << 20
"""Objects of at least this size are uploaded to S3 services in parts of it."""


class Summer(Protocol):
    """Takes bytes and returns their checksum in hexadecimal."""

    def update(self, piece: bytes | memoryview, /) -> None:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """The checksum of all that was taken."""


@cache
def _quick_adler32() -> Callable[[int, int, int], int] | None:
    """libdeflate's, several times as fast as zlib's, where that library is installed (Debian: `libdeflate0`); its
    interface: https://github.com/ebiggers/libdeflate/blob/master/libdeflate.h"""
    try:
        quick = ctypes.CDLL("libdeflate.so.0").libdeflate_adler32
    except (OSError, AttributeError):
        return None
    quick.restype, quick.argtypes = ctypes.c_uint32, [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
    return cast("Callable[[int, int, int], int]", quick)


class _Adler32:
    """RFC 1950, section 8.2; the sum of no bytes is 1."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, piece: bytes | memoryview, /) -> None:
        view, quick = memoryview(piece), _quick_adler32()
        if quick is None or view.readonly or not view:
            self._value = zlib.adler32(view, self._value)
        else:
            self._value = quick(self._value, ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def joined_adler32(first: str, second: str, second_bytes: int) -> str:
    """Adler-32 of two pieces of a file, one behind the other, by theirs (`adler32_combine` of zlib)."""
    (high, low), (high2, low2) = (divmod(int(each, 16), 1 << 16) for each in (first, second))
    low_sum = (low + low2 - 1) % ADLER_BASE
    high_sum = (high + high2 + second_bytes * (low - 1)) % ADLER_BASE
    return f"{high_sum << 16 | low_sum:08x}"


class _Etag:
    """The entity tag of S3 services: the MD5 of an object; of one in pieces, the MD5 of their MD5s, and their number.

    Not promised by anyone, kept by Amazon (but for some ways of encryption) and by those that imitate it:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
    """

    def __init__(self) -> None:
        self._part, self._in_part = _md5(), 0
        self._parts: list[bytes] = []

    def update(self, piece: bytes | memoryview, /) -> None:
        view = memoryview(piece)
        while view:
            taken = view[: PART_BYTES - self._in_part]
            self._part.update(taken)
            self._in_part += len(taken)
            view = view[len(taken) :]
            if self._in_part == PART_BYTES:
                self._parts.append(self._part.digest())
                self._part, self._in_part = _md5(), 0

    def hexdigest(self) -> str:
        if not self._parts:
            return self._part.hexdigest()
        parts = [*self._parts, *([self._part.digest()] if self._in_part else [])]
        whole = _md5()
        whole.update(b"".join(parts))
        return f"{whole.hexdigest()}-{len(parts)}"


def _md5() -> hashlib._Hash:
    return hashlib.new("md5", usedforsecurity=False)


def summer(algorithm: str) -> Summer:
    """A new summer for `sha256`, or, only to compare with what servers report, for `adler32`, `md5` or `etag`."""
    if algorithm == "adler32":
        return _Adler32()
    if algorithm == "etag":
        return _Etag()
    return hashlib.new(algorithm, usedforsecurity=False)


def sums(path: Path, algorithms: set[str], watch: Watch | None = None) -> dict[str, str]:
    """These checksums of a file, in one reading. Raises TransferError."""
    if not algorithms:
        return {}
    summers = {each: summer(each) for each in sorted(algorithms)}
    buffer = memoryview(bytearray(SLICE_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                for each in summers.values():
                    each.update(buffer[:count])
                if watch is not None:
                    watch.begin()  # a file being read is not stalled
                    watch.check()
    except OSError as error:
        raise of_os_error(error, f"read `{path}`") from error
    return {name: each.hexdigest() for name, each in summers.items()}


def idle_s() -> float | None:
    """Idle seconds of all processors of this host since it started, summed: proc(5), the fourth and fifth number of
    `cpu` in /proc/stat; None if they cannot be read."""
    try:
        with Path("/proc/stat").open("rb") as file:
            words = file.readline().split()
        return (int(words[4]) + int(words[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class Scattered(NamedTuple):
    """How a file grows that is not written from its beginning to its end. With large pieces side by side the two are
    far apart."""

    there: Callable[[], int]  #: up to which byte it is sure to be there
    come: Callable[[], int]  #: how many bytes have come in all


class Growing:
    """Checksums of a file that another thread or process writes, made while it grows: those that are `needed`, and
    SHA-256 if the file grows slowly and a processor has time."""

    def __init__(
        self,
        path: Path,
        needed: AbstractSet[str],
        *,
        scattered: Scattered | None = None,
        idle: Callable[[], float | None] = idle_s,
    ) -> None:
        self._path = path
        self._scattered, self._idle = scattered, idle
        self._needed = needed
        self._summers: dict[str, Summer] = {}
        self._is_whole, self._is_left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="growing", daemon=True)

    def __enter__(self) -> Growing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_left.set()
        self._is_whole.set()
        self._thread.join()

    def end(self) -> dict[str, str]:
        """The checksums, once the file is whole; empty if none was wanted, or it could not be read."""
        self._is_whole.set()
        self._thread.join()
        return {name: each.hexdigest() for name, each in self._summers.items()}

    def _work(self) -> None:
        try:
            while not self._path.exists() and not self._is_whole.wait(LOOK_S):
                pass
            with self._path.open("rb", buffering=0) as file:
                algorithms = self._needed | ({"sha256"} if self._grows_slowly(file) else set())
                self._summers = {each: summer(each) for each in sorted(algorithms)}
                if not algorithms:
                    return
                buffer = memoryview(bytearray(SLICE_BYTES))
                while not self._is_left.is_set():
                    is_whole = self._is_whole.is_set()
                    room = SLICE_BYTES
                    if self._scattered is not None and not is_whole:
                        room = max(0, min(room, self._scattered.there() - file.tell()))
                    count = file.readinto(buffer[:room])
                    for each in self._summers.values():
                        each.update(buffer[: count or 0])
                    if not count and is_whole:
                        return
                    if not count:
                        self._is_whole.wait(LOOK_S)
        except OSError:
            self._summers = {}

    def _grows_slowly(self, file: IO[bytes]) -> bool:
        if "sha256" in self._needed:
            return True
        before = self._now(file)
        while self._now(file) == before:
            if self._is_whole.wait(LOOK_S):
                return False
        before, idle_before_s = self._now(file), self._idle()
        is_quick = self._is_whole.wait(EARLY_S)
        if is_quick or self._now(file) - before >= QUICK_BYTES_PER_S * EARLY_S:
            return False
        return idle_before_s is None or (self._idle() or 0.0) - idle_before_s >= EARLY_S / 2

    def _now(self, file: IO[bytes]) -> int:
        return os.fstat(file.fileno()).st_size if self._scattered is None else self._scattered.come()


def compare(what: str, told: dict[str, str], found: dict[str, str], by: str) -> None:
    """Raise a permanent TransferError where a checksum that `by` reports differs from the one found for `what`."""
    for algorithm, value in told.items():
        mine = found.get(algorithm)
        if mine is not None and mine != value:
            raise ChecksumError(
                f"`{what}` has checksum {algorithm}:{mine}, {by} {algorithm}:{value}",
                hint="the file is damaged or another version: check it at its source, or correct the job",
                transient=False,
            )


class ChecksumError(TransferError):
    """What came is not what was expected."""
