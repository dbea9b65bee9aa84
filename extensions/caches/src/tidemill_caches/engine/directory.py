"""The directory of a cache: its parts, whether they are fit for one, and the lock that admits one supervisor.

cache.toml       edited by people
data.json        which directory `data` is: an empty mount point in its place is refused
xrootd.cfg       written at each start
data/            XCache's files, or elsewhere (`data`)
run/             state.json, lock, XRootD's sockets and authorization file
log/             xrootd.log and the one before
figures/         sums that outlive restarts
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from tidemill import clock, config, files
from tidemill.config.caching import CACHE_TOML
from tidemill.errors import UNDECODABLE, ConfigError, SiteError
from tidemill.model.file_systems import file_system, is_shared
from tidemill.model.quantities import bytes_text
from tidemill.wire.credentials import check_private
from tidemill_caches.engine import configuration
from tidemill_caches.settings import CacheConfig

CONFIG = CACHE_TOML
PARTS = ("run", "run/admin", "log", "figures")
DATA_NOTE = "data.json"
DATA_MARK = ".tidemill-cache"
"""The mark that the note names, in the directory of cached files. XCache ignores files without a `.cinfo`."""
DATA_TRIAL = ".tidemill-writes"
"""There for a moment, to see whether the cache can write."""
NOTE_BYTES_MAX = 10_000
LOCK_TRIES, LOCK_PAUSE_S = 10, 0.05
"""An agent or `status` that asks whether a cache runs holds the lock for a moment, and is not a supervisor."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
DATA_KEY = "`--data` of `cache init`, `data` in cache.toml"
FREE_BYTES_MIN = 100_000_000
"""Below this a cache does not start: XrdPfc itself refuses below 10 MB."""


class DataNote(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cached files of a cache are, and the mark that lies beside them."""

    path: str
    mark: str


def read_cache(directory: Path) -> CacheConfig:
    """The checked configuration of a cache directory. Raises ConfigError."""
    path = directory / CONFIG
    if not is_there(path):
        raise ConfigError(
            f"`{directory}` is not a cache directory: it has no {CONFIG}",
            hint="`tidemill cache init` makes one",
        )
    found = config.load(path, CacheConfig)
    configuration.check(found)
    return found


def is_there(path: Path) -> bool:
    """Whether `path` is a file. Raises ConfigError where this user may not see it."""
    try:
        return path.is_file()
    except PermissionError as error:
        raise ConfigError(
            f"failed to read `{path}`: {error.strerror}",
            hint="run this as the user to whom the directory belongs, or name another directory",
        ) from error


def data_of(directory: Path, config: CacheConfig) -> Path:
    """Where the cached files are."""
    return config.data if config.data is not None else directory / "data"


def make_parts(directory: Path) -> None:
    """Make the directory with all but `data`, for its owner alone. Raises ConfigError."""
    check_place(directory)
    try:
        for part in ("", *PARTS):
            files.make_directories(directory / part, 0o077)
    except OSError as error:
        raise ConfigError(
            f"failed to make `{error.filename or directory}`: {error.strerror}", hint="name another place"
        ) from error


@contextmanager
def removed_if_refused(directory: Path, config: CacheConfig, *files_made: Path) -> Iterator[None]:
    """Remove what the block made of a new cache if it raises. What was there before stays, and directories with
    files of others; so does everything once cache.toml is there: another `init` was quicker."""
    data = data_of(directory, config)
    made = [
        *(directory / part for part in PARTS),
        data,
        data / DATA_MARK,
        data / DATA_TRIAL,
        directory / DATA_NOTE,
    ]
    made += [directory / "xrootd.cfg", directory / "run/authdb", directory / "run/scitokens.cfg", *files_made]
    paths = {each for path in made for each in (path, *path.parents)}
    fresh = [each for each in paths if not os.path.lexists(each)]
    try:
        yield
    except BaseException:
        if not (directory / CONFIG).exists():
            for each in sorted(fresh, key=lambda path: len(path.parts), reverse=True):
                with suppress(OSError):
                    if each.is_dir():
                        each.rmdir()
                    else:
                        each.unlink()
        raise


def make_data(directory: Path, config: CacheConfig, *, mountinfo: str | None = None) -> Path:
    """Make the directory of cached files, and check that it is fit for them. Raises ConfigError, SiteError.

    `mountinfo`: the mounted file systems, instead of /proc/self/mountinfo.
    """
    data = data_of(directory, config)
    check_place(data)
    _check_mounted(directory, data)
    kind = file_system(data, mountinfo)
    if is_shared(
        kind
    ):  # every block would cross that network twice, and XCache's locks hold on one host only
        raise ConfigError(
            f"the cache's files would be in `{data}`, which is on a network file system: `{kind}`",
            hint=f"name a local disk: {DATA_KEY}",
        )
    try:
        files.make_directories(data, 0o077)
        with files.replaced(data / DATA_TRIAL, durable=False) as file:
            file.write(b"x" * 4096)
        (data / DATA_TRIAL).unlink()
        usage = shutil.disk_usage(data)
    except OSError as error:
        raise SiteError(
            f"the cache cannot write in `{data}`: {error.strerror}",
            hint=f"{'make room, or name' if error.errno in NO_ROOM else 'name'} another directory: {DATA_KEY}",
        ) from error
    _check_room(data, usage.free, usage.total, space_max=config.space.max)
    _mark(directory, data)
    return data


def _noted(directory: Path) -> DataNote | None:
    content = files.read_bounded(directory / DATA_NOTE, NOTE_BYTES_MAX)
    try:
        return None if content is None else msgspec.json.decode(content, type=DataNote)
    except UNDECODABLE:  # it is written again
        return None


def _check_mounted(directory: Path, data: Path) -> None:
    """Raise SiteError where `data` is not the directory that this cache wrote to: a disk that is not mounted leaves an
    empty directory, and the cache would fill the disk below it."""
    note = _noted(directory)
    if note is None or note.path != str(data):
        return
    there = files.read_bounded(data / DATA_MARK, NOTE_BYTES_MAX)
    if there is not None and there.decode(errors="replace").strip() == note.mark:
        return
    what = "is not there" if not data.exists() else "does not hold the files of this cache"
    raise SiteError(
        f"`{data}` {what}: its disk may not be mounted",
        hint=f"mount it; if its files are gone for good, remove `{directory / DATA_NOTE}`, and the cache begins empty",
    )


def _mark(directory: Path, data: Path) -> None:
    """Note which directory `data` is, once."""
    note = _noted(directory)
    if note is not None and note.path == str(data):
        return
    made = DataNote(path=str(data), mark=uuid4().hex)
    files.write_durable(data / DATA_MARK, f"{made.mark}\n".encode(), mode=0o600)
    files.write_durable(directory / DATA_NOTE, msgspec.json.encode(made), mode=0o600)


def check_free(data: Path, free: int, total: int) -> None:
    """Raise SiteError for a disk with too few bytes free for a cache."""
    if free < FREE_BYTES_MIN:
        raise SiteError(
            f"the disk of `{data}` is full: {bytes_text(free)} of {bytes_text(total)} are free",
            hint=f"make room, or name another directory: {DATA_KEY}",
        )


def _check_room(data: Path, free: int, total: int, *, space_max: int) -> None:
    check_free(data, free, total)
    if space_max > total:
        raise ConfigError(
            f"`space.max` ({bytes_text(space_max)}) is more than the whole disk of `{data}` ({bytes_text(total)})",
            hint="lower it: `--size` of `cache init`, `space.max` in cache.toml",
        )


def check_place(path: Path) -> None:
    """Raise ConfigError where `path`, if it is there, is not a directory of this user that only they may write."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}", hint="name another place") from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"`{path}` is not a directory", hint="name another place")
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"`{path}` belongs to another user (number {found.st_uid})",
            hint="a cache runs as the owner of its files: name a directory of your own",
        )
    if found.st_mode & 0o022:
        raise ConfigError(
            f"`{path}` may be written by others (mode {stat.S_IMODE(found.st_mode):o}): they could plant files in the "
            "cache",
            hint=f"`chmod go-w {path}`",
        )


