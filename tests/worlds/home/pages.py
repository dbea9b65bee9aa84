"""The commands of a page of docs/, as a reader copies them.

A page says by the words after its fences what a test does with a block: `sh` is run, in order, in one directory;
`LANGUAGE title="FILE"` is written to that file; `text` after `sh` is what the reader sees: each of its lines, with
`...` for anything, has to be a line of what the block before printed. Other blocks are only shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
EXTENSIONS = sorted(DOCS.parent.glob("extensions/*/docs/*.md"))
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r' title="([^"]+)"')


@dataclass
class Step:
    """Commands, the files that are there before, and the lines that the page shows of their output."""

    commands: str
    files: dict[str, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)


def steps(page: str) -> list[Step]:
    """The steps of `docs/PAGE.md`, or of an extension's page of that name.

    Raises ValueError if the page shows output of nothing.
    """
    found: list[Step] = []
    files: dict[str, str] = {}
    path = next((each for each in EXTENSIONS if each.stem == page), DOCS / f"{page}.md")
    for language, words, content in FENCE.findall(path.read_text(encoding="utf-8")):
        title = TITLE.match(words)
        if title:
            files[title[1]] = content
        elif language == "sh":
            found.append(Step(content, files))
            files = {}
        elif language == "text":
            if not found:
                raise ValueError(f"{path} shows output before any command")
            found[-1].shown = content.splitlines()
    return found


def missing(shown: list[str], printed: str) -> list[str]:
    """The lines of a page that the output does not have."""
    lines = [line.rstrip() for line in printed.splitlines()]
    patterns = {
        line: re.compile(".*".join(re.escape(part) for part in line.rstrip().split("...")))
        for line in shown
        if line.strip(" .")
    }
    return [line for line, pattern in patterns.items() if not any(pattern.fullmatch(each) for each in lines)]
