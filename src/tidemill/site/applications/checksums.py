"""Checksums that the site's staff approved.

SITE/digests.json says which the agent found, for people who ask what it sees (`site status`); the agent believes only
what it has read itself.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import msgspec

from tidemill.errors import ConfigError, SiteError
from tidemill.files import open_at_once, read_bounded, write_whole
from tidemill.log import Log

INLINE_BYTES_MAX = 64 << 20
"""Larger files are read in a thread where the caller cannot wait: 0.05 s at 1.3 GB/s out of the page cache."""

SLICE_BYTES = 4 << 20
RECORD = "digests.json"
RECORD_BYTES_MAX = 16 << 20
LASTING = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENXIO,
)
"""What open(2) and read(2) say of a path that stays as it is until it is mended; all else may be a file system's
hiccup, such as ESTALE, EIO and ETIMEDOUT of NFS."""

Mark = tuple[int, int, int, int]
"""Size, times and inode of a file."""

_log = Log("digests")


def check_digest(path: Path, key: str, wanted: str | None) -> None:
    """Raise ConfigError if `wanted`, the value of `key` in the application file `path`, is not a SHA-256 digest."""
    if wanted is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", wanted):
        raise ConfigError(f"{path}: digest `{wanted}` of `{key}` is not `sha256:` and 64 hexadecimal digits")


class PendingError(SiteError):
    """A large file is being read: its digest is known later, and until then nothing is said of what needs it."""


class Digests:
    """Checksums of files, computed again when a file's size, times or inode differ.

    With `beside` files of more than `INLINE_BYTES_MAX` are read one after the other in a thread of their own, so that
    a caller who must not wait does not: image packs and container images have gigabytes.
    """

    def __init__(self, *, beside: bool = False) -> None:
        self._known: dict[str, tuple[Mark, str]] = {}
        self._answers: dict[str, tuple[Mark, str]] = {}
        self._copied: tuple[dict[str, tuple[Mark, str]], dict[str, tuple[Mark, str]]] = ({}, {})
        self._is_told = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="digests") if beside else None
        self._under_way: dict[str, tuple[Mark, Future[str]]] = {}
        self._is_closed = Event()

    @property
    def is_busy(self) -> bool:
        """Whether a file is being read, or was, and its digest was not asked for since."""
        return bool(self._under_way)

    def digest(self, path: str) -> str:
        """`sha256:...` of a file. Raises SiteError; PendingError while a thread reads it."""
        return self._remembered(self._known, path, lambda mark: self._read(path, mark))

    def mark(self, path: str) -> Mark:
        """The mark of the file whose digest `digest` returned last; zeros where it returned none."""
        known = self._known.get(path)
        return (0, 0, 0, 0) if known is None else known[0]

    def cached(self, path: str, read: Callable[[], str]) -> str:
        """What `read` says of a small file, asked again when the file looks different. Raises SiteError, and what
        `read` raises."""
        return self._remembered(self._answers, path, lambda _: read())

    def copy(self) -> Digests:
        """What is known now, for another thread: it reads files itself, also large ones, until `close` of this one."""
        made = Digests()
        made._known, made._answers, made._is_closed = dict(self._known), dict(self._answers), self._is_closed
        made._copied = self._known.copy(), self._answers.copy()
        return made

    def learn(self, copy: Digests) -> None:
        """Take what the thread with the copy has read, except of files that are or were read here since."""
        for mine, before, found in (
            (self._known, copy._copied[0], copy._known),
            (self._answers, copy._copied[1], copy._answers),
        ):
            for path, read in found.items():
                is_same = mine.get(path) == before.get(path) and path not in self._under_way
                if is_same and read != before.get(path):
                    mine[path] = read
                    self._is_told = False

    def write_known(self, path: Path) -> None:
        """Tell others what was found, where that is news. Nothing depends on the file: a failure is logged."""
        if self._is_told:
            return
        self._is_told = True
        try:
            write_whole(path, msgspec.json.encode(self._known))
        except SiteError as error:
            _log.warning("digests.unwritten", reason=error.message)

    def read_known(self, path: Path) -> None:
        """Believe what another one found. What cannot be read is not believed."""
        with suppress(SiteError, msgspec.DecodeError):
            content = read_bounded(path, RECORD_BYTES_MAX)
            self._known.update(msgspec.json.decode(content or b"{}", type=dict[str, tuple[Mark, str]]))

    def _remembered(self, known: dict[str, tuple[Mark, str]], path: str, read: Callable[[Mark], str]) -> str:
        try:
            status = os.stat(path)  # noqa: PTH116 -- one call, its numbers are wanted
            mark = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            found = known.get(path)
            if found is None or found[0] != mark:
                found = known[path] = (mark, read(mark))
        except OSError as error:
            self._under_way.pop(path, None)
            raise SiteError(
                f"failed to read `{path}`: {error.strerror}", transient=error.errno not in LASTING
            ) from error
        return found[1]

    def _read(self, path: str, mark: Mark) -> str:
        """Raises OSError, PendingError."""
        result = self._read_beside(path, mark)
        self._is_told = False
        return result

    def _read_beside(self, path: str, mark: Mark) -> str:
        if self._thread is None or (mark[0] <= INLINE_BYTES_MAX and path not in self._under_way):
            return self._digest(path)
        read, reading = self._under_way.get(path, (None, None))
        if reading is None or (read != mark and reading.done()):
            reading = self._thread.submit(self._digest, path)
            read = mark
            self._under_way[path] = (mark, reading)
        if read != mark or not reading.done():
            raise PendingError(f"`{path}` is being read: {mark[0]} bytes")
        del self._under_way[path]
        return reading.result()

    def _digest(self, path: str) -> str:
        """In slices, so that it ends soon after `close`. Threads run beside: hashlib lets them. Raises OSError, also
        for a FIFO or a device: others who may write to that directory would stop the agent with one."""
        found = hashlib.sha256()
        with open(path, "rb", buffering=0, opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.ENXIO, "not a regular file")
            while slice_ := file.read(SLICE_BYTES):
                if self._is_closed.is_set():
                    raise OSError(errno.ECANCELED, "the agent ends")
                found.update(slice_)
        return "sha256:" + found.hexdigest()

    def close(self) -> None:
        """Read nothing more."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
