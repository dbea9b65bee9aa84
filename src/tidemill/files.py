"""Files that survive a crash, whole or not at all: written aside, synced, renamed, and their directory synced.

The only place outside `examples/` that calls fsync. A temporary name starts with a dot, ends with `.tmp` and is used
once, on any host: readers of a directory skip it. Knows nothing of what is in a file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from tidemill.errors import SiteError, TidemillError

TEMPORARY = ".tmp"
NAME_BYTES_MAX = 200
"""Longest name to which a suffix is added: file systems take 255 bytes."""

PIECE_BYTES = 1 << 20
"""A file is read in such pieces: `read` makes room for all that it is asked for, were the file empty."""
_HINT = "check free space, quota and rights of that directory"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Failure = Callable[..., TidemillError]
"""The class of the error to raise; called with a message and a hint."""


def why_unseen(path: Path) -> str:
    """Why nothing is seen at `path`, to follow the path in a message; empty = something is there. Never raises OSError:
    `Path.exists`, `is_file` and `is_dir` do, for a path in a directory that is closed to us."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be seen from here: {error.strerror}"
    return ""


def why_not_opened(error: OSError) -> str:
    """Why an open with O_NOFOLLOW failed: ELOOP's own text, "Too many levels of symbolic links", is misleading."""
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed here"
    return error.strerror or str(error)


def write_durable(
    path: Path, content: bytes, *, mode: int = 0o600, exact: bool = False, failure: Failure = SiteError
) -> None:
    """Put `content` at `path` whole or not at all; on return it survives a crash. `exact`: the umask does not count.

    Raises `failure`.
    """
    with _errors_of(path, failure), replaced(path, mode=mode) as file:
        file.write(content)
        if exact:
            set_mode(file.fileno(), mode)


def write_whole(path: Path, content: bytes, *, mode: int = 0o600, failure: Failure = SiteError) -> None:
    """Put `content` at `path` whole or not at all, without waiting for the disk: it may be gone after a crash.

    Raises `failure`.
    """
    with _errors_of(path, failure), replaced(path, mode=mode, durable=False) as file:
        file.write(content)


def create_durable(path: Path, content: bytes, *, mode: int = 0o600, failure: Failure = SiteError) -> None:
    """Put `content` at `path` whole, only if nothing is there; on return it survives a crash.

    Of several at a time one succeeds. Needs a file system with hard links. Raises FileExistsError, `failure`.
    """
    draft = temporary(path)
    try:
        with _errors_of(path, failure), open_new(draft, mode) as file:
            file.write(content)
            sync(file)
        with _errors_of(path, failure, but=FileExistsError, hint=f"{_HINT}; it must allow hard links"):
            os.link(draft, path)
            sync_directory(path.parent)
    finally:
        with suppress(OSError):
            draft.unlink()


def write_new(path: Path, content: bytes, *, failure: Failure = SiteError) -> None:
    """Put `content` at `path`, mode 0600, only if nothing is there; on return it survives a crash.

    Needs no hard links, and a crash may leave a part of it: for files that a person makes once. Raises FileExistsError,
    `failure`.
    """
    with _errors_of(path, failure, but=FileExistsError):
        descriptor = open_append(path, exclusive=True)
        try:
            append(descriptor, content)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def append_durable(path: Path, content: bytes, *, failure: Failure = SiteError) -> None:
    """Append `content`, to a new file of mode 0600 if there is none; on return it survives a crash. Raises `failure`.

    A crash or a full disk may leave a part of it: readers must know a torn end.
    """
    with _errors_of(path, failure):
        descriptor = open_append(path)
        try:
            append(descriptor, content)
        finally:
            os.close(descriptor)


