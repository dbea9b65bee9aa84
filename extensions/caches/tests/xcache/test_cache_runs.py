"""A cache made by `tidemill cache init` and run by `tidemill cache run`, in front of a real origin."""

from __future__ import annotations

import os

from tests.worlds.services.cache_world import CacheWorld, far, near

__all__ = ["far", "near"]

CONTENT = os.urandom(5_000_000)


def test_a_file_comes_from_the_origin_once(far: CacheWorld) -> None:
    far.make("d/f", CONTENT)
    far.start()

    assert far.read("d/f") == CONTENT
    cold = far.sent()["down"]
    assert far.read("d/f") == CONTENT

    assert len(CONTENT) < cold < len(CONTENT) + 100_000
    assert far.sent()["down"] < cold + 10_000


def test_status_tells_the_process_its_limits_and_its_origin(near: CacheWorld) -> None:
    near.start()

    told = near.status()

    process = told["process"]
    assert told["runs"] is True
    assert process["phase"] == "running"
    assert process["pid"] > 0
    assert 0 < process["descriptors"] < process["descriptors_max"]
    assert process["findings"] == []
    assert near.stop() == 0
    assert near.status()["runs"] is False
