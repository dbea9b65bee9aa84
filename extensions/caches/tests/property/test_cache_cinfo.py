"""XCache's records: what was written is read back, and no bytes make the parser fail or take much memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import ProtocolError
from tidemill_caches.contents.cinfo import (
    OPENS_MAX,
    TIME_S_MAX,
    CacheAccess,
    CachedInfo,
    block_count,
    crc32c,
    parse,
    written,
)

INT32 = st.integers(0, 2**31 - 1)
INT63 = st.integers(0, 2**62)
TIMES = st.integers(0, TIME_S_MAX)
OPENS = st.integers(0, OPENS_MAX)
ACCESSES = st.lists(
    st.builds(CacheAccess, TIMES, TIMES, INT32, INT32, INT32, INT63, INT63, INT63), max_size=20
).map(tuple)


@st.composite
def records(draw: st.DrawFn) -> CachedInfo:
    block = draw(st.integers(1, 1 << 24))
    size = draw(st.integers(0, block * 200))
    count = (max(1, block_count(size, block)) + 7) // 8
    bits = draw(st.binary(min_size=count, max_size=count))
    return CachedInfo(block, size, draw(TIMES), draw(OPENS), bits, draw(ACCESSES))


@given(records())
def test_a_record_that_was_written_is_read_back(info: CachedInfo) -> None:
    assert parse(written(info)) == info


@given(records())
def test_bytes_held_are_those_of_the_blocks_held(info: CachedInfo) -> None:
    held = list(info.held())

    assert info.blocks_held == len(held)
    assert info.held_bytes == sum(info.extent(index)[1] for index in held)
    assert 0 <= info.held_bytes <= info.file_bytes
    assert info.is_complete == (info.held_bytes == info.file_bytes)


@given(records(), st.data())
def test_a_record_that_ends_too_early_is_refused(info: CachedInfo, data: st.DataObject) -> None:
    content = written(info)
    with pytest.raises(ProtocolError):
        parse(content[: data.draw(st.integers(0, len(content) - 1))])


@given(records(), st.data())
def test_a_flipped_bit_is_found(info: CachedInfo, data: st.DataObject) -> None:
    content = bytearray(written(info))
    place = data.draw(st.integers(0, len(content) * 8 - 1))
    content[place >> 3] ^= 1 << (place & 7)
    with pytest.raises(ProtocolError):
        parse(bytes(content))


@given(st.binary(max_size=300), st.booleans())
def test_other_bytes_are_refused(content: bytes, verify: bool) -> None:
    with pytest.raises(ProtocolError):
        parse(content, verify=verify)


@settings(max_examples=50)
@given(st.binary(min_size=48, max_size=48), st.booleans())
def test_sizes_that_lie_take_no_memory(store: bytes, verify: bool) -> None:
    content = b"\x04\0\0\0" + store + crc32c(store).to_bytes(4, "little") + bytes(100)
    tracemalloc.start()
    try:
        parse(content, verify=verify)
    except ProtocolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_000_000
