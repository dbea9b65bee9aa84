"""Where outputs go on this machine: whether they can be written there, before anything runs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tidemill.errors import ConfigError
from tidemill.files import sync
from tidemill.model.file_systems import KERNEL_TYPES, file_system

WRITTEN_BYTES = 4096
"""Size of the probe: a full disk still accepts an empty file."""

ELSEWHERE = "name another directory: `--dir` of `run`, `--output` of `submit`, `output_dir` in a job file"


def check_output_dir(directory: Path, campaign: str, *, writes: bool = True) -> None:
    """Raises ConfigError unless a file can be written below DIR/CAMPAIGN. Leaves nothing behind. `writes`: write a
    file, which detects a full disk; otherwise only check permissions.

    Probes the nearest existing directory: the site makes those below it.
    """
    target = directory.absolute() / campaign
    place = target
    try:
        while not place.exists():
            if place.is_symlink():
                raise ConfigError(
                    f"outputs cannot be written to `{target}`: `{place}` is a symbolic link whose target is missing",
                    hint=ELSEWHERE,
                )
            place = place.parent
        if not place.is_dir():
            raise ConfigError(
                f"outputs cannot be written to `{target}`: `{place}` is not a directory", hint=ELSEWHERE
            )
        _refuse_kernels(place)
        if writes:
            _probe(place)
        elif not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EACCES:
            why = "this user has no permission to write there"
        raise ConfigError(
            f"outputs cannot be written to `{target}`: `{place}`: {why}", hint=ELSEWHERE
        ) from error


def _refuse_kernels(place: Path) -> None:
    kind = file_system(place)
    if kind in KERNEL_TYPES:
        raise OSError(errno.EPERM, f"it belongs to the kernel (`{kind}`), and holds no files of users")


def _probe(place: Path) -> None:
    """Write a file and remove it. A file without a name leaves nothing behind even if this process is killed; on file
    systems that lack such files (NFS), the probe has a name for a moment."""
    try:
        file = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
        name = None
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise
        name = place / f".tidemill-{os.getpid()}.probe"
        file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        with os.fdopen(file, "wb") as probe:
            probe.write(bytes(WRITTEN_BYTES))
            sync(probe)
    finally:
        if name is not None:
            name.unlink()
