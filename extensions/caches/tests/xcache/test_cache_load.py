"""Many readers over one cache, a cold file that many want, a full disk, and the small cache of a node."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.worlds.services.cache_world import (
    ROOT,
    TIDEMILL,
    CacheWorld,
    far,
    near,
    ordinary_user,
    sums_once,
    until,
)
from tests.worlds.services.ports import free_port
from tests.worlds.services.root_reader import connections_to, read_together

from tidemill.routing.contact import greet
from tidemill_caches.engine.directory import read_cache
from tidemill_caches.engine.origins import parse_file, through
from tidemill_caches.figures.ledger import believe

__all__ = ["far", "near"]

READERS = 366  #: of the study that this product starts from
BLOCK = 1 << 20


@pytest.mark.timeout(300)
def test_366_readers_at_a_time_get_every_byte_and_the_origin_sends_each_file_once(
    far: CacheWorld, record_property: Callable[[str, object], None]
) -> None:
    contents = [os.urandom(2 * BLOCK) for _ in range(8)]
    for index, content in enumerate(contents):
        far.make(f"d/f{index}", content)
    far.start()
    paths = [f"//{far.direct(f'd/f{index % 8}')}" for index in range(READERS)]

    at_once: list[int] = []
    got = asyncio.run(
        read_together(far.port, paths, 2 * BLOCK, opened=lambda: at_once.append(connections_to(far.port)))
    )

    assert at_once == [READERS]
    assert len(got) == READERS
    assert all(each == contents[index % 8] for index, each in enumerate(got))
    sent = far.sent()
    factor = sent["down"] / (8 * 2 * BLOCK)
    record_property("connections to the origin", sent["connections"])
    record_property("factor", factor)
    assert factor < 1.1
    assert far.status()["process"]["findings"] == []
    sums = sums_once(far, READERS * 2 * BLOCK, origin_bytes=8 * 2 * BLOCK)
    assert sums.total.served_bytes == READERS * 2 * BLOCK
    assert sums.total.fetched_bytes == 8 * 2 * BLOCK
    assert (sums.lost, sums.malformed, sums.total.unsure) == (0, 0, 0)
    assert 8 * 2 * BLOCK <= sums.wire_origin_bytes <= far.sent()["down"]
    assert believe(sums) == ""


@pytest.mark.timeout(300)
def test_8_clients_that_read_one_cold_file_make_the_origin_send_it_once(
    far: CacheWorld, record_property: Callable[[str, object], None]
) -> None:
    content = os.urandom(32 * BLOCK)
    far.make("f", content)
    far.start()

    clients = [
        subprocess.Popen(
            ["xrdcp", "--silent", far.url("f"), str(far.folder / f"got{index}")],
            env=far.client_environ,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for index in range(8)
    ]
    errors = [each.communicate()[1] for each in clients]

    assert [each.returncode for each in clients] == [0] * 8, errors
    assert all((far.folder / f"got{index}").read_bytes() == content for index in range(8))
    factor = far.sent()["down"] / len(content)
    record_property("factor", factor)
    assert factor < 1.05


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_a_disk_that_fills_up_takes_nothing_from_those_who_read(near: CacheWorld) -> None:
    data = near.home / "data"
    data.mkdir(mode=0o700)
    shutil.chown(data, "nobody", "nogroup")
    contents = {f"f{index}": os.urandom(12 * BLOCK) for index in range(2)}
    for name, content in contents.items():
        near.make(name, content)
    near.init("--data", str(data), size="150MB")
    near.start(mounted=(data, 150 << 20))
    seen = Path(f"/proc/{near.state().pid}/root") / data.relative_to("/")  # the mount is the cache's alone
    (seen / "of another user").write_bytes(b"x" * (146 << 20))

    for _ in range(2):
        for name, content in contents.items():
            assert near.read(name) == content
    log = (near.directory / "log" / "xrootd.log").read_text()
    assert "no space left on device" in log
    until(
        lambda: any(each["check"] == "disk" for each in near.status()["process"]["findings"]),
        "status does not name the disk",
    )


NODE_CACHE = """
import sys
from collections.abc import Callable
from pathlib import Path
from tidemill_caches.engine.directory import read_cache
from tidemill_caches.engine.nodeform import NodeCache, write_node_cache
site, directory, port, upstream = sys.argv[1:]
write_node_cache(Path(directory), NodeCache(
    port=int(port), memory_bytes=1_300_000_000, site=read_cache(Path(site)), upstream=upstream or None))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_chained", [False, True])
def test_a_cache_of_a_node_reads_directly_or_through_that_of_the_site(
    near: CacheWorld, is_chained: bool
) -> None:
    content = os.urandom(3 * BLOCK)
    near.make("d/f", content)
    near.start()
    port, directory = free_port(), near.home / "n"
    upstream = f"root://127.0.0.1:{near.port}" if is_chained else ""
    subprocess.run(
        [*ordinary_user(), sys.executable, "-c", NODE_CACHE, str(near.directory), str(directory), str(port), upstream],
        env=near.environ, cwd=ROOT, check=True,
    )  # fmt: skip
    node = subprocess.Popen(
        [*ordinary_user(), *TIDEMILL, "cache", "run", str(directory)], env=near.environ, cwd=ROOT
    )
    try:
        until(lambda: greet("127.0.0.1", port, 1).answers)
        file = near.direct("d/f")
        if is_chained:
            file = through(upstream, parse_file(file))
        url = through(f"root://127.0.0.1:{port}", parse_file(file))

        first, second = near.copy(url), near.copy(url)
    finally:
        node.terminate()
        node.wait()

    assert first.stdout == content, first.stderr
    assert second.stdout == content
    assert near.sent()["down"] < len(content) + 100_000
    is_at_site = any(path.name == "f" for path in (near.directory / "data").rglob("*"))
    assert is_at_site == is_chained
    assert read_cache(directory).clients == []
    assert Path(directory / "data").stat().st_mode & 0o077 == 0
