"""Builds an image: from profiles and trees to a squashfs, its chunks in the store's packs, and a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.errors import ConfigError, SiteError
from tidemill.files import make_readable, temporary, write_durable
from tidemill.image.areas import check_areas
from tidemill.image.profile import Profile
from tidemill.image.recipe import FORMAT, SUFFIX, Contents, Origin, Recipe, check_name
from tidemill.wire.staged import StagedFile
from tidemill_images.areas import Tree
from tidemill_images.chunks import cuts, settle_time
from tidemill_images.disk import Changed, Disk, shown
from tidemill_images.name_list import write_listing
from tidemill_images.packs import Stored, store_file
from tidemill_images.squash import BLOCK_BYTES, LEVEL, PackedName, Squashed, find_tool, squash
from tidemill_images.workingset import (
    DIRECTORY,
    FILE,
    Collector,
    ImageEntry,
    PackingProblem,
    WorkingSet,
    mapped_tree,
    with_parents,
)

TRIES_MAX = 3
"""So often a build begins again because files changed while they were packed."""

NAMED_MAX = 10
"""So many paths are named in a message."""

MODE = 0o644
"""Recipes, as packs and lists: as readable as the user's umask and the store's directory let them be."""

PACKS_TRIES_MAX = 10
"""So often chunks are kept again because a removal took packs meanwhile."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built. `areas`: real paths. `profile`: all profiles merged, or None."""

    name: str
    areas: list[str]
    trees: list[Tree] = []
    profile: Profile | None = None
    exclude: list[str] = []
    skip_unreadable: bool = False
    block_bytes: int = BLOCK_BYTES
    level: int = LEVEL
    origins: list[Origin] = []


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """An image that was built, and what it took."""

    recipe: Recipe
    path: Path
    skipped: list[PackingProblem]
    gone: list[str]
    seconds: float


def build(order: Order, store: Path, *, tell: Callable[[str], None]) -> Built:
    """Build an image into a store. Raises ConfigError where the order is wrong or a file may not be read, SiteError."""
    started_s = clock.monotonic_s()
    check_name(order.name)
    check_areas(order.areas)
    find_tool()
    try:
        make_readable(store)
    except OSError as error:
        raise SiteError(f"failed to make `{store}`: {error.strerror}", transient=False) from error
    image = temporary(store / order.name)
    try:
        working_set, squashed = _pack(order, image, tell=tell)
        settle_time(image)
        recipe, path = _publish(order, squashed, image, store)
    finally:
        with suppress(SiteError):
            _clear(image)
    return Built(
        recipe=recipe,
        path=path,
        skipped=working_set.problems,
        gone=working_set.gone,
        seconds=clock.monotonic_s() - started_s,
    )


def plan(order: Order) -> WorkingSet:
    """All names of the image. Raises ConfigError where something cannot be read, Changed."""
    disk = Disk()
    collector = Collector(disk, order.areas, order.exclude)
    for use in order.profile.paths if order.profile is not None else []:
        collector.use(use.path, existed=use.exists)
    mapped: list[ImageEntry] = []
    problems: list[PackingProblem] = []
    for tree in order.trees:
        if tree.source == tree.at:
            collector.use_tree(tree.at)
            continue
        entries, its_problems = mapped_tree(disk, tree.source, tree.at, order.exclude)
        mapped += entries
        problems += its_problems
    working_set = collector.result()
    problems = [*working_set.problems, *problems]
    _refuse_unreadable(problems, skip=order.skip_unreadable)
    _refuse_empty(order.areas, [*working_set.entries, *mapped])
    return WorkingSet(with_parents([*working_set.entries, *mapped]), problems, working_set.gone)


