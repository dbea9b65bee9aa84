"""How an application names an image: `NAME`, or a recipe's absolute path; with `@sha256:DIGEST`, exactly that one."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.errors import ConfigError
from tidemill.image.recipe import SUFFIX, Recipe, check_name, read_recipe
from tidemill.model.quantities import digest_text

PINNED = "@sha256:"


def parse_reference(text: str, store: Path) -> tuple[Path, str | None]:
    """The recipe's path, and the digest that the image must have (None = any). Raises ConfigError."""
    name, _, digest = text.partition(PINNED)
    if PINNED in text and not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ConfigError(f"digest of image `{text}` is not `sha256:` and 64 hexadecimal digits")
    if name.startswith("/"):
        return Path(name), digest or None
    return store / (check_name(name) + SUFFIX), digest or None


def resolve(text: str, store: Path) -> tuple[Path, Recipe]:
    """The image that a reference means. Raises ConfigError where there is none, or another one; SiteError."""
    path, wanted = parse_reference(text, store)
    recipe = read_recipe(path)
    if wanted is not None and recipe.file.sha256 != wanted:
        raise ConfigError(
            f"image `{path}` has digest {digest_text(recipe.file.sha256)}, approved is {digest_text(wanted)}",
            hint="it was built again: approve the new one, or build the old one again",
        )
    return path, recipe
