"""A check that ends in time, also within a file of many blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from extensions.caches.tests.cached_files import BLOCK, info_of, make_cached

from tidemill import clock
from tidemill_caches.cli.check import _share
from tidemill_caches.contents.origin_reader import FileAtOrigin, OriginReader
from tidemill_caches.contents.verify import BlockSample, Comparison, check_cache, files_below
from tidemill_caches.engine.origins import OriginPath, parse_origin
from tidemill_caches.settings import CacheConfig, CacheSpace

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


class EmptyOrigin(SlowOrigin):
    """Files of this size."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(0.0)
        self._size_bytes = size_bytes

    def open(self, file: OriginPath) -> FileAtOrigin:
        return FileAtOrigin(self._size_bytes, 0)


def checked(data: Path, origin: OriginReader) -> list[tuple[str, str, str]]:
    """Path, verdict and reason of each file."""
    told: list[tuple[str, str, str]] = []
    check_cache(
        files_below(data, "/"), comparison(data, origin, until_s=None),
        tell=lambda each: told.append((each.path, each.verdict, each.why)),
    )  # fmt: skip
    return sorted(told)


def test_files_whose_record_cannot_be_read_are_not_checked_and_told_with_the_reason(tmp_path: Path) -> None:
    for name in ("cut", "empty", "version"):
        make_cached(tmp_path, f"/d/{name}", info_of(100 * BLOCK))
    record = {name: tmp_path / f"d/{name}.cinfo" for name in ("cut", "empty", "version")}
    record["cut"].write_bytes(record["cut"].read_bytes()[:40])
    record["empty"].write_bytes(b"")
    record["version"].write_bytes(b"\3" + record["version"].read_bytes()[1:])

    found = checked(tmp_path, SlowOrigin(0.0))

    assert [(path, verdict) for path, verdict, _ in found] == [(f"/d/{name}", "unread") for name in record]
    assert ["40 bytes" in found[0][2], "0 bytes" in found[1][2], "version is 3" in found[2][2]] == [True] * 3


@pytest.mark.parametrize(("size_bytes", "verdict"), [(0, "good"), (5, "changed")])
def test_an_empty_file_is_compared_by_its_size(tmp_path: Path, size_bytes: int, verdict: str) -> None:
    make_cached(tmp_path, "/d/f", info_of(0))

    ((path, found, why),) = checked(tmp_path, EmptyOrigin(size_bytes))

    assert (path, found) == ("/d/f", verdict)
    assert ("has 5 bytes" in why) is bool(size_bytes)


@pytest.mark.parametrize("text", ["0", "101%", "nan", "inf", "-1", "", "%"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the command line says what is legal
        _share(text)


def test_shares_are_numbers_or_percent() -> None:
    assert [_share(each) for each in ("1", "1%", "0.01")] == [1.0, 0.01, 0.01]
