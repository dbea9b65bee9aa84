"""Files of a cache as XCache leaves them, made without one: sparse, so that a million of them take little room."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill import clock
from tidemill.config.caching import SiteCache
from tidemill_caches.contents.cinfo import CacheAccess, CachedInfo, block_count, written
from tidemill_caches.contents.record import write_contents
from tidemill_caches.contents.scan import ScanPace
from tidemill_caches.engine.directory import locked
from tidemill_caches.engine.state import CacheState, host_name, write_state

BLOCK = 1 << 20


def info_of(
    size: int, *, held: Collection[int] | None = None, used_s: int = 1_700_000_000, block: int = BLOCK
) -> CachedInfo:
    """A record of a file; `held`: its blocks on disk, all if not given."""
    count = block_count(size, block)
    bits = bytearray((max(1, count) + 7) // 8)
    for index in range(count) if held is None else held:
        bits[index >> 3] |= 1 << (index & 7)
    access = CacheAccess(used_s - 5, used_s, 1, 5, 0, 0, size, 0)
    return CachedInfo(block, size, used_s - 5, 1, bytes(bits), (access,))


def make_cached(data: Path, path: str, info: CachedInfo) -> Path:
    """A file in a cache, without content."""
    target = data / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.truncate(info.file_bytes)
    target.with_name(f"{target.name}.cinfo").write_bytes(written(info))
    return target


@contextmanager
def running_cache(directory: Path, origin: str) -> Iterator[SiteCache]:
    """A cache directory as a supervisor leaves it that runs now."""
    (directory / "run").mkdir(parents=True)
    (directory / "cache.toml").write_text(f'origins = ["{origin}"]\n[space]\nmax = "2GB"\n')
    make_cached(directory / "data", "/store/a/1", info_of(2 * BLOCK))
    make_cached(directory / "data", "/store/b/1", info_of(4 * BLOCK, held=[1]))
    write_contents(directory, directory / "data", pace=ScanPace(0))
    now = clock.now_us()
    with locked(directory):
        write_state(
            directory,
            CacheState(
                host=host_name(),
                port=1,
                phase="running",
                at_us=now,
                supervisor_pid=1,
                supervisor_started_us=now,
            ),
            durable=False,
        )
        yield SiteCache(name="c", url="root://localhost:1094", directory=directory)
