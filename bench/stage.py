"""How long does a large file take to the memory of 1, 2, 4, 8 and 16 nodes, and how often is it read?

The nodes are stages (`tidemill-node stage`) of one machine, each with a store of its own in memory, that take the file
from each other over the loopback in the tree that a lead would make. Beside each run the same bytes go the same way
through processes that do nothing but copy (`floor_s`): no checksum, no digest, no protocol. The shared file lies on a
file system that counts what reaches it (bench/slowfs, mounted anew for each run, no delay): opens by stages, and bytes.

    python bench/stage.py --json [--mb 1000] [--ranks 16] [--fan-out 2]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from tidemill.node.binary import find_binary

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.slowfs.mount import Options, private, slowfs
from tests.worlds.node.stage_nodes import BLOCK_BYTES, Stage

FAN_OUT = 2  #: as crates/lead/src/sources.rs


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One number of ranks. Times are from the first order to the last node's whole file."""

    ranks: int
    mb: int
    wall_s: float
    first_s: float  #: until the node that reads the shared file has it
    floor_s: float  #: the same copies by processes that only copy
    ratio: float
    shared_opens: int  #: how often the shared file was opened
    shared_reads: float  #: bytes read from it, divided by its size
    copied_gb_s: float  #: bytes that arrived anywhere, per second


def parent(rank: int, fan_out: int) -> int:
    return (rank - 1) // fan_out


def make_file(path: Path, mb: int) -> dict[str, Any]:
    """Make a file of noise, and its description as nodes receive it."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(mb):
            block = os.urandom(1_000_000)
            digest.update(block)
            file.write(block)
    piece = {"path": str(path), "offset": 0, "length": mb * 1_000_000}
    return {"sha256": digest.hexdigest(), "bytes": mb * 1_000_000, "pieces": [piece]}


def staged(node: Path, memory: Path, file: dict[str, Any], tree: tuple[int, int]) -> tuple[float, float]:
    """Seconds until all have it, and until the first has it."""
    ranks, fan_out = tree
    stages = [Stage(node, memory / f"node-{rank}") for rank in range(ranks)]
    start_s = time.monotonic()
    for rank in reversed(range(ranks)):
        stages[rank].fetch(file, *([stages[parent(rank, fan_out)].address] if rank else []))
    first_s = 0.0
    for rank, stage in enumerate(stages):
        report = stage.report()
        assert report["m"] == "held", report
        first_s = first_s or time.monotonic() - start_s
        assert report["shared_bytes"] == (0 if rank else file["bytes"])
    wall_s = time.monotonic() - start_s
    for stage in stages:
        stage.close()
    return wall_s, first_s


def copy_rank(
    memory: Path, file: tuple[Path, int], source: socket.socket | None, children: list[socket.socket]
) -> None:
    """One process of the floor: blocks from the file or the parent, into memory, to the children."""
    path, left = file
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with ExitStack() as opened:
        shared = opened.enter_context((Path("/dev/null") if source else path).open("rb", buffering=0))
        copy = opened.enter_context((memory / f"copy-{os.getpid()}").open("wb+", buffering=0))
        at = 0
        while left:
            part = buffer[: min(left, BLOCK_BYTES)]
            got = 0
            while got < len(part):
                got += source.recv_into(part[got:]) if source else os.readv(shared.fileno(), [part[got:]])
            copy.write(part)
            for child in children:
                sent = 0
                while sent < len(part):
                    sent += os.sendfile(child.fileno(), copy.fileno(), at + sent, len(part) - sent)
            at += len(part)
            left -= len(part)
        Path(copy.name).unlink()


def floor(memory: Path, file: tuple[Path, int], tree: tuple[int, int]) -> float:
    """Seconds that the same copies take when nothing is checked."""
    ranks, fan_out = tree
    links = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(1, ranks):
            near = socket.create_connection(server.getsockname())
            links.append((server.accept()[0], near))
    start_s = time.monotonic()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            children = [links[child - 1][0] for child in range(1, ranks) if parent(child, fan_out) == rank]
            copy_rank(memory, file, links[rank - 1][1] if rank else None, children)
            os._exit(0)
        pids.append(pid)
    ended = [os.waitpid(pid, 0)[1] for pid in pids]
    assert not any(ended), ended
    return time.monotonic() - start_s


def measure(mb: int, ranks_max: int, fan_out: int, say: Any) -> list[Row]:
    """A row for each power of 2 up to `ranks_max`."""
    node = find_binary()
    rows = []
    with ExitStack() as opened:
        memory = Path(
            opened.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir="/dev/shm"))
        )
        disk = Path(opened.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        file = make_file(disk / "shared", mb)
        ranks = 1
        while ranks <= ranks_max:
            with slowfs(disk, disk, Options(delay_us=0)):
                floor_s = floor(memory, (disk / "shared", file["bytes"]), (ranks, fan_out))
            with slowfs(disk, disk, Options(delay_us=0)) as shared:
                wall_s, first_s = staged(node, memory, file, (ranks, fan_out))
                counted = shared.reading()
            row = Row(
                ranks=ranks,
                mb=mb,
                wall_s=round(wall_s, 2),
                first_s=round(first_s, 2),
                floor_s=round(floor_s, 2),
                ratio=round(wall_s / floor_s, 2),
                shared_opens=counted.open,
                shared_reads=round(counted.read_bytes / file["bytes"], 4),
                copied_gb_s=round(ranks * file["bytes"] / wall_s / 1e9, 2),
            )
            say(row)
            rows.append(row)
            ranks *= 2
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--mb", type=int, default=1000, help="size of the file")
    parser.add_argument("--ranks", type=int, default=16, help="nodes at most, a power of 2")
    parser.add_argument("--fan-out", type=int, default=FAN_OUT, help="nodes that one node serves")
    options = parser.parse_args()
    private()
    rows = measure(options.mb, options.ranks, options.fan_out, lambda row: print(row, file=sys.stderr))
    if options.json:
        print(json.dumps({"bench": "stage", "rows": [msgspec.to_builtins(row) for row in rows]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
