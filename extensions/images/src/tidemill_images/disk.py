"""The file system of this machine, as the working set asks for it, and files read so that a change is noticed."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator

from tidemill.errors import SiteError
from tidemill.files import why_not_opened
from tidemill_images.workingset import DIRECTORY, FILE, LINK, SPECIAL, Unreadable

PIECE_BYTES = 1 << 20


class Changed(Exception):
    """A file or directory is not what it was when the image was planned, or changed while it was read."""


class Disk:
    """Files of this machine. Paths may hold bytes that are not UTF-8, as `os.fsdecode` gives them."""

    def kind(self, path: str) -> str | None:
        """The kind of file at a path, as `Files` asks."""
        try:
            return kind_of(os.lstat(path).st_mode)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise Unreadable(error.strerror) from error

    def target(self, path: str) -> str:
        """The target of a link, as `Files` asks."""
        try:
            return os.readlink(path)  # noqa: PTH115
        except OSError as error:
            raise Changed(f"link `{shown(path)}`: {error.strerror}") from error

    def names(self, path: str) -> list[tuple[str, str]]:
        """The names in a directory with their kinds, as `Files` asks."""
        try:
            with os.scandir(path) as entries:
                return sorted((entry.name, _kind_of_entry(entry)) for entry in entries)
        except OSError as error:
            raise Unreadable(error.strerror) from error

    def readable(self, path: str) -> str | None:
        """Why a path cannot be read, as `Files` asks; None = it can."""
        return None if os.access(path, os.R_OK, effective_ids=True) else "it may not be read"


def kind_of(mode: int) -> str:
    """The kind of what has this mode."""
    if stat.S_ISREG(mode):
        return FILE
    if stat.S_ISDIR(mode):
        return DIRECTORY
    return LINK if stat.S_ISLNK(mode) else SPECIAL


def _kind_of_entry(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return LINK
    if entry.is_dir(follow_symlinks=False):
        return DIRECTORY
    return FILE if entry.is_file(follow_symlinks=False) else SPECIAL


def status_of(path: str, kind: str) -> os.stat_result:
    """The status of a name that has this kind. Raises Changed, SiteError."""
    try:
        status = os.lstat(path)
    except FileNotFoundError as error:
        raise Changed(f"`{shown(path)}` is gone") from error
    except OSError as error:
        raise SiteError(f"failed to read `{shown(path)}`: {error.strerror}") from error
    if kind_of(status.st_mode) != kind:
        raise Changed(f"`{shown(path)}` is another kind of file")
    return status


class Content:
    """A file's bytes, in pieces, with their SHA-256 at the end. Holes are not read."""

    def __init__(self, path: str, planned: os.stat_result) -> None:
        self._path = path
        self._planned = planned
        self._sum = hashlib.sha256()

    def pieces(self) -> Iterator[memoryview]:
        """All bytes: exactly as many as were planned. Raises Changed where the file is another one or other bytes."""
        size = self._planned.st_size
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise Changed(f"`{shown(self._path)}` is gone") from error
        except OSError as error:
            raise SiteError(
                f"failed to open `{shown(self._path)}`: {why_not_opened(error)}", transient=False
            ) from error
        try:
            self._compare(os.fstat(descriptor))
            at = 0
            for start, end in _data(descriptor, size) if self._is_sparse() else [(0, size)]:
                yield from self._zeros(start - at)
                yield from self._read(descriptor, start, end)
                at = end
            yield from self._zeros(size - at)
            self._compare(os.fstat(descriptor))
        except OSError as error:
            raise SiteError(f"failed to read `{shown(self._path)}`: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def sha256(self) -> str:
        """The SHA-256 of all pieces that were given."""
        return self._sum.hexdigest()

    def _is_sparse(self) -> bool:
        return self._planned.st_blocks * 512 < self._planned.st_size

    def _compare(self, status: os.stat_result) -> None:
        planned = self._planned
        if (status.st_size, status.st_mtime_ns, status.st_ino) != (
            planned.st_size,
            planned.st_mtime_ns,
            planned.st_ino,
        ):
            raise Changed(f"`{shown(self._path)}` changed while it was packed")

    def _read(self, descriptor: int, start: int, end: int) -> Iterator[memoryview]:
        while start < end:
            piece = os.pread(descriptor, min(PIECE_BYTES, end - start), start)
            if not piece:
                raise Changed(f"`{shown(self._path)}` became shorter while it was packed")
            self._sum.update(piece)
            yield memoryview(piece)
            start += len(piece)

    def _zeros(self, length: int) -> Iterator[memoryview]:
        while length > 0:
            piece = _ZEROS[: min(length, PIECE_BYTES)]
            self._sum.update(piece)
            yield piece
            length -= len(piece)


_ZEROS = memoryview(bytes(PIECE_BYTES))


def _data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a sparse file has data, see lseek(2)."""
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno != errno.EINVAL:  # the file system does not report holes
                raise
            yield at, size
            return
        if start >= size:
            return
        at = min(size, os.lseek(descriptor, start, os.SEEK_HOLE))
        yield start, at


def shown(path: str) -> str:
    """A printable form of a path: bytes that are not valid UTF-8, and control characters, appear as escapes."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
