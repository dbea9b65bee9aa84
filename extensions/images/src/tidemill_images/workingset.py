"""Which names an image holds, from the paths that traced runs used. Pure: file systems are asked through `Files`.

For each path: every existing directory and link on the way, the targets of links, and what it leads to. For a look-up
that failed: the existing part of its way. Each directory that is held is complete: a name of it that no run used
becomes a stub, a link to the real tree, so that what was never traced works, and what does not exist fails at once and
rightly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

import msgspec

from tidemill.image.areas import is_below

STUBS = "/tmp/.tidemill/real"
"""Payloads see the real tree below this path."""

LINKS_MAX = 40
"""Links on the way to one path; Linux gives up after as many (path_resolution(7))."""

DIRECTORY, FILE, LINK, SPECIAL = "d", "f", "l", "o"


class Unreadable(Exception):
    """A file or directory could not be read; the argument says why."""


class Files(Protocol):
    """What the working set asks of a file system. Paths are absolute, without `.`, `..` and links on the way."""

    def kind(self, path: str) -> str | None:
        """DIRECTORY, FILE, LINK or SPECIAL (not followed); None = there is nothing. Raises Unreadable."""

    def target(self, path: str) -> str:
        """The text of a link."""

    def names(self, path: str) -> list[tuple[str, str]]:
        """Name and kind of all entries of a directory. Raises Unreadable."""

    def readable(self, path: str) -> str | None:
        """Why a file cannot be read; None = it can."""


class ImageEntry(msgspec.Struct, frozen=True):
    """One name of an image. `source`: where a file is read, or whose mode and time a directory has; None = made up.
    `target`: the text of a link."""

    path: str
    kind: str
    source: str | None = None
    target: str | None = None
    stub: bool = False


class PackingProblem(msgspec.Struct, frozen=True):
    """Something that cannot be packed as it is. `fatal`: the image would lack it."""

    path: str
    why: str
    fatal: bool


class WorkingSet(msgspec.Struct, frozen=True):
    """The names of an image, sorted: directories come before what is in them."""

    entries: list[ImageEntry]
    problems: list[PackingProblem]
    gone: list[str]  #: paths that a run used, and that do not exist any more


class Excluded:
    """Which paths are left out: patterns of whole paths, or of names where a pattern has no slash."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._paths = [each.rstrip("/") for each in patterns if "/" in each]
        self._names = [each for each in patterns if "/" not in each]

    def __call__(self, path: str) -> bool:
        """Whether this path itself is left out; what is below it then never is asked for."""
        name = path.rpartition("/")[2]
        return any(fnmatchcase(name, each) for each in self._names) or any(
            fnmatchcase(path, each) for each in self._paths
        )