def check_credentials(config: CacheConfig) -> None:
    """Raise ConfigError for a secret that is not there, or that others may read."""
    for key, path in (
        ("credential.certificate", config.credential.certificate),
        ("credential.token_file", config.credential.token_file),
        ("tls.key", config.tls.key),
    ):
        if path is None:
            continue
        if not os.access(path, os.R_OK):
            what = "cannot be read by this user" if os.path.lexists(path) else "does not exist"
            raise ConfigError(
                f"`{key}`: `{path}` {what}",
                hint="name a file of the cache's user, mode 0600; `voms-proxy-init` makes a proxy certificate",
            )
        check_private(path)
    for path in (config.tls.certificate, config.tls.ca, config.credential.ca):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(f"`{path}` cannot be read", hint="cache.toml names it")


def write_generated(directory: Path, config: CacheConfig, *, figures_port: int | None = None) -> Path:
    """Write xrootd.cfg and what belongs to it; the path of xrootd.cfg. Raises ConfigError, SiteError."""
    run = directory / "run"
    made = configuration.texts(
        config, configuration.CachePlaces(data=data_of(directory, config), run=run, figures_port=figures_port)
    )
    path = directory / "xrootd.cfg"
    files.write_whole(run / "authdb", made.authdb.encode())
    if made.scitokens:
        files.write_whole(run / "scitokens.cfg", made.scitokens.encode())
    files.write_whole(path, made.xrootd.encode())
    return path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the one place of a supervisor. Raises ConfigError where another has it."""
    path = directory / "run" / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be opened: {error.strerror}") from error
    try:
        for left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if not left:
                    raise ConfigError(
                        f"a cache runs in `{directory}` already",
                        hint=f"`tidemill cache status {directory}` shows it",
                    ) from error
            clock.sleep_s(LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def is_locked(directory: Path) -> bool:
    """Whether a supervisor of this host has the directory."""
    try:
        descriptor = os.open(directory / "run" / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        return True
    finally:
        os.close(descriptor)
