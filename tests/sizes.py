"""Disks that are full, for one test: the kernel refuses to let any file of this process grow beyond a size."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_size_max(size_bytes: int) -> Iterator[None]:
    """A write across this size is cut short, the next one fails (EFBIG), as on a disk that fills up (ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
