"""What is wrong with an image: in its store, and against the files it was made from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from tidemill.errors import TidemillError
from tidemill.image.recipe import Recipe
from tidemill_images.catalogue import read_image
from tidemill_images.disk import Disk, kind_of
from tidemill_images.name_list import read_listing
from tidemill_images.squash import PackedName
from tidemill_images.workingset import DIRECTORY, FILE, LINK, SPECIAL, Excluded, Unreadable


class What(StrEnum):
    """Kinds of differences."""

    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    UNKNOWN = "unknown"  #: it cannot be read


class Difference(msgspec.Struct, frozen=True):
    """One name that is not as it was packed. `path` as payloads see it."""

    what: What
    path: str
    why: str


def check_store(recipe: Recipe, store: Path) -> list[str]:
    """What is wrong with an image's bytes and its list; reads all of it."""
    wrong = []
    try:
        for _ in read_image(recipe, store):
            pass
    except TidemillError as error:
        wrong.append(error.message)
    try:
        read_listing(store, recipe.listing)
    except TidemillError as error:
        wrong.append(error.message)
    return wrong


def compare(recipe: Recipe, listed: Sequence[PackedName], *, content: bool) -> Iterator[Difference]:
    """What of the sources changed, was added, or was removed since: by kind, size and time of change, and by bytes
    instead of times with `content`."""
    disk = Disk()
    sums = {each.path: each.sha256 for each in listed}
    names: dict[str, set[str]] = {}
    for each in listed:
        parent, _, name = each.path.rpartition("/")
        names.setdefault(parent, set()).add(name)
    excluded = Excluded(recipe.exclude)
    for each in listed:
        if each.source is None:
            if each.stub and _kind(disk, each.path) is None:
                yield Difference(What.REMOVED, each.path, "a name that is not packed")
            continue
        found = list(_compare_one(each, sums[each.same_as or each.path], content=content))
        yield from found
        if each.kind == DIRECTORY and not found:
            yield from _added(disk, each, names.get(each.path, set()), excluded)


def _kind(disk: Disk, path: str) -> str | None:
    try:
        return disk.kind(path)
    except Unreadable:
        return SPECIAL


def _compare_one(each: PackedName, sha256: str | None, *, content: bool) -> Iterator[Difference]:
    assert each.source is not None
    try:
        status = os.lstat(each.source)
        kind = kind_of(status.st_mode)
        if kind != each.kind:
            yield Difference(What.CHANGED, each.path, "another kind of file")
        elif kind == LINK:
            target = os.readlink(each.source)  # noqa: PTH115 -- may hold any bytes
            if target != each.target:
                yield Difference(What.CHANGED, each.path, "the link leads elsewhere")
        elif kind == FILE and status.st_size != each.size:
            yield Difference(What.CHANGED, each.path, f"{each.size} bytes, now {status.st_size}")
        elif kind == FILE and content:
            with open(each.source, "rb") as file:  # noqa: PTH123 -- may hold any bytes
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    yield Difference(What.CHANGED, each.path, "other bytes")
        elif kind == FILE and status.st_mtime_ns != each.mtime_ns:
            yield Difference(What.CHANGED, each.path, "written since")
    except (FileNotFoundError, NotADirectoryError):
        yield Difference(What.REMOVED, each.path, "it does not exist any more")
    except OSError as error:
        yield Difference(What.UNKNOWN, each.path, str(error.strerror))


def _added(disk: Disk, directory: PackedName, packed: set[str], excluded: Excluded) -> Iterator[Difference]:
    """Names of a directory that the image does not have. Behind a tree seen elsewhere there are no stubs: what was left
    out there is not new."""
    assert directory.source is not None
    is_mapped = directory.source != directory.path
    try:
        names = disk.names(directory.source)
    except Unreadable as error:
        yield Difference(What.UNKNOWN, directory.path, str(error))
        return
    for name, kind in names:
        path = f"{directory.path}/{name}"
        if name in packed or (is_mapped and (kind == SPECIAL or excluded(path))):
            continue
        if is_mapped and kind == FILE and disk.readable(f"{directory.source}/{name}") is not None:
            continue
        yield Difference(What.ADDED, path, "not in the image, so payloads do not find it")
