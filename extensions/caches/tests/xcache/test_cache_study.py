"""`tidemill cache study` against a real origin, with temporary caches that it starts itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.cache_world import CacheWorld, far, near

__all__ = ["far", "near"]

SIZE = 6_000_000


def study(world: CacheWorld, *words: str, scratch: Path | None = None) -> dict[str, Any]:
    done = world.tidemill(
        "cache",
        "study",
        *words,
        "--plot",
        str(world.home / "p.svg"),
        "--scratch",
        str(scratch or "/tmp"),
        "--rounds",
        "1",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert "Task was destroyed" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(300)
def test_a_study_compares_and_leaves_nothing(far: CacheWorld, short_path: Path) -> None:
    far.make("d/f", os.urandom(SIZE))
    scratch = short_path / "s"
    scratch.mkdir()
    scratch.chmod(0o777)

    found = study(
        far, far.direct("d/"), "--pattern", "whole", "--prefetch", "0", "--reads", "20", scratch=scratch
    )

    assert found["size_bytes"] == SIZE
    assert 90 <= found["natural_rtt_ms"] < 300
    (row,) = found["rows"]
    (tried,) = row["tries"]
    assert row["direct_s"] > 0.4
    assert tried["warm_s"] < row["direct_s"]
    assert SIZE <= tried["fetched_bytes"] < SIZE + 200_000
    assert found["advice"][0]["setting"]["prefetch_blocks"] == 0
    assert (far.home / "p.svg").read_text().startswith("<svg")
    assert not list(scratch.iterdir())


@pytest.mark.timeout(300)
def test_a_round_trip_is_inserted_and_sparse_reads_amplify(near: CacheWorld) -> None:
    pytest.importorskip("XRootD", reason="needs `tidemill[far]`")
    near.make("d/f", os.urandom(4 * SIZE))

    found = study(near, near.direct("d/f"), "--pattern", "vector", "--prefetch", "0", "--rtt", "100")

    (row,) = found["rows"]
    assert 100 <= row["rtt_ms"] < 200
    assert row["direct_s"] > 0.5  # connection, login, open, four requests
    (tried,) = row["tries"]
    assert row["read_bytes"] == 4 * 64 * 4096
    assert tried["amplification"] > 10  # blocks of 1 MiB
    assert tried["warm_s"] < row["direct_s"] / 3


@pytest.mark.timeout(300)
def test_several_files_are_read_in_each_pass(near: CacheWorld) -> None:
    for name, size in (("a", SIZE // 3), ("b", SIZE // 2), ("c", SIZE // 6), ("d", 100 * SIZE)):
        path = near.make(f"d/{name}", b"x")
        os.truncate(path, size)

    found = study(
        near, near.direct("d/"), "--files", "5", "--bytes", "6MB", "--pattern", "whole", "--prefetch", "0"
    )

    assert sorted(url.rpartition("/")[2] for url in found["read_files"]) == ["a", "b", "c"]
    assert found["size_bytes"] == SIZE
    (row,) = found["rows"]
    assert row["read_bytes"] == SIZE
    assert SIZE <= row["tries"][0]["fetched_bytes"] < SIZE + 300_000


@pytest.mark.timeout(300)
def test_it_says_what_it_cannot_do(near: CacheWorld) -> None:
    near.make("d/f", os.urandom(SIZE))
    for words, status, said in (
        ([near.direct("d/none")], 3, "failed to read `root://127.0.0.1"),
        ([near.direct("d/f"), "--bytes", "1MB", "--pattern", "whole"], 2, "`whole` is left out"),
        (["root://u:secret@127.0.0.1//d/f"], 2, "a user in a URL is refused"),
        ([near.direct("d/f"), "--scratch", "/tmp/no/such"], 2, "as scratch directory"),
    ):
        done = near.tidemill("cache", "study", *words)
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr
        assert "secret" not in done.stderr
