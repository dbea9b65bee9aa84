"""Whatever the tree and whatever was traced: every look-up in image and stubs gives what it gives in the tree.

The kernel's walk is written down once more, as path_resolution(7) describes it, and run over both.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill_images.workingset import STUBS, Collector, ImageEntry

AREA = "/sw"
LINKS_MAX = 40
NAMES = ("a", "b", "c", "d")

Tree = dict[str, str | int | None]
"""Path -> number (a file), text (a link), None (a directory)."""


class TreeFiles:
    """A tree as the working set asks for it."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def kind(self, path: str) -> str | None:
        if path not in self.tree:
            return None
        what = self.tree[path]
        return "d" if what is None else "l" if isinstance(what, str) else "f"

    def target(self, path: str) -> str:
        return str(self.tree[path])

    def names(self, path: str) -> list[tuple[str, str]]:
        return [
            (each.rpartition("/")[2], self.kind(each) or "")
            for each in self.tree
            if each.rpartition("/")[0] == path and each
        ]

    def readable(self, path: str) -> str | None:
        return None


def look_up(tree: Tree, path: str) -> tuple[object, bool]:
    """What a path leads to (a file's number, the names of a directory, or why to nothing), and whether the way went
    through the real tree."""
    todo, at, links, real = path.split("/"), "", 0, False
    while todo:
        name = todo.pop(0)
        if name in ("", "."):
            continue
        if tree[at] is not None:
            return "no directory", real
        if name == "..":
            at = at.rpartition("/")[0]
            continue
        at = f"{at}/{name}"
        if at not in tree:
            return "nothing", real
        real = real or at.startswith(STUBS)
        what = tree[at]
        if isinstance(what, str):
            links += 1
            if links > LINKS_MAX:
                return "too many links", real
            at = "" if what.startswith("/") else at.rpartition("/")[0]
            todo = what.split("/") + todo
    what = tree[at]
    if what is None:
        return frozenset(
            each.rpartition("/")[2] for each in tree if each and each.rpartition("/")[0] == at
        ), real
    return what, real


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees of some directories, files and links, in the area and beside it."""
    tree: Tree = {"": None, AREA: None, "/other": None}
    for number in range(draw(st.integers(1, 14))):
        parent = draw(st.sampled_from(sorted(path for path in tree if path and tree[path] is None)))
        path = f"{parent}/{draw(st.sampled_from(NAMES))}"
        if path not in tree:
            tree[path] = draw(st.one_of(st.none(), st.just(number), targets()))
    return tree


def targets() -> st.SearchStrategy[str]:
    """Texts of links: relative and absolute, up and down, to something or nothing."""
    words = st.lists(st.sampled_from([*NAMES, "..", "."]), min_size=1, max_size=4).map("/".join)
    return st.one_of(
        words, words.map(lambda text: f"{AREA}/{text}"), words.map(lambda text: f"/other/{text}")
    )


def paths() -> st.SearchStrategy[str]:
    """Paths that programs may ask for."""
    tops = st.sampled_from([AREA, "/other"])
    words = st.lists(st.sampled_from([*NAMES, "..", "."]), max_size=6)
    return st.tuples(tops, words).map(lambda both: "/".join([both[0], *both[1]]))


def seen_by_payloads(tree: Tree, entries: list[ImageEntry]) -> Tree:
    """The image over its area, everything else as it is, and the real tree where stubs lead."""
    seen = {path: what for path, what in tree.items() if not path.startswith(f"{AREA}/")}
    for entry in entries:
        seen[entry.path] = entry.target if entry.kind == "l" else tree[entry.path]
    seen |= {"/tmp": None, "/tmp/.tidemill": None}
    return seen | {STUBS + path: what for path, what in tree.items()}


def without_top(found: object) -> object:
    """The names of `/` differ: `/tmp` is the payload's own."""
    return found - {"tmp"} if isinstance(found, frozenset) else found


@given(trees(), st.lists(paths(), max_size=8), st.lists(paths(), max_size=12))
def test_every_look_up_gives_the_same_and_traced_ones_stay_in_the_image(
    tree: Tree, traced: list[str], others: list[str]
) -> None:
    collector = Collector(TreeFiles(tree), [AREA])
    collector.use(AREA, existed=True)
    for path in traced:
        collector.use(path, existed=False)
    seen = seen_by_payloads(tree, collector.result().entries)
    for path in [*traced, *others]:
        found, real = look_up(seen, path)
        assert without_top(found) == without_top(look_up(tree, path)[0]), path
        if path in traced:
            assert not real, path


@given(trees(), st.lists(paths(), max_size=8))
def test_what_is_excluded_still_works(tree: Tree, asked: list[str]) -> None:
    collector = Collector(TreeFiles(tree), [AREA], ["a", f"{AREA}/b"])
    collector.use_tree(AREA)
    seen = seen_by_payloads(tree, collector.result().entries)
    for path in asked:
        assert without_top(look_up(seen, path)[0]) == without_top(look_up(tree, path)[0]), path
