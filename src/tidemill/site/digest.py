"""Checksums that the site's staff approved."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from tidemill.errors import ConfigError, SiteError


def check_digest(path: Path, key: str, wanted: str | None) -> None:
    """Refuse what is no digest, as `key` of the application file `path` says it. Raises ConfigError."""
    if wanted is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", wanted):
        raise ConfigError(f"{path}: digest `{wanted}` of `{key}` is not `sha256:` and 64 hexadecimal digits")


class Digests:
    """Checksums of files, computed again when a file's size, times or inode differ."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int, int], str]] = {}

    def of(self, path: str) -> str:
        """`sha256:...` of a file. Raises SiteError."""
        try:
            status = os.stat(path)  # noqa: PTH116 -- one call, its numbers are wanted
            mark = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            known = self._known.get(path)
            if known is None or known[0] != mark:
                with open(path, "rb") as file:  # noqa: PTH123
                    known = (mark, "sha256:" + hashlib.file_digest(file, "sha256").hexdigest())
                self._known[path] = known
        except OSError as error:
            raise SiteError(f"failed to read `{path}`: {error.strerror}", transient=False) from error
        return known[1]
