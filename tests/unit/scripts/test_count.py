"""The script that compares two checkouts by one count."""

from __future__ import annotations

import subprocess
from pathlib import Path

import count
import pytest

from tidemill.cli.verbs import CORE

FILES = {
    "src/tidemill/cli/verbs.py": "GROUPS: dict = {'a': {'run': 1, 'up': 2}, 'b': {'wait': 3}}\n",
    "src/tidemill/site/x.py": "class A(Struct, frozen=True): ...\nclass B(A): ...\n",
    "extensions/stress/src/tidemill_stress/y.py": "@dataclass(frozen=True)\nclass C: ...\n",
    "extensions/stress/docs/stress.md": "# A test\n",
    "crates/lead/src/main.rs": "fn main() {}\n",
    "crates/lead/src/tests.rs": "\n\n",
    "docs/index.md": "| one two three |\n",
    "docs/trace.md": "one\n",
    "src/tidemill/site/README.md": "one two\n",
    "docs/decisions/0001-a.md": "one two\n",
}


def test_each_file_counts_once_in_its_part(tmp_path: Path) -> None:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    rows = {" ".join(line.split()) for line in count.report(tmp_path)}
    assert {
        "lines, core 3 in 2 files",
        "lines, extension stress 2 in 1 files",
        "lines, Rust product 1 in 1 files",
        "lines, tests 2 in 1 files",
        "records, core 2",
        "records, extensions 1",
        "files below 60 lines, core 2 (without __init__.py)",
        "verbs, core 3",
        "words of documents, core 5 in 1 pages (3 with a letter or digit)",
        "words of documents, extensions 4 in 2 pages (3 with a letter or digit)",
        "words of documents, rooms 2 in 1 pages (2 with a letter or digit)",
        "words of documents, decisions 2 in 1 pages (2 with a letter or digit)",
    } <= rows


@pytest.mark.parametrize("word", ["class A: ...", "class A(Other): ...", "class A(Protocol): ..."])
def test_other_classes_are_not_records(word: str) -> None:
    assert count.records([word]) == 0


def test_the_verbs_of_this_checkout_are_found() -> None:
    assert count.verbs(Path(count.__file__).parents[1]) == sum(map(len, CORE.values()))
