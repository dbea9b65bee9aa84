"""Files of this machine and its shared file systems: `file:` URLs and absolute paths, below the site's data roots.

A path is judged after all symbolic links are resolved, and once more on the open file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from tidemill.errors import SiteError
from tidemill.files import open_private
from tidemill.transfer.contract import Fetched, SourceFile, of_os_error

SCHEMES = ("file",)
CHUNK_BYTES = 1 << 20
RANGE_BYTES = 64 << 20
APART = "@"
"""Begins the names of directories that are their owners' alone."""

_FICLONE = 0x40049409  # ioctl_ficlone(2)


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
"""Errors of a path that persist until it is corrected. All others, such as ESTALE, EIO and ETIMEDOUT, are errors of the
file system: the caller tries again."""


def is_location(text: str) -> bool:
    """Whether a text is meant as the place of a file: an absolute path, or a URL."""
    if text.startswith("/"):
        return True
    scheme, colon, rest = text.partition(":")
    known = scheme in SCHEMES or rest.startswith("//")
    return bool(colon) and known and scheme.replace("+", "").replace("-", "").isalnum()


def local_path(url: str) -> Path:
    """The path that a `file:` URL or an absolute path names. Raises SiteError for anything else."""
    if url.startswith("/"):
        return Path(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SiteError(f"`{url}` is not a URL: {error}", transient=False) from error
    if parts.scheme not in SCHEMES:
        raise SiteError(
            f"`{url}`: this site has no transfer for `{parts.scheme or url}:`",
            hint="supported: `file:` and absolute paths",
            transient=False,
        )
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise SiteError(f"`{url}` names no file of this site", hint="write `file:///path`", transient=False)
    return Path(unquote(parts.path))


class Roots:
    """Where files of jobs may be: below one of `roots`, but not below a `private` path.

    `private` are the site's directory, its keys and the like, which a root may hold. `closed` is where outputs go that
    name no place, mostly in the site's directory. Only what is `opened` can be reached there, unless a root at or below
    it says otherwise; and where a name directly below it begins with `@`, no root opens it either.
    """

    def __init__(
        self, roots: Iterable[Path], *, private: Iterable[Path] = (), closed: Path | None = None
    ) -> None:
        self._roots = [Path(os.path.realpath(root)) for root in roots]
        self._private = [Path(os.path.realpath(path)) for path in private]
        self._closed = None if closed is None else Path(os.path.realpath(closed))
        self._opened: tuple[Path, ...] = ()

    def opened(self, path: Path) -> Roots:
        """The roots, but that this directory or file in the closed one can be reached; `path` is without links."""
        result = copy(self)
        result._opened = (*self._opened, path)
        return result

    def fault(self, real: Path, path: Path) -> SiteError | None:
        """Why `real`, a path without links, is not permitted; None = it is. `path`: the same with its links."""
        where = f"`{path}`" if path == real else f"`{path}`, which is `{real}`,"
        roots = self._roots
        if self._closed is not None and real.is_relative_to(self._closed):
            apart = real.relative_to(self._closed).parts[:1]
            is_apart = bool(apart) and apart[0].startswith(APART)
            if any(
                real.is_relative_to(each) and not (is_apart and each == self._closed) for each in self._opened
            ):
                return None
            roots = [each for each in roots if each.is_relative_to(self._closed)]
            if is_apart or not any(real.is_relative_to(root) for root in roots):
                return SiteError(
                    f"{where} lies among delivered outputs, and not among those of this job's owner",
                    hint="an output of an earlier job of yours is the input `job:ID/OUTPUT`",
                    transient=False,
                )
        if not any(real.is_relative_to(root) for root in roots):
            return SiteError(
                f"{where} lies outside this site's data roots",
                hint="data roots: " + (", ".join(f"`{root}`" for root in roots) or "none"),
                transient=False,
            )
        if any(real.is_relative_to(path) for path in self._private):
            return SiteError(
                f"{where} is the site's own: it lies outside this site's data roots",
                hint="no job reads or writes the site's directory, keys, tokens or what `mask` names",
                transient=False,
            )
        return None

    def confine(self, path: Path) -> Path:
        """The path with all links resolved. Raises SiteError if that leads where files may not be."""
        real = Path(os.path.realpath(path))
        fault = self.fault(real, path)
        if fault is not None:
            raise fault
        return real

    def check_open(self, descriptor: int, path: str) -> None:
        """Check that the open file is the one that was checked as `path`: a link may have changed. Raises SiteError."""
        opened = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if opened != path:
            self.confine(Path(opened))


class FileTransfer:
    """Moves files of this machine: an adapter of `transfer/contract.py`. `roots`: where files may be read."""

    def __init__(self, roots: Roots, *, size_max: int) -> None:
        self._roots = roots
        self._size_max = size_max

    def stat(self, url: str) -> SourceFile:
        """Check that a URL names a regular file that may be read; return its path, size and version."""
        path = self._roots.confine(local_path(url))
        try:
            status = path.stat()
        except OSError as error:
            raise SiteError(
                f"failed to read `{url}`: {error.strerror}", transient=error.errno not in LASTING
            ) from error
        if not stat.S_ISREG(status.st_mode):
            raise SiteError(f"`{url}` is not a regular file", transient=False)
        if status.st_size > self._size_max:
            raise SiteError(
                f"`{url}` has {status.st_size} bytes, this site stages at most {self._size_max}",
                transient=False,
            )
        version = (
            f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"
        )
        return SourceFile(path=str(path), size_bytes=status.st_size, version=version)

    def fetch(self, source: SourceFile, target: Path, *, sha256: str | None) -> Fetched:
        """Copy the file to `target`, which must not exist; with `sha256`, check the digest of the copy."""
        try:
            with open(source.path, "rb") as file, open_private(target, "xb") as copy:  # noqa: PTH123
                self._roots.check_open(file.fileno(), source.path)
                size, digest = _copy(file, copy, self._size_max, with_digest=sha256 is not None)
        except OSError as error:
            target.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise of_os_error(error, f"copy `{source.path}` to `{target}`") from error
            is_lasting = error.errno in LASTING and error.filename == source.path
            raise SiteError(
                f"failed to copy `{source.path}` to `{target}`: {error.strerror}", transient=not is_lasting
            ) from error
        if sha256 is not None and digest != sha256.removeprefix("sha256:").lower():
            target.unlink(missing_ok=True)
            raise SiteError(
                f"`{source.path}` has checksum sha256:{digest}, the job expects "
                f"sha256:{sha256.removeprefix('sha256:').lower()}",
                hint="the file is damaged or another version: check it, or correct the job",
                transient=False,
            )
        return Fetched(size_bytes=size, sha256=digest)


def _copy(file: BinaryIO, copy: BinaryIO, size_max: int, *, with_digest: bool) -> tuple[int, str | None]:
    if not with_digest:
        if not _clone(file, copy):
            _copy_in_kernel(file, copy, size_max)
        return os.fstat(copy.fileno()).st_size, None
    digest = hashlib.sha256()
    size = 0
    while piece := file.read(CHUNK_BYTES):
        size += len(piece)
        _bound(size, size_max)
        digest.update(piece)
        copy.write(piece)
    return size, digest.hexdigest()


def _copy_in_kernel(file: BinaryIO, copy: BinaryIO, size_max: int) -> None:
    """copy_file_range(2): no byte passes through us, and network file systems may copy on the server. Where it does
    not work (other file systems, old kernels) bytes are read and written."""
    size = 0
    try:
        while count := os.copy_file_range(file.fileno(), copy.fileno(), RANGE_BYTES):
            size += count
            _bound(size, size_max)
    except OSError as error:
        if size or error.errno not in (
            errno.EXDEV,
            errno.EINVAL,
            errno.ENOSYS,
            errno.EOPNOTSUPP,
            errno.EPERM,
        ):
            raise
    while piece := file.read(CHUNK_BYTES):
        size += len(piece)
        _bound(size, size_max)
        copy.write(piece)


def _bound(size: int, size_max: int) -> None:
    if size > size_max:
        raise OSError(errno.EFBIG, f"it grew beyond {size_max} bytes while it was copied")


def _clone(file: BinaryIO, copy: BinaryIO) -> bool:
    """Share the blocks where the file system can (Btrfs, XFS, ...)."""
    try:
        fcntl.ioctl(copy.fileno(), _FICLONE, file.fileno())
    except OSError:
        return False
    return True
