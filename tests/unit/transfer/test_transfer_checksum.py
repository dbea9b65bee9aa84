"""Checksums of files, also of those that grow while they are summed up."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.number import canonical_checksum
from tidemill.transfer.checksum import (
    PART_BYTES,
    Growing,
    Scattered,
    idle_s,
    joined_adler32,
    summer,
    sums,
)


@pytest.mark.parametrize("size", [0, 1, 5, 5552, 5553, 1_000_001])
def test_adler32_is_what_zlib_says_however_the_bytes_come(size: int) -> None:
    content = os.urandom(size)
    for piece_bytes in (1 << 20, 7, 65521) if size < 10_000 else (1 << 20, 65521):
        mine = summer("adler32")
        buffer = memoryview(bytearray(content))
        for first in range(0, size, piece_bytes):
            mine.update(buffer[first : first + piece_bytes])
        assert mine.hexdigest() == f"{zlib.adler32(content):08x}"
    mine = summer("adler32")
    mine.update(content)  # bytes may not be written to, and come by another way
    assert mine.hexdigest() == f"{zlib.adler32(content):08x}"


@pytest.mark.parametrize("size", [0, 10, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES])
def test_the_entity_tag_is_that_of_an_upload_in_parts(size: int) -> None:
    content = bytes(size)
    parts = [content[first : first + PART_BYTES] for first in range(0, size, PART_BYTES)]
    digests = [hashlib.md5(part, usedforsecurity=False).digest() for part in parts]
    whole = hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest()
    expected = f"{whole}-{len(parts)}" if size >= PART_BYTES else hashlib.md5(content).hexdigest()
    mine = summer("etag")
    mine.update(memoryview(content))
    assert mine.hexdigest() == expected


def test_a_file_that_grows_has_its_sums_when_it_is_whole(tmp_path: Path) -> None:
    path, content = tmp_path / "grows", os.urandom(3_000_000)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for first in range(0, len(content), 100_000):
                file.write(content[first : first + 100_000])
                time.sleep(0.003)

    writer = threading.Thread(target=write)
    with Growing(path, {"sha256", "adler32"}) as growing:
        writer.start()
        writer.join()
        found = growing.end()
    assert found == sums(path, {"sha256", "adler32"})
    assert found["sha256"] == hashlib.sha256(content).hexdigest()


def grow(
    path: Path, pieces: int, pause_s: float, *, idle: Callable[[], float | None] = time.monotonic
) -> dict[str, str]:
    """What is made beside a file of so many MB that comes with these pauses, when only adler32 is needed; `idle`: the
    time that processors had nothing to do, by default all."""
    with Growing(path, {"adler32"}, idle=idle) as growing:
        with path.open("wb", buffering=0) as file:
            for number in range(pieces):
                file.write(bytes([number % 251]) * 1_000_000)
                time.sleep(pause_s)
        return growing.end()


def test_sha256_is_made_beside_a_file_that_comes_slowly(tmp_path: Path) -> None:
    found = grow(tmp_path / "slow", 12, 0.1)
    assert found == sums(tmp_path / "slow", {"sha256", "adler32"})


def test_sha256_waits_where_a_file_comes_slowly_because_all_processors_are_busy(tmp_path: Path) -> None:
    assert grow(tmp_path / "busy", 12, 0.1, idle=lambda: 7.0) == sums(tmp_path / "busy", {"adler32"})
    assert grow(tmp_path / "untold", 12, 0.1, idle=lambda: None).keys() == {"sha256", "adler32"}


def test_time_without_work_is_told_as_the_kernel_tells_it_elsewhere() -> None:
    up_s, idle_without_waiting_s = map(float, Path("/proc/uptime").read_text().split())
    told = idle_s()
    assert told is not None
    assert idle_without_waiting_s - 1 <= told <= (up_s + 1) * (os.cpu_count() or 1)


def test_a_file_in_large_pieces_side_by_side_is_quick_before_the_first_is_whole(tmp_path: Path) -> None:
    path, content, come = tmp_path / "pieces", os.urandom(200_000), [0]
    with (
        path.open("wb", buffering=0) as file,
        Growing(path, {"adler32"}, scattered=Scattered(lambda: 0, lambda: come[0])) as growing,
    ):
        file.write(content)
        for _ in range(40):
            come[0] += 100_000_000
            time.sleep(0.02)
        assert growing.end() == sums(path, {"adler32"})


def test_a_file_that_comes_quickly_is_not_held_up_by_sums_that_nobody_compares(tmp_path: Path) -> None:
    path, come = (
        tmp_path / "quick",
        itertools.count(0, 1 << 30),
    )  # a GB from one look to the next, at any load
    path.write_bytes(os.urandom(200_000))
    with Growing(
        path, {"adler32"}, scattered=Scattered(lambda: 200_000, come.__next__), idle=time.monotonic
    ) as growing:
        time.sleep(0.5)
        assert growing.end() == sums(path, {"adler32"})


def test_what_is_not_yet_there_of_a_file_is_not_summed_up(tmp_path: Path) -> None:
    path, content, there = tmp_path / "holes", os.urandom(200_000), [0]
    with (
        path.open("wb", buffering=0) as file,
        Growing(path, {"sha256"}, scattered=Scattered(lambda: there[0], lambda: there[0])) as growing,
    ):
        os.pwrite(file.fileno(), content[100_000:], 100_000)  # the second half comes first
        time.sleep(0.1)
        os.pwrite(file.fileno(), content[:100_000], 0)
        there[0] = 200_000
        time.sleep(0.05)
        assert growing.end()["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_growing_file_that_never_comes_holds_up_nobody(tmp_path: Path) -> None:
    with Growing(tmp_path / "never", {"sha256"}) as growing:
        assert growing.end() == {}


@pytest.mark.parametrize(
    ("algorithm", "text", "expected"),
    [
        ("adler32", "A1b2", "0000a1b2"),
        ("adler32", "9600001", "09600001"),
        ("adler32", "123456789", None),
        ("sha256", "ab" * 32, "ab" * 32),
        ("sha256", "ab", None),
        ("adler32", "-1", None),
        ("crc32c", "12345678", None),
    ],
)
def test_checksums_of_servers_are_read_strictly(algorithm: str, text: str, expected: str | None) -> None:
    assert canonical_checksum(algorithm, text) == expected


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_adler32_of_two_pieces_gives_that_of_both(first: bytes, second: bytes) -> None:
    joined = joined_adler32(f"{zlib.adler32(first):08x}", f"{zlib.adler32(second):08x}", len(second))
    assert joined == f"{zlib.adler32(first + second):08x}"
