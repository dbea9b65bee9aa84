"""Images and containers of others: recipes and packs that lie, names that lead out of their store.

Squashfs images that lie: `crates/image/tests/hostile.rs`. In `tests/unit/site/applications`: an image that changed
after its approval (`test_site_images.py`), what containers may name (`test_site_containers.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidemill.errors import ConfigError, SiteError, is_transient
from tidemill.image.recipe import SUFFIX, read_recipe
from tidemill.image.reference import resolve
from tidemill.node.binary import find_binary
from tidemill.site.applications.checksums import Digests

PACK = f"packs/{'b' * 64}.pack"


def recipe(**changes: Any) -> dict[str, Any]:
    piece = {"path": PACK, "offset": 0, "length": 5}
    made = {
        "format": 1, "name": "x", "file": {"sha256": "a" * 64, "bytes": 5, "pieces": [piece]}, "areas": ["/sw"],
        "unpacked_bytes": 9, "created_us": 0, "entries": dict.fromkeys(
            ("files", "directories", "links", "stubs", "file_bytes"), 0
        ), "added_bytes": 0, "block_bytes": 4096, "tool": "", "listing": "c" * 64, "origins": [], "exclude": [],
    }  # fmt: skip
    return {**made, **changes}


def pieces(*told: tuple[str, int, int]) -> dict[str, Any]:
    made = [{"path": path, "offset": offset, "length": length} for path, offset, length in told]
    return {"sha256": "a" * 64, "bytes": sum(length for _, _, length in told), "pieces": made}


HOSTILE = [
    {"file": pieces(("/etc/shadow", 0, 5))},
    {"file": pieces(("packs/../../../etc/shadow", 0, 5))},
    {"file": pieces(("../" + PACK, 0, 5))},
    {"file": pieces((PACK, -5, 5))},
    {"file": pieces((PACK, 0, 2**70))},
    {"file": pieces((PACK, 0, 10), (PACK, 0, -5))},
    {"file": {**pieces((PACK, 0, 5)), "sha256": "../../x"}},
    {"areas": ["sw"]},
    {"areas": ["/sw/../etc"]},
    {"areas": ["/"]},
]


@pytest.mark.parametrize("changes", HOSTILE)
def test_a_recipe_that_leads_out_of_its_store_is_refused_on_nodes(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / f"x{SUFFIX}"
    path.write_text(json.dumps(recipe(**changes)))
    words = [str(find_binary()), "image", "run", "--recipe", str(path), "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert "recipe" in done.stderr


@pytest.mark.parametrize("changes", HOSTILE[:7])
def test_a_recipe_that_leads_out_of_its_store_is_refused_by_the_agent(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / f"x{SUFFIX}"
    path.write_text(json.dumps(recipe(**changes)))
    with pytest.raises(ConfigError, match="is not the recipe"):
        read_recipe(path)


@pytest.mark.parametrize("name", ["../x", ".x", "a/b", "x\0", "x\n", "", "a" * 200])
def test_no_name_of_an_image_leads_out_of_the_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a name of an image"):
        resolve(name, tmp_path)


@pytest.mark.parametrize("kind", ["fifo", "zero", "directory", "loop"])
def test_a_pack_or_program_that_is_not_a_file_does_not_stop_the_agent(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pack"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else path)
    with pytest.raises(SiteError) as refused:
        Digests().digest(str(path))
    assert not is_transient(refused.value)
    if kind == "fifo":
        with pytest.raises(ConfigError, match="not the recipe"):
            read_recipe(path)
