"""Working sets: all that leads to what was used, and each directory complete. On file systems made of dictionaries."""

from __future__ import annotations

import pytest

from tidemill_images.workingset import (
    DIRECTORY,
    FILE,
    LINK,
    SPECIAL,
    STUBS,
    Collector,
    Unreadable,
    WorkingSet,
    mapped_tree,
    with_parents,
)


class FakeFiles:
    """A file system: path -> None (directory), bytes (file), text (link), 0 (device), PermissionError (unreadable)."""

    def __init__(self, tree: dict[str, object]) -> None:
        self.tree = {"": None, **tree}
        for path in tree:
            while path := path.rpartition("/")[0]:
                self.tree.setdefault(path, None)

    def kind(self, path: str) -> str | None:
        if path not in self.tree:
            return None
        what = self.tree[path]
        if isinstance(what, str):
            return LINK
        return {bytes: FILE, int: SPECIAL, type: FILE}.get(type(what), DIRECTORY)

    def target(self, path: str) -> str:
        return str(self.tree[path])

    def names(self, path: str) -> list[tuple[str, str]]:
        start = path.rstrip("/") + "/"
        found = [
            each
            for each in self.tree
            if each.startswith(start) and "/" not in each[len(start) :] and each != start
        ]
        return sorted((each[len(start) :], self.kind(each) or "") for each in found)

    def readable(self, path: str) -> str | None:
        return "it may not be read" if self.tree[path] is PermissionError else None


class ClosedFiles(FakeFiles):
    """Some directories cannot be listed."""

    def __init__(self, tree: dict[str, object], closed: str) -> None:
        super().__init__(tree)
        self.closed = closed

    def names(self, path: str) -> list[tuple[str, str]]:
        if path == self.closed:
            raise Unreadable("Permission denied")
        return super().names(path)


SW: dict[str, object] = {
    "/sw/rel/bin/prog": b"1",
    "/sw/rel/lib/libm.so.6": "libm.so.6.1",
    "/sw/rel/lib/libm.so.6.1": b"1",
    "/sw/rel/lib/liba.so": b"1",
    "/sw/rel/py/used.py": b"1",
    "/sw/rel/py/other.py": b"1",
    "/sw/rel/py/pkg/x.py": b"1",
    "/sw/current": "rel",
    "/sw/abs": "/sw/rel/py",
    "/sw/away": "/elsewhere/data",
    "/elsewhere/data": b"1",
    "/elsewhere/back": "/sw/rel/bin",
}


def working_set(
    *used: str, tree: dict[str, object] | None = None, exclude: tuple[str, ...] = ()
) -> WorkingSet:
    collector = Collector(FakeFiles(SW if tree is None else tree), ["/sw"], exclude)
    for path in used:
        collector.use(path, existed=True)
    return collector.result()


def held(found: WorkingSet) -> list[str]:
    return [each.path for each in found.entries if not each.stub]


def stubs(found: WorkingSet) -> dict[str, str | None]:
    return {each.path: each.target for each in found.entries if each.stub}


def test_a_used_file_brings_its_directories_and_these_are_complete() -> None:
    found = working_set("/sw/rel/py/used.py")
    assert held(found) == [
        "/sw",
        "/sw/abs",
        "/sw/away",
        "/sw/current",
        "/sw/rel",
        "/sw/rel/py",
        "/sw/rel/py/used.py",
    ]
    assert stubs(found) == {
        path: STUBS + path for path in ("/sw/rel/bin", "/sw/rel/lib", "/sw/rel/py/other.py", "/sw/rel/py/pkg")
    }


def test_links_are_followed_and_their_targets_held() -> None:
    found = working_set("/sw/current/lib/libm.so.6")
    assert {"/sw/current", "/sw/rel/lib/libm.so.6", "/sw/rel/lib/libm.so.6.1"} <= set(held(found))
    assert "/sw/rel/lib/liba.so" in stubs(found)
    targets = {each.path: each.target for each in found.entries}
    assert targets["/sw/rel/lib/libm.so.6"] == "libm.so.6.1"


@pytest.mark.parametrize(
    "path", ["/sw/abs/used.py", "/elsewhere/../sw/./rel//py/used.py", "/elsewhere/back/../py/used.py"]
)
def test_paths_are_walked_as_the_kernel_walks_them(path: str) -> None:
    assert "/sw/rel/py/used.py" in held(working_set(path))


def test_a_look_up_that_failed_brings_the_directory_in_which_it_failed() -> None:
    found = working_set("/sw/rel/lib/no/such/file")
    assert "/sw/rel/lib" in held(found)
    assert not any("no" in each.path.split("/") for each in found.entries)
    assert found.gone == ["/sw/rel/lib/no/such/file"]


def test_nothing_outside_of_the_areas_is_held() -> None:
    found = working_set("/sw/away", "/elsewhere/data", "/etc/passwd")
    assert all(each.path.startswith("/sw") for each in found.entries)


def test_links_in_a_circle_end() -> None:
    found = working_set("/sw/a/x", tree={"/sw/a": "b", "/sw/b": "a"})
    assert held(found) == ["/sw", "/sw/a", "/sw/b"]


def test_what_is_excluded_becomes_a_stub_even_where_it_was_used() -> None:
    found = working_set("/sw/rel/py/used.py", "/sw/rel/bin/prog", exclude=("*.py", "/sw/rel/bin"))
    assert "/sw/rel/py/used.py" in stubs(found)
    assert "/sw/rel/bin" in stubs(found)
    assert "/sw/rel/bin/prog" not in {each.path for each in found.entries}


def test_an_unreadable_file_and_a_device_are_told_and_become_stubs() -> None:
    tree: dict[str, object] = {"/sw/a": PermissionError, "/sw/dev": 0, "/sw/b": b"1"}
    found = working_set("/sw/a", "/sw/dev", "/sw/b", tree=tree)
    assert [(each.path, each.fatal) for each in found.problems] == [("/sw/a", True), ("/sw/dev", False)]
    assert set(stubs(found)) == {"/sw/a", "/sw/dev"}


def test_a_directory_that_cannot_be_listed_becomes_a_stub() -> None:
    collector = Collector(ClosedFiles(SW, "/sw/rel/py"), ["/sw"])
    collector.use("/sw/rel/py/used.py", existed=True)
    found = collector.result()
    assert [each.path for each in found.problems] == ["/sw/rel/py"]
    assert stubs(found)["/sw/rel/py"] == STUBS + "/sw/rel/py"
    assert not any(each.path.startswith("/sw/rel/py/") for each in found.entries)


def test_a_whole_tree_needs_no_stubs_but_for_what_is_excluded() -> None:
    collector = Collector(FakeFiles(SW), ["/sw"], ["*.so"])
    collector.use_tree("/sw")
    found = collector.result()
    assert stubs(found) == {"/sw/rel/lib/liba.so": STUBS + "/sw/rel/lib/liba.so"}
    assert {path for path in SW if path.startswith("/sw/")} <= {each.path for each in found.entries}


def test_a_tree_seen_elsewhere_has_no_stubs_and_gets_its_parents() -> None:
    entries, problems = mapped_tree(FakeFiles(SW), "/sw/rel", "/opt/rel", ["/opt/rel/py"])
    paths = [each.path for each in with_parents(entries)]
    assert paths[:2] == ["/opt", "/opt/rel"]
    assert "/opt/rel/lib/liba.so" in paths
    assert "/opt/rel/py" not in paths
    assert not problems
    assert not any(each.stub for each in entries)
