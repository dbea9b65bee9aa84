"""Searches that no variable of the environment explains: sys.path, RPATH, include paths, locales. Pure, from names."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.image.profile import PathUse
from tidemill_images.search import family, loader_directory, python_root

ENTRIES_MAX = 50
"""The number of directories reported for a group: those with the most failures."""

CANDIDATES_MAX = 32
"""Existing files of one name that are compared with a missing one."""

ADVICE = {
    "RPATH": "libraries are searched along RPATHs, or an LD_LIBRARY_PATH that a script sets: shorten them "
    "(`patchelf --print-rpath`), or trace the command after the script",
    "include": "headers are searched along the compiler's include path: order `-I` options by how often they hit",
    "locale": "translations are looked for: `LC_ALL=C.UTF-8` avoids that, and changes messages and sorting",
    "gconv": "character sets are looked for: `GCONV_PATH` is set, or the converters' cache is missing (`iconvconfig`)",
    "perl": "modules are searched along Perl's @INC: PERL5LIB and `use lib` lengthen it",
    "ROOT": "ROOT searches its macros and dictionaries: see `Unix.*.Root.MacroPath` and ROOT_INCLUDE_PATH",
}


class SearchedDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of a group."""

    directory: str
    lookups: int
    failed: int
    hits: int
    share: float


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Failing look-ups of one kind."""

    name: str
    lookups: int
    failed: int
    places: list[SearchedDirectory]
    advice: str


def infer(uses: Iterable[PathUse], total: int) -> list[Group]:
    """Failing look-ups by kind and directory, those with the most failures first; `total` is all operations."""
    rest = list(uses)
    by_name: dict[str, list[str]] = {}
    for use in rest:
        if use.exists:
            same = by_name.setdefault(use.path.rpartition("/")[2], [])
            if len(same) < CANDIDATES_MAX:
                same.append(use.path)
    failed: dict[tuple[str, str], int] = {}
    for use in rest:
        if not use.exists and use.failed:
            key = _search_of(use.path, by_name)
            failed[key] = failed.get(key, 0) + use.failed
    found = _found(rest, {directory for _, directory in failed})
    groups: dict[str, list[SearchedDirectory]] = {}
    for (name, directory), count in failed.items():
        hits, ok = found.get(directory, (0, 0))
        groups.setdefault(name, []).append(
            SearchedDirectory(
                directory=directory,
                lookups=count + ok,
                failed=count,
                hits=hits,
                share=(count + ok) / total,
            )
        )
    return sorted(
        (_group(name, places) for name, places in groups.items()),
        key=lambda group: (-group.failed, group.name),
    )


def _group(name: str, places: list[SearchedDirectory]) -> Group:
    places.sort(key=lambda place: (-place.failed, place.directory))
    return Group(
        name=name,
        lookups=sum(place.lookups for place in places),
        failed=sum(place.failed for place in places),
        places=places[:ENTRIES_MAX],
        advice=ADVICE.get(name, ""),
    )


def _search_of(path: str, by_name: dict[str, list[str]]) -> tuple[str, str]:
    """Kind, and directory from which the name was looked for."""
    root = python_root(path)
    if root is not None:
        return "sys.path", root
    name = family(path)
    if name == "RPATH":
        return name, loader_directory(path)
    if name in ("include", "perl", "ROOT"):
        return name, _start(path, by_name.get(path.rpartition("/")[2], []))
    return name, path.rpartition("/")[0] or "/"


def _start(path: str, others: Iterable[str]) -> str:
    """The path without the longest end that it shares with a file that exists: `bits/x.h` was asked for, not `x.h`."""
    parts = path.split("/")
    shared = 1
    for other in others:
        ends = other.split("/")
        k = 1
        while k < min(len(parts), len(ends)) and parts[-k - 1] == ends[-k - 1]:
            k += 1
        shared = max(shared, k if k < min(len(parts), len(ends)) else 1)
    return "/".join(parts[:-shared]) or "/"


def _found(uses: Iterable[PathUse], directories: set[str]) -> dict[str, tuple[int, int]]:
    """Different files found below each directory (the nearest above them), and operations on them that went well."""
    found: dict[str, tuple[int, int]] = {}
    for use in uses:
        if not use.exists or use.path in directories:
            continue
        at = use.path
        while at != "/" and at not in directories:
            at = at.rpartition("/")[0] or "/"
        if at in directories:
            hits, ok = found.get(at, (0, 0))
            found[at] = (hits + 1, ok + use.ok)
    return found
