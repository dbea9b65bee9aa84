"""Profiles and images under a umask of 000 and of 002: what their verbs write is writable for their user alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.attack.site.test_attack_umask import Place
from tests.strangers import UMASKS, opened


@pytest.mark.parametrize("umask", UMASKS, ids=lambda umask: f"{umask:03o}")
def test_what_the_verbs_write_is_writable_for_their_user_alone(umask: int, tmp_path: Path) -> None:
    it = Place(tmp_path, umask)
    it.tidemill("trace", "-o", "one.json", "--html", "one.html", "--svg", "one.svg", "--", "/bin/true")
    it.tidemill("trace", "merge", "-o", "two.json", "one.json", "one.json")
    (it.path / "tree").mkdir(mode=0o755)
    (it.path / "tree" / "x").write_text("x")
    it.tidemill(
        "image", "build", "--store", "a/b/images", "--name", "i", "--tree", f"{it.path}/tree:/opt/tree"
    )
    it.tidemill("image", "export", "i", "--store", "a/b/images", "-o", "one.squashfs")
    shutil.rmtree(it.path / "tree")

    assert (tmp_path / "one.squashfs").exists()
    assert opened(tmp_path) == []
