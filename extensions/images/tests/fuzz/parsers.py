"""The parser of what is in an image, name by name."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from tests.fuzz.parser import Parser, folder

from tidemill.errors import ConfigError, ProtocolError
from tidemill_images.name_list import path_of, read_listing

CORPUS = Path(__file__).parent / "corpus"


def _listing(content: bytes) -> object:
    packed = gzip.compress(content, 1)
    digest = hashlib.sha256(packed).hexdigest()
    path = path_of(folder(), digest)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(packed)
    try:
        return read_listing(folder(), digest)
    finally:
        path.unlink()


PARSERS = [Parser("image-list", _listing, (ConfigError, ProtocolError), corpus=CORPUS)]