@contextmanager
def replaced(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends; after an error all is as before. Raises OSError.

    `name` of the file is its temporary path.
    """
    draft = temporary(path)
    try:
        with open_new(draft, mode) as file:
            yield file
            if durable:
                sync(file)
        draft.rename(path)
    except BaseException:
        with suppress(OSError):  # a file system that is read-only refuses even this
            draft.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def short_name(name: str) -> str:
    """The name, for use in a longer one; a digest of it if it is too long for that."""
    encoded = os.fsencode(name)
    if len(encoded) <= NAME_BYTES_MAX:
        return name
    import hashlib  # loads OpenSSL, which most verbs do not need

    return hashlib.sha256(encoded).hexdigest()[:16]


def temporary(path: Path) -> Path:
    """A unique name in the directory of `path`."""
    return path.with_name(f".{short_name(path.name)}.{os.getpid()}.{os.urandom(4).hex()}{TEMPORARY}")


def open_append(path: Path, *, exclusive: bool = False) -> int:
    """A descriptor that appends; a new file gets mode 0600, and its name survives a crash. Raises OSError.

    `exclusive`: FileExistsError if there is one.
    """
    try:
        descriptor = os.open(path, _CREATE | os.O_APPEND, 0o600)
    except FileExistsError:
        if exclusive:
            raise
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        sync_directory(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def append(descriptor: int, content: bytes) -> None:
    """Write all of `content` and wait until it survives a crash. Raises OSError."""
    write_all(descriptor, content)
    os.fdatasync(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`, in as many calls as it takes; it may be gone after a crash. Raises OSError."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync(file: BinaryIO) -> None:
    """Make what was written to an open file survive a crash, not yet its name. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make renames and new names in `directory` survive a crash. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_private(path: Path, mode: str, *, buffering: int = -1) -> BinaryIO:
    """As `open`, of bytes; a new file is this user's alone, whatever the umask. Raises OSError."""
    return cast(
        BinaryIO,
        open(path, mode, buffering, opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)),
    )


def make_private(directory: Path, *, failure: Failure = SiteError) -> None:
    """Create a directory, and what is missing above it, all with mode 0700. Raises `failure`.

    `mkdir(parents=True)` would give what is above it the mode of the umask.
    """
    try:
        for each in (*reversed(directory.parents), directory):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise failure(f"failed to create `{directory}`: {error.strerror}", hint=_HINT) from error


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


def current_umask() -> int:
    """The umask of this process. Reading it changes nothing (proc_pid_status(5), Linux 4.7)."""
    with suppress(OSError, ValueError), Path("/proc/self/status").open(errors="replace") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    result = os.umask(0o077)
    os.umask(result)
    return result


def make_directories(directory: Path, umask: int) -> None:
    """Create a directory and its missing parents with the mode that this umask leaves. Raises OSError.

    Ignores the umask of this process, and keeps an inherited set-group-id bit. 0o077: for this user alone.
    """
    missing = []
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:  # another thread was faster
            if not each.is_dir():
                raise
            continue
        inherited = each.stat().st_mode & stat.S_ISGID
        set_mode(each, 0o777 & ~umask | stat.S_IRWXU | inherited)


def make_readable(directory: Path) -> None:
    """Create a directory and its missing parents: others read them as far as the umask lets them, and never write.
    Raises OSError."""
    make_directories(directory, current_umask() | 0o022)


def set_mode(path: Path | int, mode: int) -> None:
    """Give a file or directory its mode, if the file system has modes. Raises OSError.

    Does not follow links: another user with write permission in the directory could have made one to a private file
    of this user.
    """
    if isinstance(path, int):
        _change_mode(path, mode)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISDIR(found.st_mode) and found.st_nlink != 1:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), str(path))
        _change_mode(descriptor, mode)
    finally:
        os.close(descriptor)


def _change_mode(descriptor: int, mode: int) -> None:
    try:
        os.fchmod(descriptor, mode)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
            raise


def open_at_once(path: str, flags: int) -> int:
    """A descriptor, an opener for `open`: a FIFO of that name does not block, and files are read as ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_bounded(path: Path, size_max: int) -> bytes | None:
    """The content of a file of at most `size_max` bytes, None where there is none. Raises SiteError."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            pieces: list[bytes] = []
            left = size_max + 1
            while left > 0 and (piece := file.read(min(left, PIECE_BYTES))):
                pieces.append(piece)
                left -= len(piece)
            content = b"".join(pieces)
    except (FileNotFoundError, NotADirectoryError):
        return None  # nor below what is a file
    except OSError as error:
        raise SiteError(f"failed to read `{path}`: {error.strerror}") from error
    if len(content) > size_max:
        raise SiteError(f"`{path}` is larger than {size_max} bytes", transient=False)
    return content


def open_new(path: Path, mode: int) -> BinaryIO:
    """A new file for writing, with this mode less the umask; never through an existing link. Raises OSError."""
    return open(path, "xb", opener=lambda name, _: os.open(name, _CREATE, mode))


@contextmanager
def _errors_of(
    path: Path, failure: Failure, *, but: tuple[type[OSError], ...] | type[OSError] = (), hint: str = _HINT
) -> Iterator[None]:
    """Raises `failure` that names the path for an OSError, except for those of class `but`."""
    try:
        yield
    except but:
        raise
    except OSError as error:
        raise failure(f"failed to write `{path}`: {error.strerror}", hint=hint) from error