class Collector:
    """Collects what an image holds of some areas of a file system. Areas are directories by their real paths."""

    def __init__(self, files: Files, areas: Sequence[str], exclude: Sequence[str] = ()) -> None:
        self._files = files
        self._areas = list(areas)
        self._excluded = Excluded(exclude)
        self._kinds: dict[str, str | None] = {}
        self._names: dict[str, list[tuple[str, str]]] = {}
        self._held: dict[str, str] = {}
        self._problems: dict[str, PackingProblem] = {}
        self._gone: list[str] = []

    def use(self, path: str, *, existed: bool) -> None:
        """Hold a path that a run looked up, with all that leads to it."""
        if not self._follow(path) and existed and self._in_area(path):
            self._gone.append(path)

    def use_tree(self, top: str) -> None:
        """Hold a directory of an area with all that is in it."""
        self._follow(top)
        todo = [top] if self._held.get(top) == DIRECTORY else []
        while todo:
            directory = todo.pop()
            for name, kind in self._list(directory):
                path = f"{directory}/{name}"
                self._kinds[path] = kind
                if self._hold(path, kind) and kind == DIRECTORY:
                    todo.append(path)

    def result(self) -> WorkingSet:
        """All names: what is held, and what completes its directories."""
        for path in [path for path, kind in self._held.items() if kind == DIRECTORY]:
            self._list(path)
        self._drop_unlistable()
        entries: dict[str, ImageEntry] = {}
        for path, kind in self._held.items():
            target = self._files.target(path) if kind == LINK else None
            entries[path] = ImageEntry(path, kind, path, target)
            if kind == DIRECTORY:
                for name, its_kind in self._names[path]:
                    other = f"{path}/{name}"
                    if other not in self._held:
                        entries[other] = self._complete(other, its_kind)
        return WorkingSet(
            entries=[entries[path] for path in sorted(entries)],
            problems=[self._problems[path] for path in sorted(self._problems)],
            gone=sorted(set(self._gone)),
        )

    def _complete(self, path: str, kind: str) -> ImageEntry:
        """A link needs no stub: its own text leads to what is held, to a stub, or out of the area."""
        if kind == LINK and not self._excluded(path):
            return ImageEntry(path, LINK, path, self._files.target(path))
        return ImageEntry(path, LINK, None, STUBS + path, stub=True)

    def _in_area(self, path: str) -> bool:
        return any(is_below(path, area) for area in self._areas)

    def _follow(self, path: str) -> bool:
        """Walk as the kernel does; whether there is something at the end."""
        todo = deque(path.split("/"))
        at, links = "", 0
        while todo:
            name = todo.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                at = at.rpartition("/")[0]
                continue
            here = f"{at}/{name}"
            kind = self._kind(here)
            if kind is None:
                return False
            if not self._hold(here, kind) and self._in_area(here):
                return True
            if kind == LINK:
                links += 1
                if links > LINKS_MAX:
                    return True
                target = self._files.target(here)
                at = "" if target.startswith("/") else at
                todo.extendleft(reversed(target.split("/")))
            elif kind == DIRECTORY:
                at = here
            else:
                return not any(todo)
        return True

    def _hold(self, path: str, kind: str) -> bool:
        """Hold one name; whether it is held now."""
        if path in self._held:
            return True
        if not self._in_area(path) or path in self._problems or self._excluded(path):
            return False
        if kind == SPECIAL:
            self._problem(path, "neither file, directory nor link", fatal=False)
            return False
        why = self._files.readable(path) if kind == FILE else None
        if why is not None:
            self._problem(path, why, fatal=True)
            return False
        self._held[path] = kind
        return True

    def _kind(self, path: str) -> str | None:
        if path not in self._kinds:
            try:
                self._kinds[path] = self._files.kind(path)
            except Unreadable as error:
                self._problem(path, str(error), fatal=True)
                self._kinds[path] = None
        return self._kinds[path]

    def _list(self, path: str) -> list[tuple[str, str]]:
        """The names of a directory that is held; none where it cannot be listed."""
        if path not in self._names:
            try:
                self._names[path] = self._files.names(path)
            except Unreadable as error:
                self._problem(path, str(error), fatal=True)
                return []
        return self._names[path]

    def _problem(self, path: str, why: str, *, fatal: bool) -> None:
        if self._in_area(path):
            self._problems[path] = PackingProblem(path, why, fatal)

    def _drop_unlistable(self) -> None:
        """A directory whose names are not known cannot be complete: it becomes a stub of its parent."""
        lost = {path for path, kind in self._held.items() if kind == DIRECTORY and path not in self._names}
        for path in [each for each in self._held if lost and _is_below_any(each, lost)]:
            del self._held[path]


def _is_below_any(path: str, tops: set[str]) -> bool:
    """As `is_below`, for many directories at once."""
    while path and path not in tops:
        path = path.rpartition("/")[0]
    return bool(path)


def mapped_tree(
    files: Files, source: str, at: str, exclude: Sequence[str] = ()
) -> tuple[list[ImageEntry], list[PackingProblem]]:
    """A whole directory that payloads see at another path: nothing stands behind it, so there are no stubs."""
    excluded = Excluded(exclude)
    entries, problems = [ImageEntry(at, DIRECTORY, source)], []
    todo = [(source, at)]
    while todo:
        directory, seen = todo.pop()
        try:
            names = files.names(directory)
        except Unreadable as error:
            problems.append(PackingProblem(directory, str(error), True))
            continue
        for name, kind in names:
            path, shown = f"{directory}/{name}", f"{seen.rstrip('/')}/{name}"
            why = files.readable(path) if kind == FILE else None
            if excluded(shown):
                continue
            if kind == SPECIAL or why is not None:
                problems.append(
                    PackingProblem(path, why or "neither file, directory nor link", why is not None)
                )
                continue
            entries.append(ImageEntry(shown, kind, path, files.target(path) if kind == LINK else None))
            if kind == DIRECTORY:
                todo.append((path, shown))
    return entries, problems


def with_parents(entries: Iterable[ImageEntry]) -> list[ImageEntry]:
    """The entries, sorted, with the directories above them made up where they lack."""
    known = {entry.path: entry for entry in entries}
    for path in list(known):
        parent = path.rpartition("/")[0]
        while parent and parent not in known:
            known[parent] = ImageEntry(parent, DIRECTORY)
            parent = parent.rpartition("/")[0]
    return [known[path] for path in sorted(known)]
