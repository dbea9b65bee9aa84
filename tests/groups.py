"""The groups of tests: folders below `tests` of the core and of each extension (tests/README.md)."""

from __future__ import annotations

from pathlib import Path


def group_of(path: Path, root: Path) -> str:
    """The folder below `tests` that a test's file is in; empty where there is none. Tests of an extension that has a
    repository of its own may lie outside of this checkout."""
    is_here = path.is_relative_to(root)
    parts = (path.relative_to(root) if is_here else path).parent.parts
    places = [k for k, part in enumerate(parts[:-1]) if part == "tests"]
    return parts[(places[0] if is_here else places[-1]) + 1] if places else ""
