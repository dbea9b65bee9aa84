"""Compares what a cache holds with the origin, block by block, and drops what differs.

A complete file is compared by the origin's adler32 where it gives one: no data travel. Otherwise, and where that
differs, each cached block is read at the origin. What differs is read twice on both sides, because a file may be purged
and fetched again in between. A damaged file is removed from the cache, so that the next read fetches it again; while it
is open, XCache would go on to serve it, and the block is written over with the origin's bytes instead.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from tidemill import clock, files
from tidemill.errors import ProtocolError, SiteError
from tidemill_caches.contents.cinfo import SUFFIX, CachedInfo
from tidemill_caches.contents.origin_reader import FileAtOrigin, FileMissingError, OriginReader, adler32_of
from tidemill_caches.contents.purging import OpenFiles, remove
from tidemill_caches.contents.scan import CachedFile, directories, find, read_info
from tidemill_caches.engine.origins import OriginPath

AWAY_MAX = 3
"""Files in a row that an origin does not answer for; then it is asked no more in this check."""
BLOCKS_SHOWN = 20
_REMOVED = "it was removed meanwhile"
CHANGED_SHARE = 0.5

Verdict = Literal["good", "corrupt", "changed", "unsteady", "missing", "unread", "skipped"]
"""corrupt: blocks differ from the origin. changed: the origin's file is another one than the cached one. unsteady: the
origin served different bytes within this check. missing: the origin has no such file. unread: origin or disk did not
answer, or the cache's record of the file cannot be read. skipped: not in the sample, nothing of it is cached, or purged
meanwhile."""
BAD: tuple[Verdict, ...] = ("corrupt", "changed", "unsteady")
UNCHECKED: tuple[Verdict, ...] = ("missing", "unread")


class FileCheck(msgspec.Struct, kw_only=True):
    """What came of comparing one file. `done`: what was done about it (`dropped`, `mended`)."""

    path: str
    verdict: Verdict
    compared_bytes: int = 0
    blocks: list[int] = []  #: that differ, the first of them
    why: str = ""
    done: str = ""


class CacheCheck(msgspec.Struct, kw_only=True):
    """Sums over a check."""

    files: int = 0
    held_bytes: int = 0  #: of the files that were reached
    compared_bytes: int = 0
    by_verdict: dict[str, int] = {}
    ended_early: bool = False  #: time was up before all files were reached

    def add(self, each: FileCheck) -> None:
        """Count a file."""
        self.files += 1
        self.compared_bytes += each.compared_bytes
        self.by_verdict[each.verdict] = self.by_verdict.get(each.verdict, 0) + 1

    def count(self, verdicts: Sequence[Verdict]) -> int:
        """How many files have one of these verdicts."""
        return sum(self.by_verdict.get(each, 0) for each in verdicts)


class BlockSample(NamedTuple):
    """Which blocks are compared: a share of them, others for each seed."""

    share: float
    seed: int

    def takes(self, path: str, index: int) -> bool:
        """Whether a block is compared."""
        if self.share >= 1:
            return True
        digest = hashlib.blake2b(
            f"{self.seed}:{index}:{path}".encode(errors="surrogateescape"), digest_size=8
        )
        return int.from_bytes(digest.digest(), "big") < self.share * 2**64


def judged(info: CachedInfo, origin: FileAtOrigin, *, differ: int, compared: int) -> Verdict:
    """The verdict on a file of which blocks differ. Pure.

    The origin's file was changed if the origin says so, by its size or by a change after XCache first met the file; or
    if most of several blocks differ: damage on a disk hits few.
    """
    if origin.size_bytes != info.file_bytes or origin.changed_s > info.created_s:
        return "changed"
    return "changed" if compared >= 3 and differ > CHANGED_SHARE * compared else "corrupt"


class Comparison:
    """Compares the files of one cache with their origins."""

    def __init__(
        self,
        data: Path,
        origins: Sequence[OriginPath],
        *,
        reader: OriginReader,
        sample: BlockSample,
        until_s: float | None = None,
    ) -> None:
        """`until_s`: no block is compared after this, by the monotonic clock; None = no limit."""
        self._data, self._origins, self._reader, self._sample = data, origins, reader, sample
        self._until_s = until_s
        self._away: dict[tuple[str, int], int] = {}

    def check(self, file: CachedFile) -> FileCheck:
        """Compare one file; never raises for what is wrong with it or with its origin. Raises ConfigError."""
        if file.info is None:  # XCache may be writing the record
            again = find(self._data, file.path)
            if again is None:
                return FileCheck(path=file.path, verdict="skipped", why=_REMOVED)
            file = again
        info = file.info
        if info is None:
            return FileCheck(path=file.path, verdict="unread", why=file.why)
        held = list(info.held()) if info.file_bytes else [0]  # of an empty file, compare the size
        blocks = [index for index in held if self._sample.takes(file.path, index)]
        if not blocks:
            return FileCheck(path=file.path, verdict="skipped", why="" if held else "nothing of it is cached")
        found = [FileCheck(path=file.path, verdict="missing", why="`origins` names no server for this path")]
        for place in self._places(file.path):
            found.append(self._at(place, file, info, blocks))
            if found[-1].verdict in ("good", "skipped"):
                return found[-1]  # of replicas, one that agrees is enough
        return next((each for each in found if each.verdict in BAD), found[-1])

    def _at(self, place: OriginPath, file: CachedFile, info: CachedInfo, blocks: Sequence[int]) -> FileCheck:
        """The comparison with one origin, unless it has been found away."""
        server = (place.host, place.port)
        if self._away.get(server, 0) >= AWAY_MAX:
            return FileCheck(path=file.path, verdict="unread", why="the origin does not answer")
        try:
            result = self._compare(file, info, place, blocks)
        except FileMissingError as error:
            result = FileCheck(path=file.path, verdict="missing", why=error.message)
        except FileNotFoundError:
            return FileCheck(path=file.path, verdict="skipped", why=_REMOVED)
        except OSError as error:  # of the disk: what concerns the origin is a SiteError
            return FileCheck(
                path=file.path, verdict="unread", why=f"the cached file: {files.why_not_opened(error)}"
            )
        except SiteError as error:
            self._away[server] = self._away.get(server, 0) + 1
            return FileCheck(path=file.path, verdict="unread", why=error.message)
        self._away.pop(server, None)
        return result

    def _places(self, path: str) -> Iterator[OriginPath]:
        return (each._replace(path=path) for each in self._origins if path.startswith(each.path))

    def _local(self, path: str) -> str:
        return f"{os.fspath(self._data).rstrip('/')}{path}"

    def _compare(
        self, file: CachedFile, info: CachedInfo, place: OriginPath, blocks: Sequence[int]
    ) -> FileCheck:
        origin = self._reader.open(place)
        if origin.size_bytes != info.file_bytes:
            why = f"the origin's file has {origin.size_bytes} bytes, the cached one {info.file_bytes}"
            return FileCheck(path=file.path, verdict="changed", why=why)
        if not info.file_bytes:
            os.lstat(self._local(file.path))  # fails if the file was removed meanwhile
            return FileCheck(path=file.path, verdict="good")
        is_whole = len(blocks) == info.blocks
        if is_whole and origin.changed_s <= info.created_s and self._is_same_sum(file.path, info, place):
            return FileCheck(path=file.path, verdict="good", compared_bytes=info.file_bytes)
        return self._by_block(file, info, origin, blocks)

    def _is_same_sum(self, path: str, info: CachedInfo, place: OriginPath) -> bool:
        given = self._reader.adler32(place)
        return given is not None and given == adler32_of(self._local(path), info.file_bytes)

    def _by_block(
        self, file: CachedFile, info: CachedInfo, origin: FileAtOrigin, blocks: Sequence[int]
    ) -> FileCheck:
        result = FileCheck(path=file.path, verdict="good")
        differ, taken, is_steady = 0, 0, True
        local = os.open(self._local(file.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for index in blocks:
                if self.is_late():
                    break
                taken += 1
                first, length = info.extent(index)
                theirs = self._reader.read(first, length)
                result.compared_bytes += length
                if os.pread(local, length, first) == theirs:
                    continue
                if self._reader.read(first, length) != theirs:
                    is_steady = False
                elif os.pread(local, length, first) == theirs:
                    continue
                differ += 1
                if len(result.blocks) < BLOCKS_SHOWN:
                    result.blocks.append(index)
        finally:
            os.close(local)
        if not differ and taken < len(blocks):
            result.verdict, result.why = "skipped", f"the time was up after {taken} of {len(blocks)} blocks"
        if not differ:
            return result
        if not self._is_still(file.path, info):
            return FileCheck(
                path=file.path, verdict="skipped", why="it was removed or fetched again meanwhile"
            )
        result.verdict = judged(info, origin, differ=differ, compared=taken) if is_steady else "unsteady"
        result.why = f"{differ} of {taken} blocks differ from the origin's"
        return result

    def is_late(self) -> bool:
        """Whether the time is up."""
        return self._until_s is not None and clock.monotonic_s() >= self._until_s

    def _is_still(self, path: str, info: CachedInfo) -> bool:
        """Whether what was compared is still in the cache."""
        try:
            return read_info(f"{self._local(path)}{SUFFIX}").created_s == info.created_s
        except (SiteError, ProtocolError):
            return False

    def cure(self, result: FileCheck, opened: OpenFiles) -> None:
        """Drop a file that differs; while it is open, write the origin's bytes over its damaged blocks.

        Raises SiteError, ConfigError.
        """
        if opened.has(self._local(result.path)) and result.verdict == "corrupt" and self._mend(result):
            result.done = "mended"
            return
        is_open = opened.has(self._local(result.path))
        remove(self._data, result.path)
        result.done = "dropped, still read by those who have it open" if is_open else "dropped"

    def _mend(self, result: FileCheck) -> bool:
        """Whether every damaged block now has the origin's bytes."""
        file = find(self._data, result.path)
        if file is None or file.info is None or len(result.blocks) >= BLOCKS_SHOWN:
            return False
        try:
            with open(
                self._local(result.path),
                "r+b",
                opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW),
            ) as target:
                for index in result.blocks:
                    first, length = file.info.extent(index)
                    theirs = self._reader.read(first, length)
                    if len(theirs) != length:
                        return False
                    target.seek(first)
                    target.write(theirs)
                files.sync(target)
        except (OSError, SiteError):
            return False
        return True


def check_cache(
    files_found: Iterator[CachedFile],
    comparison: Comparison,
    *,
    tell: Callable[[FileCheck], None],
) -> CacheCheck:
    """Compare files until all are done or the time is up. `tell` gets each result, and acts on it."""
    sums = CacheCheck()
    for file in files_found:
        if comparison.is_late():
            sums.ended_early = True
            break
        sums.held_bytes += file.info.held_bytes if file.info is not None else 0
        result = comparison.check(file)
        tell(result)
        sums.add(result)
        sums.ended_early = result.verdict == "skipped" and comparison.is_late()
    return sums


def files_below(data: Path, path: str) -> Iterator[CachedFile]:
    """The file of that path, else every file below that directory. Raises SiteError, ConfigError."""
    one = find(data, path) if path != "/" else None
    if one is not None:
        yield one
        return
    for _, below in directories(data, below=path, verify=True):
        yield from below
