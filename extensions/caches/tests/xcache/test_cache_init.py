"""What `tidemill cache init` says of the usual mistakes: the next step, and nothing left behind."""

from __future__ import annotations

import pytest
from tests.worlds.services.cache_world import CacheWorld, Origin, near

__all__ = ["near"]  # a fixture

MISTAKES = [
    (["--port", "99999"], "is not a port: ports are 1 to 65535"),
    (["--certificate", "/nonexistent/proxy.pem"], "voms-proxy-init"),
    (["--size", "900TB"], "lower it: `--size`"),
    (["--size", "1MB"], "hint: 10.5 MB at least"),
    (["--data", "/proc/data"], "the disk of `/proc` is full: 0 B of 0 B are free"),
    (["--data", "/proc/data", "--size", "2GB"], "name another directory: `--data`"),
]


def test_a_refused_init_names_the_next_step_and_leaves_nothing(near: CacheWorld) -> None:
    place = near.home / "new" / "c"
    for words, said in MISTAKES:
        done = near.tidemill("cache", "init", str(place), "--origin", near.origin_url, *words)
        assert done.returncode in (2, 3), done.stderr
        assert said in done.stderr
        assert "hint: " in done.stderr
        assert not place.parent.exists(), words


def test_an_origin_of_the_tests_that_does_not_start_is_a_failure(near: CacheWorld) -> None:
    with pytest.raises(pytest.fail.Exception, match="does not start"):
        Origin(near.folder / "bad", {"XROOTD_OPTIONS": "xrootd.fslib /nonexistent.so"})
