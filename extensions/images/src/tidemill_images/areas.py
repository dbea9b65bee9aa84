"""The areas and trees that an image is made from: those of profiles, and those that were asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tidemill.errors import ConfigError
from tidemill.image.areas import NEVER, is_below, why_not
from tidemill.image.profile import Profile
from tidemill.model.file_systems import is_shared

NOT_OF_A_ROOT = ("etc", "home", "root", "mnt", "media", "boot")
"""Top directories of a whole system that are left to the node, unless they are asked for as areas."""


class Tree(msgspec.Struct, frozen=True):
    """A whole directory to pack, and where payloads see it."""

    source: str
    at: str


def parse_tree(text: str) -> Tree:
    """`SRC` or `SRC:AT`. Raises ConfigError."""
    source, _, at = text.rpartition(":") if ":/" in text else (text, "", "")
    if not source:
        source, at = text, ""
    real = os.path.realpath(source)
    if not Path(real).is_dir():
        raise ConfigError(
            f"tree `{source}` is not a directory", hint="`--tree DIR`, or `--tree DIR:/PATH/FOR/PAYLOADS`"
        )
    if at and os.path.normpath(at) != at:
        raise ConfigError(f"`{at}` of tree `{text}` is not a plain absolute path")
    return Tree(real, at or real)


def trees_below_root(tree: Tree, *, asked: Sequence[str] = ()) -> list[Tree]:
    """A tree that is seen at `/` as its top directories: what belongs to the node is left out, unless it is among the
    areas that were asked for; any other tree as it is. Raises ConfigError."""
    if tree.at != "/":
        return [tree]
    left = {each for each in NOT_OF_A_ROOT if f"/{each}" not in asked} | {each[1:] for each in NEVER}
    try:
        with os.scandir(tree.source) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise ConfigError(f"failed to list tree `{tree.source}`: {error.strerror}") from error
    tops = [Tree(f"{tree.source.rstrip('/')}/{name}", f"/{name}") for name in names if name not in left]
    # Runtimes add directories to mount on: an empty one would hide the node's
    result = [each for each in tops if _may_hold_files(each.source)]
    if not result:
        raise ConfigError(f"`{tree.source}` has no directory that could be shown at `/`")
    return result


def _may_hold_files(directory: str) -> bool:
    """What cannot be listed counts: the build names it and refuses, instead of leaving it out unsaid."""
    unlisted: list[OSError] = []
    found = any(files or unlisted for _, _, files in os.walk(directory, onerror=unlisted.append))
    return found or bool(unlisted)


def real_area(path: str) -> str:
    """The real path of an area. Raises ConfigError if it is not an absolute path of a directory."""
    if not path.startswith("/"):
        raise ConfigError(f"area `{path}` is not an absolute path")
    real = os.path.realpath(path)
    if not Path(real).is_dir():
        raise ConfigError(
            f"area `{path}` is not a directory here", hint="build where the software is to be seen"
        )
    return real


def shared_areas(profile: Profile) -> list[str]:
    """The areas of a profile that are shared file systems, or were asked for as prefixes. Raises ConfigError."""
    found = {mount.prefix for mount in profile.mounts if mount.prefix}
    found |= {mount.point for mount in profile.mounts if not mount.prefix and is_shared(mount.type)}
    used = {area.area: area.ops for area in profile.areas}
    areas = sorted(each for each in found if used.get(each) and why_not(each) is None)
    if not areas:
        listed = ", ".join(f"`{area}` ({ops} operations)" for area, ops in sorted(used.items(), key=_by_ops))
        raise ConfigError(
            f"the profile names no shared file system that could become an image; it has {listed or 'no area'}",
            hint="say what to pack: --area PREFIX",
        )
    return outermost(areas)


def _by_ops(item: tuple[str, int]) -> int:
    return -item[1]


def outermost(areas: Iterable[str]) -> list[str]:
    """The areas, sorted, without those that are in another one."""
    found: list[str] = []
    for area in sorted(set(areas)):
        if not any(is_below(area, other) for other in found):
            found.append(area)
    return found
