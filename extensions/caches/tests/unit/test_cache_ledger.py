"""Sums of a cache: hits without prefetch, what came twice, bounds, and which figure to believe."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidemill_caches.figures import connections, ledger
from tidemill_caches.figures.connections import Growth, WireConnection
from tidemill_caches.figures.gstream import FileClose
from tidemill_caches.figures.ledger import CacheLedger, Sums, believe, is_thrashing

MB = 1 << 20


def close(name: str = "/ds/f", done: int = 10, access: int = 1, **changes: Any) -> FileClose:
    fields: dict[str, Any] = {
        "size_bytes": 10 * MB, "block_bytes": MB, "blocks": 10, "attached_s": 7000, "detached_s": 7200,
        "hit_bytes": 0, "miss_bytes": 0, "bypass_bytes": 0, **changes,
    }  # fmt: skip
    return FileClose(name=name, blocks_done=done, access=access, **fields)


def test_what_was_prefetched_for_the_same_reader_is_no_hit() -> None:
    sums = CacheLedger()
    sums.add_close(close(hit_bytes=10 * MB, origins=["far:1094"]))
    assert (sums.total.hit_bytes, sums.total.known_bytes, sums.total.fetched_bytes) == (10 * MB, 0, 10 * MB)
    sums.add_close(close(access=2, hit_bytes=10 * MB))
    assert (sums.total.known_bytes, sums.total.fetched_bytes) == (10 * MB, 10 * MB)
    assert sums.origins == {"far:1094": 10 * MB}


def test_a_sparse_read_amplifies_and_has_no_hits() -> None:
    sums = CacheLedger()
    sums.add_close(close(done=4, miss_bytes=4000))
    assert (sums.total.from_origin_bytes, sums.total.served_bytes, sums.total.known_bytes) == (
        4 * MB,
        4000,
        0,
    )


def test_a_file_that_was_removed_and_came_back_is_fetched_again() -> None:
    sums = CacheLedger()
    sums.add_close(close(miss_bytes=10 * MB))
    sums.add_close(close(miss_bytes=10 * MB))
    assert (sums.total.fetched_bytes, sums.total.again_bytes) == (20 * MB, 10 * MB)


def test_a_file_whose_past_is_not_known_counts_what_was_waited_for() -> None:
    sums = CacheLedger()
    sums.add_close(close(done=8, access=5, miss_bytes=2 * MB, hit_bytes=3 * MB))
    assert (sums.total.fetched_bytes, sums.total.unsure) == (2 * MB, 1)


def test_a_cache_that_fetches_what_it_had_is_thrashing_and_a_new_one_is_not() -> None:
    sums = CacheLedger()
    for number in range(100):
        sums.add_close(close(f"/ds/{number}", miss_bytes=10 * MB))
    assert not is_thrashing(sums.recent(7200, 1))
    for number in range(100):
        sums.add_close(close(f"/ds/{number}", miss_bytes=10 * MB))
    assert is_thrashing(sums.recent(7200, 1))
    assert not is_thrashing(sums.recent(7200 + 5 * 3600, 1))


def test_all_tables_are_bounded_and_their_sums_stay() -> None:
    sums = CacheLedger()
    count = ledger.FILES_MAX + 500
    for number in range(count):
        record = close(f"/d{number}/f", miss_bytes=MB, origins=[f"o{number}:1"], detached_s=number * 3600)
        sums.add_close(record)
    assert len(sums.datasets) <= ledger.DATASETS_MAX + 1
    assert len(sums.origins) <= ledger.ORIGINS_MAX + 1
    assert len(sums.files) == ledger.FILES_MAX
    assert len(sums.hours) == ledger.HOURS_MAX
    assert sum(each.fetched_bytes for each in sums.datasets.values()) == sums.total.fetched_bytes
    assert sum(sums.origins.values()) == sums.total.from_origin_bytes == count * 10 * MB
    assert min(sums.hours) == count - ledger.HOURS_MAX


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 10), st.integers(1, 4), st.integers(0, 20)),
        max_size=30,
    )
)
def test_sums_are_never_negative_and_datasets_make_the_total(rows: list[tuple[str, int, int, int]]) -> None:
    sums = CacheLedger()
    for name, done, access, served in rows:
        sums.add_close(close(f"/{name}/f", done, access, hit_bytes=served * MB))
    whole = Sums()
    for each in sums.datasets.values():
        whole.add(each)
    assert whole == sums.total
    assert all(value >= 0 for value in msgspec.structs.asdict(sums.total).values())
    assert sums.total.known_bytes <= sums.total.served_bytes
    assert msgspec.json.decode(msgspec.json.encode(sums), type=CacheLedger) == sums


def test_the_wire_is_believed_where_the_figures_disagree() -> None:
    sums = CacheLedger(wire_origin_bytes=10 * MB + 5000)
    sums.add_close(close(miss_bytes=10 * MB))
    assert believe(sums) == ""
    sums.wire_origin_bytes, sums.lost = 40 * MB, 3
    assert "believe the connections" in believe(sums)
    assert "3 datagrams" in believe(sums)
    sums.wire_origin_bytes = 0
    assert "missing" in believe(sums)


def test_bytes_of_a_connection_count_once_however_often_they_are_seen() -> None:
    growth = Growth()
    first = [WireConnection(b"1", 5000, 10, 1000), WireConnection(b"2", 1094, 700, 30)]
    assert growth.update(first, 1094) == (1000, 700)
    assert growth.update(first, 1094) == (0, 0)
    assert growth.update([WireConnection(b"1", 5000, 10, 1500), WireConnection(b"3", 5000, 1, 9)], 1094) == (
        509,
        0,
    )


def test_what_the_kernel_cannot_have_said_is_no_connection() -> None:
    assert connections.parse_answer(b"") == ([], False)
    assert connections.parse_answer(bytes(100)) == ([], True)
