"""Durable small files: temp + fsync + rename, with errors that name the operation and the path."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from tidemill.errors import SiteError


def write_durable(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Put `content` at `path` whole or not at all; on return it survives a crash. Raises SiteError.

    The temporary name is nobody else's, on any host; it starts with a dot and ends with `.tmp`; readers of a directory
    skip it.
    """
    _write(path, content, mode, durable=True)


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Put `content` at `path` whole or not at all, without waiting for the disk: it may be gone after a crash.

    Raises SiteError.
    """
    _write(path, content, mode, durable=False)


def _write(path: Path, content: bytes, mode: int, *, durable: bool) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
        if durable:
            sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):  # of a file system that is read-only it cannot even be asked for
            temporary.unlink()
        raise SiteError(
            f"failed to write `{path}`: {error.strerror}",
            hint="check free space, quota and rights of that directory",
        ) from error


def sync_directory(directory: Path) -> None:
    """Make renames and new names in `directory` survive a crash. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def names_in(directory: Path) -> list[str] | None:
    """The sorted names in a directory, None where there is none. Raises SiteError."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 -- names only, without a stat of each
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SiteError(
            f"failed to list `{directory}`: {error.strerror}", hint="check that it may be read, and try again"
        ) from error


PIECE_BYTES = 1 << 20
"""A file is read in such pieces: `read` makes room for all that it is asked for, were the file empty."""


def read_bounded(path: Path, size_max: int) -> bytes | None:
    """The content of a file of at most `size_max` bytes, None where there is none. Raises SiteError."""
    try:
        with path.open("rb") as file:
            pieces: list[bytes] = []
            left = size_max + 1
            while left > 0 and (piece := file.read(min(left, PIECE_BYTES))):
                pieces.append(piece)
                left -= len(piece)
            content = b"".join(pieces)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SiteError(f"failed to read `{path}`: {error.strerror}") from error
    if len(content) > size_max:
        raise SiteError(f"`{path}` is larger than {size_max} bytes", transient=False)
    return content
