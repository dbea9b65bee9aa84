"""Why look-ups fail: the entries of search paths that never hit, and the environment without them. Pure.

An entry is *dead* when names were looked for below it and none was found. Without it, programs load the same files,
provided that the profile covers what they do: trace several different runs and merge them. An entry is moved forward
only if it contains none of the names that were found in the entries that it passes (checked with `listing`), so that
the same files are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import PurePosixPath

import msgspec

from tidemill.image.profile import PathUse, Profile, is_library
from tidemill_images.inferred import Group, infer
from tidemill_images.search import (
    STYLES,
    Path,
    PathEntry,
    Style,
    below,
    fits,
    is_hit,
    loader_directory,
    preferred,
    python_root,
    python_versions,
    search_paths,
)

STORM_SHARE_MIN = 0.01  #: of all operations; smaller storms are not worth a line
STORM_PATHS_MAX = 20
MASKED = frozenset({"avx512_1", "x86_64"})  #: of the loader's old subdirectories those that its mask governs
SAFE_PATH_SINCE = (3, 11)  #: PYTHONSAFEPATH: "What's New In Python 3.11"

GAPS = {
    "architecture": "calls of 32-bit programs, or by `int $0x80`, are missing",
    "io_uring": "operations through io_uring are missing",
    "paths": "paths beyond the limit are not distinguished; `--paths-max` raises the limit",
    "unread": "some paths could not be read from the program's memory",
}
"""What the causes in `left_out` of a profile mean, as in crates/trace/src/counts.rs."""

Listing = Callable[[str], frozenset[str] | None]
"""The names in a directory, None where it cannot be listed."""


class EntryVerdict(StrEnum):
    """What an entry is worth."""

    USED = "used"
    DEAD = "dead"  #: looked into, nothing found
    IDLE = "idle"  #: never looked into
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"  #: it holds a variable, or the profile is incomplete


class SearchEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a search path. `share` is of all operations of the profile."""

    entry: str
    directory: str | None
    lookups: int
    failed: int
    hits: int  #: different names found
    share: float
    verdict: EntryVerdict


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """A search path and what it costs; `value` is the proposed one, the present one where nothing is to be gained."""

    name: str
    value: str
    proposed: str | None  #: None = unset
    moved: list[str]  #: entries that were moved forward
    entries: list[SearchEntry]
    saves_ops: int
    saves_failed: int

    @property
    def is_changed(self) -> bool:
        """Whether another value is proposed."""
        return self.proposed != self.value


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """An existing path on which operations fail repeatedly, such as `readlink` on a path that is not a link."""

    path: str
    failed: int
    ok: int


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A variable to be set besides the search paths."""

    name: str
    value: str
    why: str
    saves_ops: int
    saves_failed: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile says of its search paths and areas. Numbers are sums over the profile's runs."""

    runs: int
    ops: int
    failed: int
    explained: int  #: of `failed`
    searches: list[Search]  #: of the environment
    groups: list[Group]  #: searches that no variable at the start explains
    storms: list[Storm]
    storm_failed: int
    switches: list[Switch]
    advice: list[str]
    environment: dict[str, str | None]  #: what to set; None = unset
    saves_ops: int
    saves_failed: int


def explain(profile: Profile, *, listing: Listing = lambda _: None) -> Explanation:
    """Who looks where, what it costs, and what would avoid it. About 10 us per path."""
    books = [_Book(path) for path in search_paths(profile.env, profile.cwd)]
    rest = [use for use in profile.paths if not _credit(books, use)]
    # A relative entry means another directory after each chdir: what it found there is not known
    has_moved = any(each.ok for name, each in profile.ops.items() if name in ("chdir", "fchdir"))
    total = max(1, profile.ops_total)
    searches = [book.search(total, has_moved, profile.truncated, listing) for book in books]
    groups = infer(rest, total)
    storms = sorted(
        (
            Storm(path=use.path, failed=use.failed, ok=use.ok)
            for use in profile.paths
            if use.exists and use.failed
        ),
        key=lambda storm: (-storm.failed, storm.path),
    )
    storm_failed = sum(storm.failed for storm in storms)
    switches = [] if profile.truncated else _switches(profile, rest)
    left_out = {
        book.path.places[k].directory or ""
        for book, search in zip(books, searches, strict=True)
        if search.is_changed and book.path.style is Style.LIBRARIES
        for k, entry in enumerate(search.entries)
        if entry.verdict is EntryVerdict.DEAD
    }
    switches += [] if profile.truncated else _loader_switch(profile, left_out)
    changed = [search for search in searches if search.is_changed]
    return Explanation(
        runs=profile.runs,
        ops=profile.ops_total,
        failed=profile.failed_total,
        explained=sum(e.failed for s in searches for e in s.entries)
        + sum(g.failed for g in groups)
        + storm_failed,
        searches=searches,
        groups=groups,
        storms=storms[:STORM_PATHS_MAX] if storm_failed >= STORM_SHARE_MIN * total else [],
        storm_failed=storm_failed,
        switches=switches,
        advice=_advice(profile, searches, groups, storm_failed),
        environment={
            **{search.name: search.proposed for search in changed},
            **{switch.name: switch.value for switch in switches},
        },
        saves_ops=sum(each.saves_ops for each in changed) + sum(each.saves_ops for each in switches),
        saves_failed=sum(each.saves_failed for each in changed) + sum(each.saves_failed for each in switches),
    )


