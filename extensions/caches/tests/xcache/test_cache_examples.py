"""The example programs that open far files: the same result from the origin, through a cache, and from a copy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services.cache_world import CacheWorld, near

from tidemill.examples import FAR, HERE

__all__ = ["near"]

EVENTS = 200_000


def read(world: CacheWorld, name: str, where: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / FAR[name]), where],
        cwd=folder, env=world.client_environ, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    assert found.pop("input") == where
    del found["seconds"]
    return found


@pytest.mark.timeout(300)
def test_uproot_reads_a_tenth_of_a_far_file_by_any_way(near: CacheWorld, tmp_path: Path) -> None:
    pytest.importorskip("fsspec_xrootd", reason="needs `tidemill[far]`")
    path = tmp_path / "t.root"
    make = [sys.executable, str(HERE / "skim" / "make.py"), str(path), "--events", str(EVENTS)]
    subprocess.run(make, check=True, timeout=100)
    near.make("d/t.root", path.read_bytes())
    near.start()

    of_copy = read(near, "skim", str(path), tmp_path)
    before = near.sent()["down"]
    direct = read(near, "skim", near.direct("d/t.root"), tmp_path)
    sent = near.sent()["down"] - before
    cached = read(near, "skim", near.url("d/t.root"), tmp_path)

    assert of_copy["events"] == EVENTS
    for each in (direct, cached):
        assert {key: each[key] for key in ("events", "hard_pairs", "mass_gev")} == {
            key: of_copy[key] for key in ("events", "hard_pairs", "mass_gev")
        }
    assert EVENTS * 8 <= sent < path.stat().st_size * 0.2


@pytest.mark.timeout(300)
def test_xrdcp_fetches_the_same_bytes_by_any_way(near: CacheWorld, tmp_path: Path) -> None:
    path = near.make("d/e.hepmc", b"HepMC::Version 3\n" + b"E 1 2 3\nP 1 2\n" * 200_000)
    near.start()

    found = [
        read(near, "far-copy", where, tmp_path)
        for where in (str(path), near.direct("d/e.hepmc"), near.url("d/e.hepmc"))
    ]

    assert found[0] == found[1] == found[2]
    assert found[0]["events"] == 200_000
    assert not (tmp_path / "fetched").exists()
