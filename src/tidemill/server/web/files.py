"""Delivered files as downloads, for the person whose server it is.

Sites name the files, so only the user on the server's own socket gets them: that user could read them anyway. Others
get the command. A file is opened once, without following a link at its end, and sent only if it is a regular file of
this user with the size that was delivered.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

from tidemill.errors import UNDECODABLE
from tidemill.files import why_not_opened
from tidemill.model.identity import Identity, Via
from tidemill.server.errors import ForbiddenError, MissingError
from tidemill.wire.api import OutputRow

PIECE = 256 * 1024
_PLAIN = re.compile(r"[^A-Za-z0-9._+=-]")


class Download(NamedTuple):
    """An open file that may be sent."""

    name: str
    size_bytes: int
    file: BinaryIO

    def pieces(self) -> Iterator[bytes]:
        """The file's content; at most as much as it had when it was opened."""
        left = self.size_bytes
        with self.file:
            while left > 0 and (piece := self.file.read(min(PIECE, left))):
                left -= len(piece)
                yield piece


def may_download(identity: Identity, url: str) -> bool:
    """Whether a page offers the file: it may still not be there."""
    return identity.via is Via.SOCKET and _path(url) is not None


def opened(identity: Identity, job: int, output: OutputRow) -> Download:
    """A delivered file of a job. Raises ForbiddenError, MissingError with the command that gets it."""
    hint = f"`tidemill outputs get {job} --output {output.name}`"
    if identity.via is not Via.SOCKET:
        raise ForbiddenError("files are downloaded by the server's own user only", hint=hint)
    path = _path(output.url)
    if path is None:
        raise MissingError(f"output `{output.name}` of job {job} is not one file of this machine", hint=hint)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise MissingError(
            f"output `{output.name}` of job {job} cannot be read here: {why_not_opened(error)}", hint=hint
        ) from error
    found = os.fstat(descriptor)
    wrong = (
        "it is not a regular file" if not stat.S_ISREG(found.st_mode)
        else "it belongs to another user" if found.st_uid != os.getuid()
        else f"it has {found.st_size} bytes, delivered were {output.size_bytes}" if found.st_size != output.size_bytes
        else ""
    )  # fmt: skip
    if wrong:
        os.close(descriptor)
        raise MissingError(
            f"output `{output.name}` of job {job} is not what was delivered: {wrong}", hint=hint
        )
    name = _PLAIN.sub("_", Path(path).name)[-100:].lstrip(".") or "output"
    return Download(name, found.st_size, os.fdopen(descriptor, "rb"))


def _path(url: str) -> str | None:
    """The absolute path of a `file:` URL of this machine; None for anything else, such as a directory of files."""
    try:
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
    except UNDECODABLE:
        return None
    is_plain = (
        parts.scheme == "file"
        and parts.netloc in ("", "localhost")
        and not parts.query
        and not parts.fragment
    )
    if (
        not is_plain
        or not path.startswith("/")
        or path.endswith("/")
        or "\0" in path
        or ".." in path.split("/")
    ):
        return None
    return path
