"""Lists of replicas: the best line decides, and a malformed one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill_replicas.lists import ReplicaLists
from tidemill_replicas.settings import Replicas


def lists(folder: Path, text: str, **more: str) -> ReplicaLists:
    """Of one file, or with `more` of a directory that holds it, too."""
    where = folder / "lists" if more else folder
    where.mkdir(exist_ok=True)
    for name, content in {"list": text, **more}.items():
        (where / name).write_text(content)
    return ReplicaLists(Replicas(files=where if more else where / "list"))


def test_the_longest_text_before_the_star_decides(tmp_path: Path) -> None:
    made = lists(
        tmp_path,
        "# where copies are\n\nroot://o//* root://a//*\nroot://o//store/*.root root://b//* /data/*\n"
        "root://o//store/x.root root://c//one\nrucio:lab/* root://d//lab/*\n",
        more="root://p//* root://e//*\n",
    )

    assert made.copies("root://o//other/y") == ["root://a//other/y"]
    assert made.copies("root://o//store/y.root") == ["root://b//y", "/data/y"]
    assert made.copies("root://o//store/y.txt") == ["root://a//store/y.txt"]
    assert made.copies("root://o//store/x.root") == ["root://c//one"]
    assert made.copies("rucio:lab/f") == ["root://d//lab/f"]
    assert made.copies("root://p//q") == ["root://e//q"]
    assert made.copies("root://nowhere//x") == []


def test_a_list_that_changed_is_read_again(tmp_path: Path) -> None:
    made = lists(tmp_path, "root://o//* root://a//*\n")
    assert made.copies("root://o//x") == ["root://a//x"]
    (tmp_path / "list").write_text("root://o//* root://new//*\n")
    made._next_look_s = 0.0

    assert made.copies("root://o//x") == ["root://new//x"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("root://o//*", "no URL"),
        ("root://o//*/* root://a//*", "more than one"),
        ("root://o//x root://a//*", "does not have"),
        ("root://o//* relative/*", "not a URL"),
        ("root://o//* " + "root://a//* " * 21, "more than 20"),
    ],
)
def test_a_malformed_line_is_named_with_its_number(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"list:2: .*{why}"):
        lists(tmp_path, f"# a comment\n{line}\n").copies("root://o//x")


def test_a_list_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone"):
        ReplicaLists(Replicas(files=tmp_path / "gone")).copies("root://o//x")
