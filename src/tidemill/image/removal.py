"""Removes images that nobody needs, and packs that no recipe needs any more, while others build.

A pack is first set aside, then all recipes are read again: a builder that wrote one meanwhile gets its pack back, and a
builder that is later still finds it missing and writes its chunks again. What is young stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from tidemill.config import load
from tidemill.errors import ConfigError, SiteError
from tidemill.image import listing, packs
from tidemill.image.catalogue import Kept, Shelf, read_store, spare_images
from tidemill.image.recipe import SUFFIX, Recipe
from tidemill.image.reference import parse_reference
from tidemill.model.application import Application

DOOMED = ".doomed"


class Removal(msgspec.Struct, frozen=True):
    """What goes: names of images, files of the store, and their bytes."""

    images: list[str]
    files: list[str]
    bytes: int


class _Image(msgspec.Struct):
    file: _File


class _File(msgspec.Struct):
    pieces: list[_Piece]


class _Piece(msgspec.Struct):
    path: str


class _Program(msgspec.Struct):
    images: list[_Image] = []


class _Work(msgspec.Struct):
    programs: list[_Program] = []


_decode_work = msgspec.json.Decoder(_Work).decode


def named_images(applications: Path, store: Path) -> set[str]:
    """The images of a store that a site's applications name. Raises ConfigError where one of these cannot be read: what
    it needs is not known then."""
    named: set[str] = set()
    for path in sorted(applications.glob("*.toml")):
        for text in load(path, Application).images:
            recipe, _ = parse_reference(text, store)
            if recipe.parent.resolve() == store.resolve():
                named.add(recipe.name.removesuffix(SUFFIX))
    return named


def used_packs(fleets: Path) -> set[str]:
    """The packs that a site's fleets were told to read, as in recipes. Raises SiteError."""
    used: set[str] = set()
    for path in sorted(path for fleet in fleets.glob("*") for path in fleet.glob("work/*.json")):
        try:
            work = _decode_work(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError) as error:
            raise SiteError(f"failed to read what fleets use: `{path}`: {error}", hint="try again") from error
        for program in work.programs:
            for image in program.images:
                used |= {f"{packs.FOLDER}/{Path(piece.path).name}" for piece in image.file.pieces}
    return used


def plan_removal(store: Path, kept: Kept) -> Removal:
    """What can go now."""
    shelf = read_store(store)
    _refuse_broken(store, shelf)
    spare = spare_images(shelf.recipes, kept)
    staying = [recipe for name, recipe in shelf.recipes.items() if name not in spare]
    files = [*_unneeded(store, staying, kept), *_left_behind(store, kept)]
    recipes = [store / (name + SUFFIX) for name in spare]
    size = sum(_size(path) for path in [*recipes, *files])
    return Removal(spare, [str(path.relative_to(store)) for path in files], size)


def remove(store: Path, planned: Removal) -> Removal:
    """Remove what was planned and still can go; what did. Raises SiteError."""
    _restore(store)
    for name in planned.images:
        (store / (name + SUFFIX)).unlink(missing_ok=True)
    gone: list[str] = []
    size = 0
    aside = [(store / each, store / (each + DOOMED)) for each in planned.files]
    aside = [(path, doomed) for path, doomed in aside if _rename(path, doomed)]
    shelf = read_store(store)
    needed = _needed(shelf.recipes.values()) if not shelf.broken else set(planned.files)
    for path, doomed in aside:
        if _is_needed(path, store, needed):
            _rename(doomed, path)
            continue
        size += _size(doomed)
        doomed.unlink(missing_ok=True)
        gone.append(str(path.relative_to(store)))
    return Removal(planned.images, gone, size)


def _restore(store: Path) -> None:
    """What a removal that was killed had set aside, and recipes need."""
    needed = _needed(read_store(store).recipes.values())
    for folder in (packs.FOLDER, listing.FOLDER):
        for doomed in (store / folder).glob(f"*{DOOMED}"):
            path = doomed.with_name(doomed.name.removesuffix(DOOMED))
            if _is_needed(path, store, needed) and not path.exists():
                _rename(doomed, path)


def _is_needed(path: Path, store: Path, needed: Collection[str]) -> bool:
    """Whether recipes need a file: an index goes where its pack goes."""
    name = str(path.relative_to(store))
    return name in needed or name.replace(".index", ".pack") in needed


def _refuse_broken(store: Path, shelf: Shelf) -> None:
    if shelf.broken:
        name, why = next(iter(shelf.broken.items()))
        raise ConfigError(
            f"what image `{name}` needs is not known: {why}",
            hint=f"remove `{store / (name + SUFFIX)}`, or build the image again",
        )


def _needed(recipes: Collection[Recipe]) -> set[str]:
    found: set[str] = set()
    for recipe in recipes:
        found |= {*recipe.packs(), f"{listing.FOLDER}/{recipe.listing}.gz"}
    return found


def _unneeded(store: Path, staying: Sequence[Recipe], kept: Kept) -> Iterator[Path]:
    """Packs with their indices, and lists, that no image which stays needs."""
    needed = _needed(staying) | set(kept.used)
    for folder, suffix in ((packs.FOLDER, ".pack"), (listing.FOLDER, ".gz")):
        for path in sorted((store / folder).glob(f"*{suffix}")):
            if f"{folder}/{path.name}" not in needed and _is_old(path, kept.young_us):
                yield path
                index = path.with_suffix(".index")
                if suffix == ".pack" and index.exists():
                    yield index


def _left_behind(store: Path, kept: Kept) -> Iterator[Path]:
    """What builds and removals that were killed have left: temporary files, indices without a pack."""
    for folder in (store, store / packs.FOLDER, store / listing.FOLDER):
        lonely = [each for each in folder.glob("*.index") if not each.with_suffix(".pack").exists()]
        for path in sorted([*folder.glob(f".*{packs.TEMPORARY}"), *folder.glob(f"*{DOOMED}"), *lonely]):
            if _is_old(path, kept.left_us):
                yield path


def _is_old(path: Path, before_us: int) -> bool:
    try:
        return path.stat().st_mtime_ns // 1000 < before_us
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _rename(path: Path, new: Path) -> bool:
    """Whether there was something to rename."""
    try:
        path.rename(new)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SiteError(f"failed to rename `{path}`: {error.strerror}") from error
    return True
