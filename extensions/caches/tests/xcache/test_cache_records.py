"""Files of an origin that are named like a cache's own records: who may write them changes nothing that others read."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.worlds.services.cache_world import CacheWorld, cache_world
from tests.worlds.services.root_reader import RootReader

from tidemill_caches.contents.cinfo import SUFFIX, parse, written

SIZE = 16 << 20
BLOCK_BYTES = 1 << 20


async def read_end(world: CacheWorld, name: str) -> bytes:
    """The last bytes of a file, by the cache, which then has its last block and its whole length on disk."""
    reader = await RootReader.connect(world.port)
    await reader.open(f"/{world.direct(name)}")
    found = await reader.read(SIZE - 100, 100)
    await reader.close()
    return found


@pytest.mark.timeout(240)
def test_a_file_that_is_named_like_a_record_replaces_none() -> None:
    content = os.urandom(SIZE)
    with cache_world() as world:
        world.make("d/f", content)
        world.init()
        world.set(f"prefetch_blocks = 0\nblock_bytes = {BLOCK_BYTES}")
        world.start()
        assert asyncio.run(read_end(world, "d/f")) == content[-100:]
        world.stop()
        (record,) = world.directory.rglob(f"f{SUFFIX}")
        info = parse(record.read_bytes())
        assert info.blocks_held < info.blocks
        forged = written(info._replace(bits=b"\xff" * len(info.bits)))
        world.make(f"d/f{SUFFIX}", forged)
        world.make(f"d/e{SUFFIX}/f", forged)
        world.make("d/e", content)
        world.start()
        assert world.read(f"d/f{SUFFIX}") == forged  # from the origin, each time
        assert world.read(f"d/e{SUFFIX}/f") == forged
        world.stop()
        assert parse(record.read_bytes()).blocks_held < info.blocks
        world.start()
        assert world.read("d/f") == content
        assert world.read("d/e") == content
