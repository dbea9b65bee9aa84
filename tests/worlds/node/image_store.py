"""Images as a site finds them in a store: one pack and a recipe. Only nodes would notice that they are no squashfs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from tidemill.image.recipe import FORMAT, SUFFIX, Contents, Recipe
from tidemill.wire.staged import Piece, StagedFile


def keep_image(store: Path, area: str, *, name: str = "", content: bytes = b"software\n" * 100) -> Recipe:
    """Put an image of an area into a store, under the area's last name unless another is given."""
    digest = hashlib.sha256(content).hexdigest()
    pack = store / "packs" / f"{digest}.pack"
    pack.parent.mkdir(parents=True, exist_ok=True)
    pack.write_bytes(content)
    whole = Piece(path=f"packs/{digest}.pack", offset=0, length=len(content))
    recipe = Recipe(
        format=FORMAT,
        name=name or Path(area).name,
        file=StagedFile(sha256=digest, bytes=len(content), pieces=[whole]),
        areas=[area],
        unpacked_bytes=4 * len(content),
        created_us=1,
        entries=Contents(files=1, directories=1, links=0, stubs=0, file_bytes=len(content)),
        added_bytes=len(content),
        block_bytes=128 << 10,
        tool="none",
        listing="0" * 64,
        origins=[],
        exclude=[],
    )
    (store / (recipe.name + SUFFIX)).write_bytes(msgspec.json.encode(recipe))
    return recipe
