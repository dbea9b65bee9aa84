"""What pages on the SDK show of it: its examples run, its signatures and fields are those of the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from tests.worlds.home.homes import Home

from tidemill.client.progress import RichBar


def printed(home: Home, example: Path) -> str:
    """What an example prints, with this home's server."""
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=home.work, env=home.env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(page: str) -> list[tuple[str, str, Any]]:
    """Module, name, and the class or function of each block of a page that begins with a module."""
    found = []
    for module, code in re.findall(r"^```python\n# ([a-z_.]+)\n(.*?)^```$", page, re.M | re.S):
        names: dict[str, Any] = {"RichBar": RichBar}  # a default of `progress`
        exec(f"from __future__ import annotations\n{code}", names)
        found += [
            (module, each.name, names[each.name]) for each in ast.parse(code).body if hasattr(each, "name")
        ]
    return found


def interface(owner: Any) -> dict[str, Any]:
    """Signatures of functions and properties and types of fields: of a class, or of a function under its own name."""
    if inspect.isfunction(owner):
        return {owner.__name__: inspect.signature(owner)}
    is_record = issubclass(owner, msgspec.Struct)
    entries: dict[str, Any] = dict(inspect.get_annotations(owner))
    for name, value in vars(owner).items():
        if inspect.isfunction(value) and (not name.startswith("_") or (name == "__init__" and not is_record)):
            entries[name] = inspect.signature(value)
        elif isinstance(value, property) and value.fget is not None and not name.startswith("_"):
            entries[name] = ("property", inspect.signature(value.fget))
    return entries


def real(module: str, name: str) -> dict[str, Any]:
    """The interface of a class or function of a module."""
    return interface(getattr(importlib.import_module(module), name))
