"""Every example of docs/sdk runs as it stands, against one home; docs/sdk.md names each, and each name of the SDK."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import Home

import tidemill

EXAMPLES = sorted((Path(__file__).parents[3] / "docs" / "sdk").glob("*.py"))
PAGE = Path(__file__).parents[3] / "docs" / "sdk.md"
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
    it = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        it.start()
        yield it
    finally:
        it.end()


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


def test_the_page_names_every_example_and_every_name_of_the_sdk() -> None:
    page = PAGE.read_text()
    assert set(PRINTED) == {path.stem for path in EXAMPLES} == set(re.findall(r"\(sdk/(\w+)\.py\)", page))
    assert [name for name in tidemill.__all__ if f"`{name}" not in page] == []


def test_the_page_names_every_method_of_client_and_every_option_of_the_executor() -> None:
    page = PAGE.read_text()
    methods = [
        name
        for name, _ in inspect.getmembers(tidemill.Client, inspect.isfunction)
        if not name.startswith("_")
    ]
    from tidemill.client.executor import ExecutorOptions

    assert [name for name in [*methods, *ExecutorOptions.__annotations__] if f"`{name}" not in page] == []


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
