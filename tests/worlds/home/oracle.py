"""What outputs must be, computed without Tidemill."""

from __future__ import annotations

import functools
import hashlib
import random
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidemill.wire.api import JobDetail


@functools.lru_cache(maxsize=100_000)
def _line(event: int, seed: int, darts: int) -> str:
    source = random.Random(seed)
    hits = sum(source.random() ** 2 + source.random() ** 2 < 1.0 for _ in range(darts))
    return f"{event} {seed} {hits} {darts}\n"


def expected_hits(seed_base: int, events: int, darts: int) -> bytes:
    """The `pi` application's joined output."""
    return "".join(_line(event, 1 + seed_base + event, darts) for event in range(events)).encode()


def output_bytes(detail: JobDetail) -> bytes:
    """The job's only delivered file; its size and checksum are what was reported."""
    (output,) = detail.outputs
    parts = urlsplit(output.url)
    data = Path(unquote(parts.path)).read_bytes()
    assert len(data) == output.size_bytes
    assert hashlib.sha256(data).hexdigest() == output.sha256.removeprefix("sha256:")
    return data