def _refuse_unreadable(problems: Sequence[PackingProblem], *, skip: bool) -> None:
    fatal = [each for each in problems if each.fatal]
    if not fatal or skip:
        return
    named = ", ".join(f"`{shown(each.path)}` ({each.why})" for each in fatal[:NAMED_MAX])
    more = f" and {len(fatal) - NAMED_MAX} more" if len(fatal) > NAMED_MAX else ""
    raise ConfigError(
        f"failed to read {len(fatal)} of the files to pack: {named}{more}",
        hint="make them readable, leave them out by --exclude, or pack the others by --skip-unreadable",
    )


def _refuse_empty(areas: Iterable[str], entries: Iterable[ImageEntry]) -> None:
    held = {entry.path for entry in entries if entry.kind == DIRECTORY}
    for area in areas:
        if area not in held:
            raise ConfigError(
                f"nothing of area `{area}` was used, or it is not a directory: an image of it would be empty",
                hint="trace a run that uses it, or pack it whole by --tree",
            )


def _pack(order: Order, image: Path, *, tell: Callable[[str], None]) -> tuple[WorkingSet, Squashed]:
    for left in reversed(range(TRIES_MAX)):
        _clear(image)
        try:
            working_set = plan(order)
            return working_set, squash(
                working_set.entries, image, block_bytes=order.block_bytes, level=order.level
            )
        except Changed as change:
            if left == 0:
                raise SiteError(
                    f"gave up after {TRIES_MAX} tries: {change}",
                    hint="wait until no process writes there, or leave it out by --exclude",
                ) from change
            tell(f"{change}; beginning again")
    raise AssertionError("TRIES_MAX is at least 1")


def _clear(image: Path) -> None:
    """Make place for the next try. Raises SiteError."""
    try:
        image.unlink(missing_ok=True)
    except OSError as error:
        raise SiteError(
            f"failed to write to store `{image.parent}`: {error.strerror}", hint="--store names another"
        ) from error


def _publish(order: Order, squashed: Squashed, image: Path, store: Path) -> tuple[Recipe, Path]:
    """Write chunks, list and recipe. Packs that a concurrent `gc` removed are written again: they are checked last."""
    where = cuts(image)
    added = 0
    for _ in range(PACKS_TRIES_MAX):
        stored = store_file(image, where, store)
        added += stored.added_bytes
        recipe = _recipe(order, squashed, stored, store)
        path = _write_recipe(store, msgspec.structs.replace(recipe, added_bytes=added))
        if all((store / pack).is_file() for pack in recipe.packs()):
            return msgspec.structs.replace(recipe, added_bytes=added), path
    raise SiteError(
        f"packs of `{store}` disappear while images are built", hint="is `image gc` running in a loop?"
    )


def _write_recipe(store: Path, recipe: Recipe) -> Path:
    """Put a recipe into its store, whole and durable. Raises SiteError."""
    path = store / (recipe.name + SUFFIX)
    write_durable(path, msgspec.json.encode(recipe) + b"\n", mode=MODE)
    return path


def _recipe(order: Order, squashed: Squashed, stored: Stored, store: Path) -> Recipe:
    return Recipe(
        format=FORMAT,
        name=order.name,
        file=StagedFile(sha256=stored.sha256, bytes=stored.bytes, pieces=stored.pieces),
        areas=order.areas,
        unpacked_bytes=squashed.unpacked_bytes,
        created_us=clock.now_us(),
        entries=_contents(squashed.listed),
        added_bytes=stored.added_bytes,
        block_bytes=order.block_bytes,
        tool=squashed.tool,
        listing=write_listing(store, squashed.listed),
        origins=order.origins,
        exclude=order.exclude,
    )


def _contents(listed: Sequence[PackedName]) -> Contents:
    kinds = [each.kind for each in listed if not each.stub]
    return Contents(
        files=kinds.count(FILE),
        directories=kinds.count(DIRECTORY),
        links=len(kinds) - kinds.count(FILE) - kinds.count(DIRECTORY),
        stubs=len(listed) - len(kinds),
        file_bytes=sum(each.size for each in listed if each.same_as is None),
    )
