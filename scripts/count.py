"""Count a checkout: lines, records, small files, verbs and settings of the core, pages and words of documents.

`python scripts/count.py [CHECKOUT]` reads the files that git lists there, so that one script compares two checkouts.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

SMALL = 60
#: pages that extensions own, as they are named in a checkout that still has them in docs/
OF_EXTENSIONS = frozenset(
    re.findall(
        r"[\w-]+",
        "accounting batch-gridengine calls core-hours edge cache-study caches caches-contents caches-figures images "
        "images-on-nodes integrations messages opportunity reports simulate stress trace",
    )
)
_SETTINGS = """
import sys
sys.path[:0] = ["src", "scripts"]
import draw_config
print(draw_config.total())
"""


def listed(root: Path) -> list[str]:
    """The files of a checkout that git knows, as paths relative to it."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    found = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted(path for path in found if path and (root / path).is_file())


def part_of_code(path: str) -> str | None:
    """Which part of the code a file belongs to: `core`, an extension, `Rust product` or `tests`; None for others."""
    parts = path.split("/")
    if path.endswith(".md"):
        return None
    if "tests" in parts or (parts[0] == "crates" and ("fuzz" in parts or parts[-1] == "tests.rs")):
        return "tests"
    if parts[0] == "crates":
        return "Rust product" if path.endswith(".rs") and "examples" not in parts else None
    if path.startswith("src/tidemill/"):
        return "core"
    return f"extension {parts[1]}" if parts[0] == "extensions" and "src" in parts else None


def part_of_documents(path: str) -> str | None:
    """Which part of the documents a page belongs to: `core`, `extensions`, `decisions` or `rooms`; None for others."""
    parts = path.split("/")
    if not path.endswith(".md"):
        return None
    if parts[0] in ("src", "crates", "tests"):
        return "rooms"
    if parts[0] == "extensions":
        return "extensions" if "docs" in parts or parts[-1] == "README.md" else None
    if parts[0] != "docs":
        return None
    if parts[1] == "decisions":
        return "decisions"
    return "extensions" if Path(path).stem in OF_EXTENSIONS else "core"


def classes(source: str) -> Iterator[tuple[str, set[str]]]:
    """Each class with the names that make it a record or not: its bases and decorators."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
            yield node.name, {ast.unparse(each).rpartition(".")[2] for each in [*node.bases, *decorators]}


def records(sources: list[str]) -> int:
    """How many classes are msgspec Structs (also by inheritance), NamedTuples or dataclasses."""
    found = [pair for source in sources for pair in classes(source)]
    known = {"Struct", "NamedTuple", "dataclass"}
    while True:
        more = {name for name, words in found if words & known} - known
        if not more:
            break
        known |= more
    return sum(bool(words & known) for _, words in found)


def verbs(root: Path) -> int:
    """The verbs in the core's table: the keys of the inner dictionaries of `CORE`, in older checkouts `GROUPS`."""
    tree = ast.parse((root / "src/tidemill/cli/verbs.py").read_text(encoding="utf-8"))
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if (
            isinstance(target, ast.Name)
            and target.id in ("CORE", "GROUPS")
            and isinstance(node, ast.AnnAssign)
        ):
            groups = node.value.values if isinstance(node.value, ast.Dict) else []
            return sum(len(group.keys) for group in groups if isinstance(group, ast.Dict))
    raise ValueError("src/tidemill/cli/verbs.py has no table `CORE` or `GROUPS`")


def settings(root: Path) -> str:
    """The settings of the core, as the checkout's own page of settings counts them, or why it does not."""
    done = subprocess.run(
        [sys.executable, "-c", _SETTINGS], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or f"not counted: {done.stderr.strip().splitlines()[-1]}"


def summed(
    root: Path, part: Callable[[str], str | None], amount: Callable[[str], int]
) -> dict[str, tuple[int, int]]:
    """For each part the number of its files, and the sum of an amount of their texts."""
    files: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for path in listed(root):
        name = part(path)
        if name:
            try:
                text = (root / path).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            files[name] += 1
            total[name] += amount(text)
    return {name: (files[name], total[name]) for name in sorted(files)}


def spoken(text: str) -> int:
    """The words that have a letter or a digit: without the bars of tables and other signs, which `wc -w` counts."""
    return sum(any(sign.isalnum() for sign in word) for word in text.split())


def report(root: Path) -> Iterator[str]:
    """The rows of the count, each with its name and number."""
    for name, (files, lines) in summed(root, part_of_code, lambda text: text.count("\n")).items():
        yield f"lines, {name:32} {lines:8} in {files} files"
    product = [path for path in listed(root) if path.endswith(".py")]
    for name in ("core", "extensions"):
        kept = [path for path in product if (part_of_code(path) or "").startswith(name.removesuffix("s"))]
        texts = [(root / path).read_text(encoding="utf-8") for path in kept]
        small = [
            path
            for path, text in zip(kept, texts, strict=True)
            if text.count("\n") < SMALL and not path.endswith("__init__.py")
        ]
        yield f"records, {name:30} {records(texts):8}"
        yield f"files below {SMALL} lines, {name:17} {len(small):8} (without __init__.py)"
    yield f"verbs, core {verbs(root):35}"
    yield f"settings, core {settings(root):>32}"
    plain = summed(root, part_of_documents, spoken)
    for name, (pages, words) in summed(root, part_of_documents, lambda text: len(text.split())).items():
        yield f"words of documents, {name:19} {words:8} in {pages} pages ({plain[name][1]} with a letter or digit)"


def main() -> int:
    """Print the count of the checkout that is given, or of this one."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    for line in report(root.resolve()):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
