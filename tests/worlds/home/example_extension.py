"""The extension that docs/extensions.md shows, installed into a folder as its wheel would be."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import tidemill

PAGE = Path(__file__).parents[3] / "docs" / "extensions.md"
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def files() -> dict[str, str]:
    """The files that the page shows, by name."""
    return dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))


def install_reach(folder: Path) -> None:
    """Put the extension there, with the metadata that its pyproject.toml asks for."""
    found = files()
    for name, content in found.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "tidemill_reach" / "__init__.py").touch()
    entries = tomllib.loads(found["pyproject.toml"])["project"]["entry-points"]
    about = folder / f"tidemill_reach-{tidemill.__version__}.dist-info"
    about.mkdir()
    lines = [
        line
        for group, named in entries.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in named.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
