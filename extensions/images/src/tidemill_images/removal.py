"""Removes images that are no longer needed, and packs that no recipe needs any more, while builds may run.

A pack is first set aside, then all recipes are read again. If a builder wrote a recipe meanwhile that needs the pack,
it is restored; a builder that is later still finds it missing and writes its chunks again. Young files stay.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tidemill.config import load
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.files import TEMPORARY, names_in
from tidemill.image.recipe import SUFFIX, Recipe, Shelf, read_store
from tidemill.image.reference import parse_reference
from tidemill.model.application import Application
from tidemill.node.fleet import work_files
from tidemill.wire.staged import ImageUse
from tidemill_images import name_list, packs
from tidemill_images.catalogue import Kept, spare_images

DOOMED = ".doomed"
AGAIN = "images that are left are whole: check that the store can be written, and try again"


class Removal(msgspec.Struct, frozen=True):
    """What goes: names of images, files of the store, and their bytes."""

    images: list[str]
    files: list[str]
    bytes: int


class _Program(msgspec.Struct):
    images: list[ImageUse] = []


class _Work(msgspec.Struct):
    """The part of a work file that lists the images of its programs."""

    programs: list[_Program] = []


def named_images(applications: Path, store: Path) -> set[str] | None:
    """The images of a store that a site's applications name; None where there is no such directory. Raises ConfigError
    where one of these cannot be read, SiteError where they cannot be listed: what they need is not known then."""
    names = names_in(applications)
    if names is None:
        return None
    named: set[str] = set()
    for name in names:
        path = applications / name
        for text in load(path, Application).images if path.suffix == ".toml" else []:
            recipe, _ = parse_reference(text, store)
            if recipe.parent.resolve() == store.resolve():
                named.add(recipe.name.removesuffix(SUFFIX))
    return named


def used_packs(fleets: Path) -> set[str]:
    """The packs that the work files of a site's fleets list, with paths as in recipes. Raises SiteError, ProtocolError
    if a work file cannot be read."""
    images = [
        image
        for fleet in names_in(fleets) or []
        for work in work_files(fleets / fleet, _Work)
        for program in work.programs
        for image in program.images
    ]
    return {f"{packs.FOLDER}/{Path(piece.path).name}" for image in images for piece in image.file.pieces}


def plan_removal(store: Path, kept: Kept) -> Removal:
    """What can go now. Raises ConfigError where a recipe cannot be read, SiteError."""
    shelf = read_store(store)
    _refuse_broken(store, shelf)
    spare = spare_images(shelf.recipes, kept)
    staying = [recipe for name, recipe in shelf.recipes.items() if name not in spare]
    files = [*_unneeded(store, staying, kept), *_left_behind(store, kept)]
    recipes = [store / (name + SUFFIX) for name in spare]
    size = sum(_size(path) for path in [*recipes, *files])
    return Removal(spare, [str(path.relative_to(store)) for path in files], size)


def remove(store: Path, planned: Removal) -> Removal:
    """Remove what was planned and still can go; what did. Raises SiteError: what was set aside is back in place then,
    as far as the store lets us, and the next removal does the rest."""
    _restore(store)
    aside: dict[Path, Path] = {}
    try:
        for name in planned.images:
            _unlink(store / (name + SUFFIX))
        for each in planned.files:
            path, doomed = store / each, store / (each + DOOMED)
            if _rename(path, doomed):
                aside[path] = doomed
        return _drop(store, planned, aside)
    except TidemillError:
        for path, doomed in aside.items():
            with suppress(SiteError):
                _rename(doomed, path)
        raise


def _drop(store: Path, planned: Removal, aside: Mapping[Path, Path]) -> Removal:
    """Remove what was set aside and no recipe needs, put back the rest; what is gone."""
    gone: list[str] = []
    size = 0
    shelf = read_store(store)
    needed = _needed(shelf.recipes.values()) if not shelf.broken else set(planned.files)
    for path, doomed in aside.items():
        if _is_needed(path, store, needed):
            _rename(doomed, path)
            continue
        size += _size(doomed)
        _unlink(doomed)
        gone.append(str(path.relative_to(store)))
    return Removal(planned.images, gone, size)


def _restore(store: Path) -> None:
    """What a removal that was killed had set aside, and recipes need."""
    needed = _needed(read_store(store).recipes.values())
    for folder in (packs.FOLDER, name_list.FOLDER):
        for name in names_in(store / folder) or []:
            doomed, path = store / folder / name, store / folder / name.removesuffix(DOOMED)
            if name.endswith(DOOMED) and _is_needed(path, store, needed) and _status(path) is None:
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
        found |= {*recipe.packs(), f"{name_list.FOLDER}/{recipe.listing}.gz"}
    return found


def _unneeded(store: Path, staying: Sequence[Recipe], kept: Kept) -> Iterator[Path]:
    """Packs with their indices, and lists, that no image which stays needs."""
    needed = _needed(staying) | set(kept.used)
    for folder, suffix in ((packs.FOLDER, ".pack"), (name_list.FOLDER, ".gz")):
        names = dict.fromkeys(names_in(store / folder) or [])
        for path in [store / folder / name for name in names if name.endswith(suffix)]:
            if f"{folder}/{path.name}" not in needed and _is_old(path, kept.young_us):
                yield path
                index = path.with_suffix(".index")
                if suffix == ".pack" and index.name in names:
                    yield index


def _left_behind(store: Path, kept: Kept) -> Iterator[Path]:
    """What builds and removals that were killed have left: temporary files, indices without a pack."""
    for folder in (store, store / packs.FOLDER, store / name_list.FOLDER):
        names = dict.fromkeys(names_in(folder) or [])
        for name in names:
            is_lonely = name.endswith(".index") and name.removesuffix(".index") + ".pack" not in names
            is_half = name.startswith(".") and name.endswith(TEMPORARY)
            if (is_half or is_lonely or name.endswith(DOOMED)) and _is_old(folder / name, kept.left_us):
                yield folder / name


def _is_old(path: Path, before_us: int) -> bool:
    status = _status(path)
    return status is not None and status.st_mtime_ns // 1000 < before_us


def _size(path: Path) -> int:
    status = _status(path)
    return 0 if status is None else status.st_size


def _status(path: Path) -> os.stat_result | None:
    """None where there is nothing. Raises SiteError."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SiteError(f"failed to read `{path}`: {error.strerror}", hint=AGAIN) from error


def _unlink(path: Path) -> None:
    """Remove a file that may have gone already. Raises SiteError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SiteError(f"failed to remove `{path}`: {error.strerror}", hint=AGAIN) from error


def _rename(path: Path, new: Path) -> bool:
    """Whether there was something to rename."""
    try:
        path.rename(new)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SiteError(f"failed to rename `{path}`: {error.strerror}", hint=AGAIN) from error
    return True