def gaps(profile: Profile) -> list[str]:
    """Sentences on what is missing from a truncated profile, and on the option that would add it, if there is one."""
    if not profile.truncated:
        return []
    known = [GAPS[each] for each in profile.left_out if each in GAPS]
    return known or ["some operations or paths are missing"]


class _Book:
    """What is counted for each entry of one search path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index: dict[str, int] = {}
        for k, place in enumerate(path.places):
            if place.directory is not None:
                self.index.setdefault(place.directory, k)
        self.known: dict[str, list[tuple[int, str]]] = {}  #: entries above each directory that was asked for
        self.lookups = [0] * len(path.places)
        self.failed = [0] * len(path.places)
        self.hits = [0] * len(path.places)
        self.names: list[dict[str, PathUse]] = [{} for _ in path.places]

    def containing(self, use: PathUse) -> int | None:
        """The entry that the look-up belongs to, the longest that fits; notes what was found for each."""
        best = None
        for k, directory in self.above(use.path):
            rest = use.path[len(directory) :].lstrip("/")
            if fits(self.path.style, rest):
                best = k if best is None else best
                self.hits[k] += is_hit(self.path.style, rest, use)
        return best

    def above(self, path: str) -> list[tuple[int, str]]:
        """The entries that a path is below, or is itself, the longest first."""
        parent = path.rpartition("/")[0] or "/"
        known = self.known.get(parent)
        if known is None:
            known = []
            at = parent
            while True:
                if at in self.index:
                    known.append((self.index[at], at))
                if at == "/":
                    break
                at = at.rpartition("/")[0] or "/"
            self.known[parent] = known
        return [(self.index[path], path), *known] if path in self.index and path != parent else known

    def credit(self, k: int, use: PathUse) -> None:
        """The look-ups of a path are those of entry `k`."""
        self.lookups[k] += use.ok + use.failed
        if not use.exists:
            self.failed[k] += use.failed
        rest = below(use.path, self.path.places[k].directory or "/") or ""
        if rest and "/" not in rest:
            self.names[k][rest] = use

    def verdict(self, k: int, truncated: bool) -> EntryVerdict:
        """What entry `k` is worth."""
        directory = self.path.places[k].directory
        if directory is None:
            return EntryVerdict.UNKNOWN
        if self.index[directory] != k:
            return EntryVerdict.DUPLICATE
        if self.hits[k]:
            return EntryVerdict.USED
        if not self.lookups[k]:
            return EntryVerdict.IDLE
        return EntryVerdict.UNKNOWN if truncated else EntryVerdict.DEAD

    def search(self, total: int, has_moved: bool, truncated: bool, listing: Listing) -> Search:
        """The counts, and the value that is proposed."""
        places = self.path.places
        verdicts = [self.verdict(k, truncated) for k in range(len(places))]
        kept = [
            k
            for k, verdict in enumerate(verdicts)
            if verdict not in (EntryVerdict.DEAD, EntryVerdict.DUPLICATE)
            or not self.path.is_list
            or (has_moved and places[k].is_relative)
        ]
        dropped = set(range(len(places))) - set(kept)
        moved: list[int] = []
        saved = 0
        if self.path.style in (Style.COMMANDS, Style.LIBRARIES) and not truncated:
            kept, moved, saved = self.ordered(kept, listing)
        value = self.path.separator.join(place.text for place in places)
        proposed: str | None = value
        saves_ops = sum(self.lookups[k] for k in dropped) + saved + self.repeated(dropped)
        if saves_ops:
            proposed = self.path.separator.join(places[k].text for k in kept) or ("." if kept else None)
        if proposed is None and self.path.name == "PATH":
            proposed, dropped, saves_ops = value, set(), 0
        return Search(
            name=self.path.name,
            value=value,
            proposed=proposed,
            moved=[places[k].text for k in moved],
            entries=[self.entry(k, verdicts[k], total) for k in range(len(places))],
            saves_ops=saves_ops,
            saves_failed=sum(self.failed[k] for k in dropped) + saved + self.repeated(dropped),
        )

    def repeated(self, dropped: set[int]) -> int:
        """Failing look-ups below directories that PATH names again; the loader and Python pass over repetitions."""
        if self.path.style is not Style.COMMANDS:
            return 0
        directories = [place.directory for place in self.path.places]
        return sum(
            self.failed[first] // directories.count(directories[k])
            for k in dropped
            if (first := self.index[directories[k] or ""]) not in dropped
        )

    def entry(self, k: int, verdict: EntryVerdict, total: int) -> SearchEntry:
        """The counts of one entry."""
        place = self.path.places[k]
        return SearchEntry(
            entry=place.text,
            directory=place.directory,
            lookups=self.lookups[k],
            failed=self.failed[k],
            hits=self.hits[k] if verdict is not EntryVerdict.DUPLICATE else 0,
            share=self.lookups[k] / total,
            verdict=verdict,
        )

    def ordered(self, kept: Sequence[int], listing: Listing) -> tuple[list[int], list[int], int]:
        """Entries moved forward past those that mostly fail, where nothing else is found then: the new order, what was
        moved, and the failing look-ups that it saves."""
        order = list(kept)
        moved: set[int] = set()
        saved = 0
        for j in kept:
            at = order.index(j)
            while at > 0:
                gain = self.gain(order[at - 1], j)
                if gain <= 0 or not self.may_pass(order[at - 1], j, listing):
                    break
                order[at - 1], order[at] = order[at], order[at - 1]
                at -= 1
                saved += gain
                moved.add(j)
        return order, sorted(moved), saved

    def gain(self, i: int, j: int) -> int:
        """Failing look-ups less if `j` comes before `i`."""
        found = {name for name, use in self.names[j].items() if use.exists}
        less = sum(use.failed for name, use in self.names[i].items() if name in found and not use.exists)
        more = sum(use.ok for name, use in self.names[i].items() if use.exists)
        return less - more

    def may_pass(self, i: int, j: int, listing: Listing) -> bool:
        """Whether all that was found in `i` is still found there when `j` is searched before it."""
        places: list[PathEntry] = self.path.places
        directory = places[j].directory
        if directory is None or places[i].directory is None or places[i].is_relative or places[j].is_relative:
            return False
        found = {name for name, use in self.names[i].items() if use.exists}
        if not found:
            return True
        if self.path.style is Style.LIBRARIES and (listing(f"{directory}/glibc-hwcaps") or frozenset()):
            return False  # may have libraries for this processor, whose names are not checked
        there = listing(directory)
        return there is not None and not found & there


def _credit(books: Iterable[_Book], use: PathUse) -> bool:
    """Count a path for the search path that it belongs to most likely; False = for none."""
    found: dict[Style, tuple[_Book, int]] = {}
    for book in books:
        k = book.containing(use)
        if k is not None:
            known = found.get(book.path.style)
            if known is None or len(book.path.places[k].directory or "") > len(
                known[0].path.places[known[1]].directory or ""
            ):
                found[book.path.style] = (book, k)
    for style in preferred(use.path):
        if style in found:
            book, k = found[style]
            book.credit(k, use)
            return True
    return False


def _switches(profile: Profile, rest: Iterable[PathUse]) -> list[Switch]:
    """Python's own switches, where the directories that they leave out gave nothing."""
    uses = list(rest)
    result = []
    homes = [use for use in uses if "/.local/lib/python" in use.path]
    if homes and not any(use.exists for use in homes):
        result.append(
            Switch(
                name="PYTHONNOUSERSITE",
                value="1",
                why="nothing was found in the site-packages of the home directory",
                saves_ops=sum(use.ok + use.failed for use in homes),
                saves_failed=sum(use.failed for use in homes),
            )
        )
    first = _script_directory(profile)
    versions = python_versions(profile.paths)
    if first is None or not versions or min(versions) < SAFE_PATH_SINCE:
        return result
    directory, script = first
    if any(_is_foreign_module(use, script) for use in uses):
        return result  # modules come from directories that may be a script's own
    lost = [use for use in uses if use.path == directory or _is_lost_below(use, directory)]
    if lost and "PYTHONSAFEPATH" not in profile.env:
        result.append(
            Switch(
                name="PYTHONSAFEPATH",
                value="1",
                why=f"Python searches `{directory}` first for every module, and no module came from there",
                saves_ops=sum(use.ok + use.failed for use in lost),
                saves_failed=sum(use.failed for use in lost if not use.exists),
            )
        )
    return result


