"""The images of a store: which there are, which bytes they share, what can go. Decisions are pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from tidemill.errors import ConfigError, SiteError, did_you_mean
from tidemill.files import replaced
from tidemill.image.recipe import SUFFIX, Recipe, read_recipe, read_store
from tidemill.model.quantities import digest_text
from tidemill_images.packs import COPY_BYTES, FOLDER

DIGEST_DIGITS_MIN = 6
"""The least number of digits of a digest that identify an image."""


def find_recipe(store: Path, name: str) -> tuple[Path, Recipe]:
    """An image by its name, the first digits of its digest, or the path of its recipe. Raises ConfigError."""
    if "/" in name:
        path = Path(name).absolute()
        return path, read_recipe(path)
    path = store / (name + SUFFIX)
    if path.is_file():
        return path, read_recipe(path)
    shelf = read_store(store)
    digits = name.removeprefix("sha256:")
    if re.fullmatch(rf"[0-9a-f]{{{DIGEST_DIGITS_MIN},64}}", digits):
        for stem, recipe in shelf.recipes.items():
            if recipe.file.sha256.startswith(digits):
                return store / (stem + SUFFIX), recipe
    raise ConfigError(f"store `{store}` has no image `{name}`", hint=did_you_mean(name, shelf.recipes))


def read_image(recipe: Recipe, store: Path) -> Iterator[bytes]:
    """The squashfs, in pieces. Raises SiteError where a pack lacks, is shorter, or the whole has another digest."""
    whole = hashlib.sha256()
    opened: dict[str, BinaryIO] = {}
    try:
        for piece in recipe.file.pieces:
            pack = opened.get(piece.path)
            if pack is None:
                pack = opened[piece.path] = (store / piece.path).open("rb")
            pack.seek(piece.offset)
            left = piece.length
            while left:
                part = pack.read(min(left, COPY_BYTES))
                if not part:
                    raise SiteError(
                        f"image `{recipe.name}`: pack `{store / piece.path}` ends before byte "
                        f"{piece.offset + piece.length}",
                        hint="build the image again",
                        transient=False,
                    )
                whole.update(part)
                yield part
                left -= len(part)
    except OSError as error:
        raise SiteError(
            f"image `{recipe.name}`: failed to read pack `{error.filename or store / FOLDER}`: {error.strerror}",
            hint="build the image again",
        ) from error
    finally:
        for pack in opened.values():
            pack.close()
    if whole.hexdigest() != recipe.file.sha256:
        raise SiteError(
            f"image `{recipe.name}` has digest {digest_text(whole.hexdigest())}, its recipe says "
            f"{digest_text(recipe.file.sha256)}",
            hint="a pack was changed: build the image again",
            transient=False,
        )


def export(recipe: Recipe, store: Path, target: Path) -> None:
    """Write an image as one squashfs file, whole or not at all. Raises SiteError."""
    try:
        with replaced(target, mode=0o644) as file:
            for part in read_image(recipe, store):
                file.write(part)
    except OSError as error:
        raise SiteError(
            f"failed to write `{target}`: {error.strerror}", hint="check its free space and quota"
        ) from error


def own_bytes(recipes: Mapping[str, Recipe]) -> dict[str, int]:
    """How many bytes of packs each image does not share with another one."""
    pieces = {name: _spans(recipe) for name, recipe in recipes.items()}
    owners: dict[str, list[tuple[int, int, str]]] = {}
    for name, spans in pieces.items():
        for pack, start, end in spans:
            owners.setdefault(pack, []).append((start, end, name))
    own = dict.fromkeys(recipes, 0)
    for spans_of_pack in owners.values():
        for start, end, users in _layers(spans_of_pack):
            if len(users) == 1:
                own[next(iter(users))] += end - start
    return own


def _spans(recipe: Recipe) -> set[tuple[str, int, int]]:
    return {(piece.path, piece.offset, piece.offset + piece.length) for piece in recipe.file.pieces}


def _layers(spans: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int, set[str]]]:
    """The stretches between all ends of spans, with who covers each."""
    edges = sorted(
        [(start, 1, name) for start, _, name in spans] + [(end, -1, name) for _, end, name in spans]
    )
    depth: dict[str, int] = {}
    at = 0
    for edge, step, name in edges:
        if edge > at and depth:
            yield at, edge, set(depth)
        at = edge
        depth[name] = depth.get(name, 0) + step
        if not depth[name]:
            del depth[name]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What `gc` may not remove. Times are microseconds since 1970."""

    named: Collection[str]  #: images that applications name
    used: Collection[str]  #: packs (`packs/...`) that fleets read
    newest: int  #: this number of the newest images that no application names stay
    young_us: int  #: what was made later stays
    left_us: int  #: temporary files of builds that wrote to them later stay: these may go on


def spare_images(recipes: Mapping[str, Recipe], kept: Kept) -> list[str]:
    """The images that can go, oldest first."""
    unnamed = sorted((recipe.created_us, name) for name, recipe in recipes.items() if name not in kept.named)
    candidates = unnamed[: max(0, len(unnamed) - kept.newest)]
    return [
        name
        for created_us, name in candidates
        if created_us < kept.young_us and not set(recipes[name].packs()) & set(kept.used)
    ]
