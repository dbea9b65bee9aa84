"""Removing files from a cache: which ones (pure), and how, also while XCache runs.

XCache 5.5.3 offers no safe way to ask for it: `/xrdpfc_command/remove_file` would have to be exported to every client,
together with the command that plants files, and an `rm` goes on to the origin. So files are unlinked here, as XCache's
own purge does it:

- What xrootd has open is skipped, known by its descriptors in /proc.
- The record goes first, then the data. A file that is opened at that moment is either opened with both (both stay
  readable until they are closed), or finds no record, and then XCache takes no block of it as cached. The other order
  would leave a moment with a record that calls blocks of an empty file cached, which would be served as zeros.
- Data without a record, which a crash in between leaves, are as good as none to XCache, and go with the next purge.
"""

from __future__ import annotations

import errno
import heapq
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.errors import ConfigError, SiteError
from tidemill_caches.contents.cinfo import SUFFIX
from tidemill_caches.contents.scan import CachedFile, directories
from tidemill_caches.engine.state import host_name, is_supervised, read_state

ROUNDS_MAX = 20
OPEN_S = 1.0  #: descriptors of xrootd are read again after this time


class PurgeRule(NamedTuple):
    """What to remove: files below a directory that were last used before `before_s`, the least recently used first,
    until at most `to_bytes` are left below it. None = any age; all that match."""

    below: str = "/"
    before_s: int | None = None
    to_bytes: int | None = None


class Memory(NamedTuple):
    """What a purge may keep in memory, however many files the cache has."""

    buckets: int = 4096
    """numbers in the histogram of ages"""
    oldest: int = 20_000
    """files of the bucket in which the bound lies"""


DEFAULT_MEMORY = Memory()


class Purged(msgspec.Struct, kw_only=True):
    """What a purge did, or would do (`--dry-run`). `kept_*`: matched, and open."""

    files: int = 0
    held_bytes: int = 0
    kept_files: int = 0
    kept_bytes: int = 0
    left_files: int = 0
    left_bytes: int = 0


