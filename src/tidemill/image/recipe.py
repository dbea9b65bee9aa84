"""Recipes of images: where in a store the bytes of each are, and how it was made. Knows no squashfs.

Sites read recipes; the extension `images` writes them, and all else in a store:

    STORE/NAME.json            the recipe: one JSON object, written whole; a later build of the same name replaces it
    STORE/packs/SHA256.pack    chunks of images, one after the other; never changed once written
    STORE/packs/SHA256.index   what is in that pack: `SHA256 LENGTH` of each chunk, in the pack's order
    STORE/lists/SHA256.gz      what is in an image, one JSON array a line

A recipe has all fields of `wire.node.ImageUse` and more, so that a program that reads the wire format can read it. Its
pieces, one after the other, are the squashfs. In a recipe their paths are relative to its own directory, so that a
store can be moved, copied and mounted elsewhere; on the wire they are absolute.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tidemill.errors import UNDECODABLE, ConfigError, TidemillError
from tidemill.files import names_in, read_bounded
from tidemill.model.job import NAME_PATTERN
from tidemill.wire.staged import ImageUse, Piece, StagedFile

FORMAT = 1
SUFFIX = ".json"

RECIPE_BYTES_MAX = 256 << 20
"""A million pieces of 150 characters, and some room."""

PACK_BYTES_MAX = 1 << 62  #: what pread(2) takes


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What an image was made from. Either `profile` or `tree` is set."""

    profile: str | None = None  #: the profile's file
    command: list[str] = []  #: what was traced
    runs: int = 0
    tree: str | None = None  #: a whole directory,
    at: str | None = None  #: which payloads see here


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """How much an image holds."""

    files: int
    directories: int
    links: int
    stubs: int  #: names that are not packed: links to the real tree
    file_bytes: int


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a store."""

    format: int
    name: str
    file: StagedFile
    areas: list[str]
    unpacked_bytes: int  #: what it takes in a tmpfs
    created_us: int
    entries: Contents
    added_bytes: int  #: what the store grew by when it was built
    block_bytes: int
    tool: str  #: the program that wrote the squashfs, with its version
    listing: str  #: SHA-256 of its list
    origins: list[Origin]
    exclude: list[str]

    def packs(self) -> dict[str, int]:
        """The packs that it needs, relative to its directory, and how many bytes of each at least."""
        ends: dict[str, int] = {}
        for piece in self.file.pieces:
            ends[piece.path] = max(ends.get(piece.path, 0), piece.offset + piece.length)
        return ends


def check_name(name: str) -> str:
    """A legal name of an image. Raises ConfigError."""
    if not re.fullmatch(NAME_PATTERN, name) or name.startswith("."):
        raise ConfigError(
            f"`{name}` is not a name of an image", hint="letters, digits and `._+-`, at most 100"
        )
    return name


def read_recipe(path: Path) -> Recipe:
    """A recipe, checked. Raises ConfigError naming what is wrong with the file, SiteError where it cannot be read."""
    content = read_bounded(path, RECIPE_BYTES_MAX)
    if content is None:
        raise ConfigError(
            f"there is no image `{path.stem}`: `{path}` does not exist",
            hint="`tidemill image list --store DIR` shows what is there",
        )
    try:
        recipe = msgspec.json.decode(content, type=Recipe)
    except UNDECODABLE as error:
        raise ConfigError(
            f"`{path}` is not the recipe of an image: {error}", hint="build it again"
        ) from error
    if recipe.format != FORMAT:
        raise ConfigError(
            f"`{path}` is a recipe of format {recipe.format}, this program reads format {FORMAT}"
        )
    wrong = _wrong(recipe)
    if wrong is not None:
        raise ConfigError(f"`{path}` is not the recipe of an image: {wrong}", hint="build it again")
    return recipe


def _wrong(recipe: Recipe) -> str | None:
    told = sum(piece.length for piece in recipe.file.pieces)
    if told != recipe.file.bytes:
        return f"its pieces have {told} bytes, the image has {recipe.file.bytes}"
    for digest in (recipe.file.sha256, recipe.listing):
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            return f"`{digest}` is not a valid SHA-256 digest"
    for piece in recipe.file.pieces:
        is_place = piece.offset >= 0 and piece.length >= 1 and piece.offset + piece.length <= PACK_BYTES_MAX
        if not re.fullmatch(r"packs/[0-9a-f]{64}\.pack", piece.path) or not is_place:
            return f"`{piece.path}` at {piece.offset} of {piece.length} bytes is not a piece of a pack"
    return next(
        (f"area `{each}` is not an absolute path" for each in recipe.areas if not each.startswith("/")), None
    )


def use_of(recipe: Recipe, store: Path) -> ImageUse:
    """The description of an image that pilots receive: paths are absolute."""
    pieces = [
        Piece(path=str(store / piece.path), offset=piece.offset, length=piece.length)
        for piece in recipe.file.pieces
    ]
    return ImageUse(
        name=recipe.name,
        file=msgspec.structs.replace(recipe.file, pieces=pieces),
        areas=recipe.areas,
        unpacked_bytes=recipe.unpacked_bytes,
    )


class Shelf(msgspec.Struct, frozen=True):
    """What is in a store: recipes by name, and files that are not valid recipes, with the reason."""

    recipes: dict[str, Recipe]
    broken: dict[str, str]


def read_store(store: Path) -> Shelf:
    """All recipes of a store. Raises ConfigError where that directory is missing, SiteError."""
    names = names_in(store)
    if names is None:
        raise ConfigError(
            f"no image store at `{store}`", hint="`tidemill image build` makes one; --store names another"
        )
    recipes: dict[str, Recipe] = {}
    broken: dict[str, str] = {}
    for name in names:
        if not name.endswith(SUFFIX) or name.startswith("."):
            continue
        stem = name.removesuffix(SUFFIX)
        try:
            recipes[stem] = read_recipe(store / name)
        except TidemillError as error:
            broken[stem] = error.message
    return Shelf(recipes, broken)
