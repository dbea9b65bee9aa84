"""A check that ends in time, also within a file of many blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.worlds.services.cached_files import BLOCK, info_of, make_cached

from tidemill import clock
from tidemill.cache.contents.origin_reader import FileAtOrigin, OriginReader
from tidemill.cache.contents.verify import BlockSample, Comparison, check_cache, files_below
from tidemill.cache.engine.origins import OriginPath, parse_origin
from tidemill.cli.cache.check import _share
from tidemill.config.cache import CacheConfig, CacheSpace

CONFIG = CacheConfig(origins=["root://a.example:1094//"], space=CacheSpace(max=10**9))


class SlowOrigin(OriginReader):
    """Zeros, as in the sparse files of these tests; each block takes its time."""

    def __init__(self, block_s: float) -> None:
        super().__init__(CONFIG)
        self.block_s, self.blocks = block_s, 0

    def open(self, file: OriginPath) -> FileAtOrigin:
        return FileAtOrigin(100 * BLOCK, 0)

    def adler32(self, file: OriginPath) -> None:
        return None

    def read(self, offset: int, length: int) -> bytes:
        self.blocks += 1
        clock.sleep_s(self.block_s)
        return bytes(length)


def comparison(data: Path, reader: OriginReader, *, until_s: float | None) -> Comparison:
    return Comparison(
        data, [parse_origin(CONFIG.origins[0])], reader=reader, sample=BlockSample(1.0, 0), until_s=until_s
    )


def test_a_check_ends_within_a_file_of_many_blocks_and_says_so(tmp_path: Path) -> None:
    make_cached(tmp_path, "/d/f", info_of(100 * BLOCK))
    make_cached(tmp_path, "/d/g", info_of(100 * BLOCK))
    origin = SlowOrigin(0.02)
    told: list[str] = []
    made = comparison(tmp_path, origin, until_s=clock.monotonic_s() + 0.1)

    sums = check_cache(files_below(tmp_path, "/"), made, tell=lambda each: told.append(each.why))

    assert (sums.ended_early, sums.files, sums.by_verdict) == (True, 1, {"skipped": 1})
    assert sums.compared_bytes == origin.blocks * BLOCK < 100 * BLOCK
    assert told == [f"the time was up after {origin.blocks} of 100 blocks"]


def test_a_check_without_a_limit_compares_every_block(tmp_path: Path) -> None:
    make_cached(tmp_path, "/d/f", info_of(100 * BLOCK))
    sums = check_cache(
        files_below(tmp_path, "/"), comparison(tmp_path, SlowOrigin(0.0), until_s=None), tell=lambda _: None
    )
    assert (sums.ended_early, sums.by_verdict, sums.compared_bytes) == (False, {"good": 1}, 100 * BLOCK)


@pytest.mark.parametrize("text", ["0", "101%", "nan", "inf", "-1", "", "%"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the command line says what is legal
        _share(text)


def test_shares_are_numbers_or_percent() -> None:
    assert [_share(each) for each in ("1", "1%", "0.01")] == [1.0, 0.01, 0.01]