def _loader_switch(profile: Profile, left_out: set[str]) -> list[Switch]:
    """glibc before 2.37 looks for each library in subdirectories such as `tls/haswell/x86_64` of each entry; without
    processor capabilities in its mask there are fewer. On x86 only the loader reads it (dl-hwcaps.c, dl-cache.c)."""
    uses = [
        use
        for use in profile.paths
        if MASKED.intersection(use.path.split("/")[:-1] if is_library(use.path) else use.path.split("/")[-2:])
        and loader_directory(use.path) not in left_out
    ]
    absent = [use for use in uses if not use.exists]
    saved = sum(use.failed for use in absent)
    has_hits = any(use.exists and is_library(use.path) for use in uses)
    if (
        has_hits
        or saved < STORM_SHARE_MIN * profile.ops_total
        or not any(is_library(use.path) for use in absent)
    ):
        return []
    return [
        Switch(
            name="GLIBC_TUNABLES",
            value="glibc.cpu.hwcap_mask=0",
            why="the loader looks into subdirectories for this processor (`avx512_1`, `x86_64`), and nothing was there",
            saves_ops=saved,
            saves_failed=saved,
        )
    ]


def _script_directory(profile: Profile) -> tuple[str, str | None] | None:
    """What Python puts first into sys.path for this command, and its script; None where that is not known."""
    command, *words = profile.command or [""]
    if not PurePosixPath(command).name.startswith("python"):
        return None
    for word in words:
        if word in ("-c", "-m", "-"):
            return profile.cwd, None
        if not word.startswith("-"):
            script = PurePosixPath(profile.cwd, word)
            return str(script.parent), str(script)
        if word in ("-W", "-X", "-I", "-P") or (word[1] != "-" and set(word[1:]) & set("cmWXIP")):
            return None  # options with a value, options in one word, or ones that isolate already
    return profile.cwd, None


