"""Make the notebook of reports from its source, a Python file with `# %%` marks; `--check` only says whether
it is current.

The notebook has no outputs: they would be one collaboration's year. `cells` is what the test runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "extensions" / "report" / "src" / "tidemill_report" / "notebook"
SOURCE, NOTEBOOK = FOLDER / "report.py", FOLDER / "report.ipynb"
MARK, MARKDOWN = "# %%", "# %% [markdown]"


def cells(text: str) -> list[tuple[str, str]]:
    """The cells of a source: `markdown` or `code`, and its text."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(MARK):
            found.append(("markdown" if line == MARKDOWN else "code", []))
        elif found:
            found[-1][1].append(line)
    return [
        (
            kind,
            "\n".join(
                line.removeprefix("#").removeprefix(" ") if kind == "markdown" else line for line in lines
            ).strip("\n"),
        )
        for kind, lines in found
    ]


def notebook(text: str) -> str:
    """The notebook of a source, in version 4.5 of the format (nbformat's schema)."""
    made = []
    for k, (kind, body) in enumerate(cells(text)):
        cell: dict[str, object] = {"cell_type": kind, "id": f"cell-{k}", "metadata": {}}
        cell["source"] = [line + "\n" for line in body.split("\n")[:-1]] + [body.split("\n")[-1]]
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write it, or say that it is not current."""
    wanted = notebook(SOURCE.read_text(encoding="utf-8"))
    if "--check" in sys.argv:
        if not NOTEBOOK.exists() or NOTEBOOK.read_text(encoding="utf-8") != wanted:
            print(f"{NOTEBOOK} is not what its source says: run `make gen`", file=sys.stderr)
            return 1
        return 0
    NOTEBOOK.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
