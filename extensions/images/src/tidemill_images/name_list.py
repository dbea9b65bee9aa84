"""What is in an image, name by name: written when it is built, read by `image inspect --files` and `image verify`.

One JSON array a line, compressed by gzip, in the store as `lists/SHA256.gz`; the SHA-256 is that of the file. Paths
may hold bytes that are not valid UTF-8; they become lone surrogates in JSON escapes, as Python's json writes them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tidemill.errors import UNDECODABLE, ConfigError, ProtocolError, SiteError
from tidemill.files import make_readable, read_bounded, write_durable
from tidemill_images.squash import PackedName

FOLDER = "lists"
LIST_BYTES_MAX = 1 << 30


def write_listing(store: Path, listed: Sequence[PackedName]) -> str:
    """Keep a list; its SHA-256. Raises SiteError."""
    lines = "".join(json.dumps(msgspec.structs.astuple(each)) + "\n" for each in listed)
    content = gzip.compress(lines.encode("ascii"), compresslevel=6, mtime=0)
    digest = hashlib.sha256(content).hexdigest()
    path = path_of(store, digest)
    try:
        make_readable(path.parent)
    except OSError as error:
        raise SiteError(
            f"failed to make `{path.parent}`: {error.strerror}",
            hint="check the store's free space and rights",
        ) from error
    write_durable(path, content, mode=0o644)
    return digest


def path_of(store: Path, digest: str) -> Path:
    """Where a list is."""
    return store / FOLDER / f"{digest}.gz"


def read_listing(store: Path, digest: str) -> list[PackedName]:
    """A list of a store. Raises ConfigError where it lacks, ProtocolError where it is not what was written."""
    path = path_of(store, digest)
    content = read_bounded(path, LIST_BYTES_MAX)
    if content is None:
        raise ConfigError(
            f"there is no list `{path}`", hint="build the image again: it costs nothing but time"
        )
    if hashlib.sha256(content).hexdigest() != digest:
        raise ProtocolError(f"list `{path}` is not what was written", hint="build the image again")
    try:
        rows = [json.loads(line) for line in gzip.decompress(content).splitlines()]
        return [PackedName(*row) for row in rows]
    except (OSError, EOFError, zlib.error, TypeError, *UNDECODABLE) as error:
        raise ProtocolError(f"list `{path}` cannot be read: {error}") from error
