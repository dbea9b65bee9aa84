"""Caches under a umask of 000 and of 002: what `cache init` writes is writable for its user alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests.attack.site.test_attack_umask import Place
from tests.strangers import UMASKS, opened
from tests.worlds.home.homes import TIDEMILL

ORIGIN = "root://127.0.0.1:1//x/"
AS_NOBODY = ["unshare", "--user", "--map-user=1000"] if os.geteuid() == 0 else []  # a cache refuses root


@pytest.mark.parametrize("umask", UMASKS, ids=lambda umask: f"{umask:03o}")
def test_what_cache_init_writes_is_writable_for_its_user_alone(umask: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tm-") as name:  # the paths of a cache are short
        place = Path(name)
        data = place / "data" / "deep"
        Place(place, umask).run(
            *AS_NOBODY, *TIDEMILL, "cache", "init", "a/c", "--origin", ORIGIN, "--data", data
        )

        assert any(place.iterdir())
        assert opened(place) == []