def _is_foreign_module(use: PathUse, script: str | None) -> bool:
    """A Python file that exists outside of all known entries of sys.path."""
    return (
        use.exists
        and use.path != script
        and use.path.endswith((".py", ".pyc", ".pth"))
        and python_root(use.path) is None
    )


def _is_lost_below(use: PathUse, directory: str) -> bool:
    rest = below(use.path, directory)
    return bool(rest) and not use.exists and Style.MODULES in preferred(use.path)[:1]


def _advice(
    profile: Profile, searches: Sequence[Search], groups: Sequence[Group], storm_failed: int
) -> list[str]:
    """What no variable avoids, in words."""
    told = []
    for search in searches:
        for entry in search.entries:
            if entry.lookups and search.name in STYLES and not entry.entry.startswith(("/", "$")):
                told.append(
                    f"{search.name} has {f'the entry `{entry.entry}`' if entry.entry else 'an empty entry'}: "
                    "what is searched depends on the working directory"
                )
    uncompiled = sum(
        use.failed
        for use in profile.paths
        if not use.exists and "/__pycache__/" in use.path and use.path.endswith(".pyc")
    )
    if uncompiled >= STORM_SHARE_MIN * profile.ops_total and uncompiled:
        told.append(
            f"{uncompiled} look-ups of compiled Python modules fail: run `python -m compileall` once where they are"
        )
    if storm_failed >= STORM_SHARE_MIN * profile.ops_total and storm_failed:
        names = [PurePosixPath(word).name for word in profile.command[:1]]
        is_compiler = any(name.startswith(("gcc", "g++", "cc", "c++", "clang")) for name in names)
        told.append(
            f"{storm_failed} operations fail on existing paths: a program resolves links of whole paths (`realpath`); "
            + (
                "`-fno-canonical-system-headers` stops GCC"
                if is_compiler
                else "name files by their real, short paths"
            )
        )
    told += [
        group.advice
        for group in groups
        if group.advice and group.failed >= STORM_SHARE_MIN * profile.ops_total
    ]
    if profile.truncated:
        told.append(
            f"something was left out of the profile, so no entry is called dead: {'; '.join(gaps(profile))}"
        )
    return told
