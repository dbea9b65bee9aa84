"""Every example of docs/sdk runs as it stands, against one home; sdk.md and calls.md name each, and the SDK's names."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worlds.home.homes import Home, started_home

import tidemill
from tidemill.client.progress import RichBar

EXAMPLES = sorted((Path(__file__).parents[3] / "docs" / "sdk").glob("*.py"))
PAGES = [Path(__file__).parents[3] / "docs" / f"{name}.md" for name in ("sdk", "calls")]
PRINTED = {
    "calls": "5050",
    "chain": "lines: 4",
    "failures": "PARTIAL 3 done 1 failed",
    "files": "hits-000000002.txt",
    "follow": "COMPLETED, 2 events done",
    "frames_of_jobs": "0 failures",
    "inputs": "run-c with 42",
    "results": "3 squared is 9",
    "submit": "10 events",
    "trouble": "killed by signal 6",
}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_stands(home: Home, path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=home.work,
        env=home.env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert PRINTED[path.stem] in done.stdout


def text_of_pages() -> str:
    return "\n".join(page.read_text() for page in PAGES)


def test_the_page_names_every_example_and_every_name_of_the_sdk() -> None:
    page = text_of_pages()
    assert set(PRINTED) == {path.stem for path in EXAMPLES} == set(re.findall(r"\(sdk/(\w+)\.py\)", page))
    assert [name for name in tidemill.__all__ if f"`{name}" not in page] == []


def test_the_page_names_every_option_of_the_executor() -> None:
    from tidemill.client.executor import ExecutorOptions

    page = text_of_pages()
    assert [name for name in ExecutorOptions.__annotations__ if f"`{name}" not in page] == []


def shown() -> list[tuple[str, str, Any]]:
    """Module, name, and the class or function that the page shows, of each block that begins with a module."""
    found = []
    for module, code in re.findall(r"^```python\n# ([a-z_.]+)\n(.*?)^```$", text_of_pages(), re.M | re.S):
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


def test_the_page_shows_every_method_with_its_signature_and_every_field() -> None:
    assert {name for _, name, _ in shown()} >= {
        "CallFuture", "CampaignRow", "Client", "Executor", "JobDetail", "JobRow", "Member", "OutputFile", "Submission",
    }  # fmt: skip
    for module, name, page in shown():
        real = interface(getattr(importlib.import_module(module), name))
        if name == "CallFuture":
            del real["__init__"]  # an executor makes it
        assert interface(page) == real, f"docs/sdk.md shows `{name}` of {module} as it is not"


def test_type_checkers_see_the_names_that_there_are() -> None:
    stub = (Path(tidemill.__file__).parent / "__init__.pyi").read_text()
    assert sorted(re.findall(r" as (\w+)$", stub, re.MULTILINE)) == sorted(tidemill.__all__)


def test_importing_tidemill_imports_nothing_else() -> None:
    code = (
        "import sys, tidemill; print([m for m in sys.modules if m.startswith('tidemill.') or m == 'msgspec'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