class Ages:
    """A histogram of cached bytes over times of last use: a cache of any size takes `buckets` numbers."""

    def __init__(self, buckets: int = DEFAULT_MEMORY.buckets) -> None:
        self._buckets_max, self._width_s = buckets, 1
        self._bytes: dict[int, int] = {}

    def add(self, used_s: int, size_bytes: int) -> None:
        """Count a file."""
        bucket = used_s // self._width_s
        self._bytes[bucket] = self._bytes.get(bucket, 0) + size_bytes
        while len(self._bytes) > self._buckets_max:
            self._width_s *= 2
            wider: dict[int, int] = {}
            for each, count in self._bytes.items():
                wider[each // 2] = wider.get(each // 2, 0) + count
            self._bytes = wider

    def cutoff(self, excess_bytes: int) -> tuple[int, int]:
        """Times of last use `(all_before_s, some_before_s)`: removing all before the first frees at most
        `excess_bytes`; removing all before the second frees at least that, if the files hold as much."""
        freed, first = 0, 0
        for bucket in sorted(self._bytes):
            if freed >= excess_bytes:
                break
            first = bucket * self._width_s
            freed += self._bytes[bucket]
            if freed >= excess_bytes:
                return first, first + self._width_s
        return (first + self._width_s,) * 2 if excess_bytes > 0 and self._bytes else (0, 0)


class OpenFiles:
    """What the running xrootd of a cache has open. Refreshed after `OPEN_S`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: set[tuple[int, int]] = set()
        self._read_s: float | None = None

    def has(self, path: str) -> bool:
        """Whether a file, or its record, is open. Raises SiteError where this cannot be known."""
        now_s = clock.monotonic_s()
        if self._read_s is None or now_s - self._read_s > OPEN_S:
            self._known, self._read_s = open_files(self._directory), now_s
        for each in (path, f"{path}{SUFFIX}") if self._known else ():
            with suppress(OSError):
                stat = os.lstat(each)
                if (stat.st_dev, stat.st_ino) in self._known:
                    return True
        return False


def open_files(directory: Path) -> set[tuple[int, int]]:
    """Device and inode of what the xrootd of a cache directory has open. Raises SiteError where this is unknown."""
    state = read_state(directory)
    if state is None or not is_supervised(directory, state) or not state.pid:
        return set()
    if state.host != host_name():
        raise SiteError(
            f"the cache runs on `{state.host}`, and only there it can be known which files are open",
            hint=f"run this on `{state.host}`",
        )
    found: set[tuple[int, int]] = set()
    try:
        with os.scandir(f"/proc/{state.pid}/fd") as entries:
            for each in entries:
                with suppress(OSError):  # closed meanwhile
                    status = each.stat()
                    found.add((status.st_dev, status.st_ino))
    except FileNotFoundError:
        return set()  # it has ended
    except OSError as error:
        raise SiteError(
            f"what xrootd (process {state.pid}) has open cannot be read: {error.strerror}",
            hint="run this as the user to whom the cache belongs",
        ) from error
    return found


def remove(data: Path, path: str) -> None:
    """Unlink a cached file: its record first. May be repeated. Raises SiteError, ConfigError."""
    full = f"{os.fspath(data).rstrip('/')}{path}"
    for each in (f"{full}{SUFFIX}", full):
        try:
            Path(each).unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise ConfigError(
                    f"`{each}` may not be removed by this user",
                    hint="run this as the user to whom the cache belongs",
                ) from error
            raise SiteError(f"failed to remove `{each}`: {error.strerror}") from error


class Purge:
    """One purge of a cache."""

    def __init__(
        self, directory: Path, data: Path, *, dry_run: bool, memory: Memory = DEFAULT_MEMORY
    ) -> None:
        self._directory, self._data, self._dry_run, self._memory = directory, data, dry_run, memory
        self._open = OpenFiles(directory)
        self.done = Purged()

    def run(self, rule: PurgeRule) -> Purged:
        """Remove what the rule says. Reads the records of the cache twice where it must know which are the oldest."""
        self._open.has(os.fspath(self._data))  # fails at once where it would fail later
        if rule.to_bytes is None:
            for each in self._files(rule.below):
                if rule.before_s is None or used_s(each) < rule.before_s:
                    self._remove_unless_open(each)
                else:
                    self._leave(each)
            return self.done
        for _ in range(1 if self._dry_run else ROUNDS_MAX):
            if not self._round(rule, rule.to_bytes):
                break
        return self.done

    def _round(self, rule: PurgeRule, to_bytes: int) -> bool:
        """Remove the oldest; whether another round may free more."""
        ages, total = Ages(self._memory.buckets), 0
        for each in self._files(rule.below):
            total += size_of(each)
            if not self._is_open(each):  # these stay: others go in their place
                ages.add(used_s(each), size_of(each))
        self.done.left_files = self.done.left_bytes = self.done.kept_files = self.done.kept_bytes = 0
        excess, removed = total - to_bytes, 0
        all_before_s, some_before_s = ages.cutoff(excess)
        some: list[tuple[int, int, CachedFile]] = []
        for number, each in enumerate(self._files(rule.below)):
            used = used_s(each)
            if rule.before_s is not None and used >= rule.before_s:
                self._leave(each)
            elif used < all_before_s or (excess > 0 and self._is_open(each)):
                removed += self._remove_unless_open(each)
            elif used < some_before_s:
                heapq.heappush(some, (-used, number, each))
                if len(some) > self._memory.oldest:
                    self._leave(heapq.heappop(some)[2])
            else:
                self._leave(each)
        for _, _, each in sorted(some, key=lambda item: (-item[0], item[1])):
            if removed < excess:
                removed += self._remove_unless_open(each)
            else:
                self._leave(each)
        return 0 < removed < excess

    def _files(self, below: str) -> Iterator[CachedFile]:
        for _, files in directories(self._data, below=below):
            yield from files

    def _remove_unless_open(self, file: CachedFile) -> int:
        """Remove a file unless it is open; the bytes that this frees."""
        size = size_of(file)
        if self._is_open(file):
            self.done.kept_files += 1
            self.done.kept_bytes += size
            return 0
        if not self._dry_run:
            remove(self._data, file.path)
        self.done.files += 1
        self.done.held_bytes += size
        return size

    def _is_open(self, file: CachedFile) -> bool:
        return self._open.has(f"{os.fspath(self._data).rstrip('/')}{file.path}")

    def _leave(self, file: CachedFile) -> None:
        self.done.left_files += 1
        self.done.left_bytes += size_of(file)


def used_s(file: CachedFile) -> int:
    """When a file was last used; one without a record never was."""
    return file.info.used_s if file.info is not None else 0


def size_of(file: CachedFile) -> int:
    """The bytes that removing a file frees."""
    return file.info.held_bytes if file.info is not None else file.disk_bytes
