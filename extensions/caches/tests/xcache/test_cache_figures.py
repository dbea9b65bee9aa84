"""Byte counts of a scripted access pattern, exact to the block: of the cache, of its line, and of the client."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from tests.worlds.services.cache_world import ROOT, CacheWorld, near, ordinary_user, until

from tidemill.image.profile import RemoteReads, parse_profile
from tidemill.node.binary import find_binary
from tidemill_caches.figures.collector import read_sums
from tidemill_caches.figures.ledger import CacheLedger, believe

__all__ = ["near"]

READER = ROOT / "tests" / "payloads" / "xroot_reader.py"
BLOCK = 256 << 10
SIZE = 10 * BLOCK + BLOCK // 2
#: 5 of 11 blocks: the first twice, two by one read, the short last one
SPARSE = [(0, 1000), (BLOCK + 5000, 10), (1000, 24), (3 * BLOCK - 5, 10), (10 * BLOCK + 7, 100)]
SPARSE_BLOCKS = 5 * BLOCK
SPARSE_BYTES = SPARSE_BLOCKS - BLOCK // 2  #: the last block is short
OVERHEAD_MAX = 16 << 10
"""Of the cache's requests to the origin: log-in, open, a header for each block."""
LIMIT_S = 120
#: each record may come a minute late, and a test waits for two or three
pytestmark = pytest.mark.timeout(400)


def started(world: CacheWorld, content: bytes) -> None:
    world.init()
    world.set(f"block_bytes = {BLOCK}\nprefetch_blocks = 0")
    world.make("ds/a/f", content)
    world.make("ds/b/g", content)
    world.start()


def read(
    world: CacheWorld, name: str, ranges: Sequence[tuple[int, int]], content: bytes
) -> tuple[dict[str, Any], RemoteReads]:
    """Read ranges through the cache under trace: what the client got, and what the trace shows of it."""
    profile = world.folder / "profile.json"
    path = world.url(name).split("/", 3)[3]
    command = [sys.executable, str(READER), "127.0.0.1", str(world.port), path]
    done = subprocess.run(
        [str(find_binary()), "trace", "-o", str(profile), "--", *command],
        input="".join(f"{offset} {length}\n" for offset, length in ranges),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    got: dict[str, Any] = json.loads(done.stdout)
    expected = b"".join(content[offset : offset + length] for offset, length in ranges)
    assert got["sha256"] == hashlib.sha256(expected).hexdigest()
    (reads,) = parse_profile(profile.read_bytes(), source="the trace").reads
    assert (reads.address, reads.port) == ("127.0.0.1", world.port)
    return got, reads


def ledger_of(world: CacheWorld, opens: int) -> CacheLedger:
    """The sums once this number of records has come."""

    def has_come() -> bool:
        sums = read_sums(world.directory)
        return sums is not None and sums.total.opens >= opens

    until(has_come, "XCache sent no record", LIMIT_S)
    sums = read_sums(world.directory)
    assert sums is not None
    return sums


def test_counts_of_a_sparse_reader_are_exact_on_all_three_sides(near: CacheWorld) -> None:
    content = os.urandom(SIZE)
    started(near, content)
    before = near.sent()["down"]
    got, reads = read(near, "ds/a/f", SPARSE, content)
    assert got["data"] == sum(length for _, length in SPARSE)
    assert reads.bytes == got["received"]
    on_line = near.sent()["down"] - before
    assert SPARSE_BYTES <= on_line <= SPARSE_BYTES + OVERHEAD_MAX

    ledger = ledger_of(near, 1)
    assert ledger.total.served_bytes == got["data"]
    assert ledger.total.fetched_bytes == ledger.total.from_origin_bytes == SPARSE_BLOCKS
    assert ledger.total.known_bytes == 0
    assert (ledger.lost, ledger.malformed, ledger.total.unsure) == (0, 0, 0)

    # the same once more: everything is there; and one block more
    again, more_reads = read(near, "ds/a/f", [*SPARSE, (5 * BLOCK, 3)], content)
    assert more_reads.bytes == again["received"]
    ledger = ledger_of(near, 2)
    assert ledger.total.fetched_bytes == SPARSE_BLOCKS + BLOCK
    assert ledger.total.served_bytes == got["data"] + again["data"]
    assert near.sent()["down"] - before <= SPARSE_BYTES + BLOCK + 2 * OVERHEAD_MAX


def test_a_whole_read_has_no_hits_at_first_and_nothing_but_hits_after_it(near: CacheWorld) -> None:
    content = os.urandom(SIZE)
    started(near, content)
    whole = [(offset, min(100_000, SIZE - offset)) for offset in range(0, SIZE, 100_000)]
    read(near, "ds/a/f", whole, content)
    first = ledger_of(near, 1)
    assert (first.total.served_bytes, first.total.fetched_bytes, first.total.known_bytes) == (SIZE, SIZE, 0)
    assert first.total.hit_bytes > 0  # what XCache calls one
    read(near, "ds/a/f", whole, content)
    read(near, "ds/b/g", whole[:1], content)
    last = ledger_of(near, 3)
    datasets = {name.rpartition("/")[2]: sums for name, sums in last.datasets.items()}
    assert (datasets["a"].served_bytes, datasets["a"].fetched_bytes) == (2 * SIZE, SIZE)
    assert datasets["a"].known_bytes == SIZE
    assert (datasets["b"].served_bytes, datasets["b"].fetched_bytes) == (100_000, BLOCK)


def test_sums_outlive_the_cache_and_agree_with_the_wire(near: CacheWorld) -> None:
    content = os.urandom(SIZE)
    started(near, content)
    read(near, "ds/a/f", [(0, SIZE // 2), (SIZE // 2, SIZE - SIZE // 2)], content)
    first = ledger_of(near, 1)
    until(
        lambda: (read_sums(near.directory) or first).wire_origin_bytes >= SIZE, "nothing on the wire", LIMIT_S
    )
    sums = read_sums(near.directory)
    assert sums is not None
    assert SIZE <= sums.wire_origin_bytes <= near.sent()["down"]
    assert believe(sums) == ""
    near.stop()
    near.start()
    read(near, "ds/a/f", [(0, 10)], content)
    last = ledger_of(near, 2)
    assert (last.total.fetched_bytes, last.total.served_bytes) == (SIZE, SIZE + 10)


def test_what_is_no_record_is_counted_and_changes_nothing(near: CacheWorld) -> None:
    started(near, os.urandom(SIZE))
    port = near.state().figures_port
    assert port
    script = """
import socket, sys
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
head = b'{"code":"g","pseq":1,"stod":1,"sid":1,"gs":{"type":"C"}}\\n'
for text in (b"", b"{}", b"\\xff" * 9000, head + b'{"event":"file_close","size":-1}\\0'):
    link.sendto(text, ("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""
    command = [*ordinary_user(), sys.executable, "-c", script, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as sender:  # whose port it is shows while it has it
        until(
            lambda: (read_sums(near.directory) or CacheLedger()).malformed == 4,
            "they are not counted",
            LIMIT_S,
        )
        sender.communicate()
    sums = read_sums(near.directory)
    assert sums is not None
    assert sums.total.opens == 0
