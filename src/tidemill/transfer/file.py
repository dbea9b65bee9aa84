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
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from tidemill.errors import SiteError
from tidemill.transfer.contract import Fetched, Source

SCHEMES = ("file",)
CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409  # ioctl_ficlone(2)


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
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise SiteError(
            f"`{url}`: this site has no transfer for `{parts.scheme or url}:`",
            hint="supported: `file:` and absolute paths",
            transient=False,
        )
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise SiteError(f"`{url}` names no file of this site", hint="write `file:///path`", transient=False)
    return Path(unquote(parts.path))


class FileTransfer:
    """See `transfer/contract.py`. `roots`: directories below which files may be read."""

    def __init__(self, roots: Iterable[Path], *, size_max: int) -> None:
        self._roots = [Path(os.path.realpath(root)) for root in roots]
        self._size_max = size_max

    def look(self, url: str) -> Source:
        """See the contract."""
        path = self.confine(local_path(url))
        try:
            status = path.stat()
        except OSError as error:
            raise SiteError(f"failed to read `{url}`: {error.strerror}", transient=False) from error
        if not stat.S_ISREG(status.st_mode):
            raise SiteError(f"`{url}` is no plain file", transient=False)
        if status.st_size > self._size_max:
            raise SiteError(
                f"`{url}` has {status.st_size} bytes, this site stages at most {self._size_max}",
                transient=False,
            )
        version = (
            f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"
        )
        return Source(path=str(path), size_bytes=status.st_size, version=version)

    def fetch(self, source: Source, target: Path, *, sha256: str | None) -> Fetched:
        """See the contract."""
        try:
            with open(source.path, "rb") as file, target.open("xb") as copy:  # noqa: PTH123
                self._confined(source.path, file)
                size, digest = _copy(file, copy, self._size_max, with_digest=sha256 is not None)
                copy.flush()
                os.fsync(copy.fileno())
        except OSError as error:
            target.unlink(missing_ok=True)
            what = (
                "no space left at the site" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            )
            raise SiteError(f"failed to copy `{source.path}` to `{target}`: {what}") from error
        if sha256 is not None and digest != sha256.removeprefix("sha256:").lower():
            target.unlink(missing_ok=True)
            raise SiteError(
                f"`{source.path}` has checksum sha256:{digest}, the job expects "
                f"sha256:{sha256.removeprefix('sha256:').lower()}",
                hint="the file is damaged or another version: check it, or correct the job",
                transient=False,
            )
        return Fetched(size_bytes=size, sha256=digest)

    def confine(self, path: Path) -> Path:
        """The path with all links resolved. Raises SiteError if that leaves the data roots."""
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(root) for root in self._roots):
            raise SiteError(
                f"`{path}` lies outside this site's data roots",
                hint="data roots: " + (", ".join(f"`{root}`" for root in self._roots) or "none"),
                transient=False,
            )
        return real

    def _confined(self, path: str, file: BinaryIO) -> None:
        """The open file is the one that was judged: nobody exchanged a link in between."""
        opened = str(Path(f"/proc/self/fd/{file.fileno()}").readlink())
        if opened != path:
            self.confine(Path(opened))


def _copy(file: BinaryIO, copy: BinaryIO, size_max: int, *, with_digest: bool) -> tuple[int, str | None]:
    if not with_digest and _clone(file, copy):
        return os.fstat(copy.fileno()).st_size, None
    digest = hashlib.sha256()
    size = 0
    while piece := file.read(CHUNK_BYTES):
        size += len(piece)
        if size > size_max:
            raise OSError(errno.EFBIG, f"it grew beyond {size_max} bytes while it was copied")
        digest.update(piece)
        copy.write(piece)
    return size, digest.hexdigest()


def _clone(file: BinaryIO, copy: BinaryIO) -> bool:
    """Share the blocks where the file system can (Btrfs, XFS, ...)."""
    try:
        fcntl.ioctl(copy.fileno(), _FICLONE, file.fileno())
    except OSError:
        return False
    return True
