"""Every example of docs/sdk runs as it stands, against one home; sdk.md names each, and the names of the SDK."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sdk_pages import interface, printed, real, shown
from tests.worlds.home.homes import Home, started_home

import tidemill
from tidemill import extensions

EXAMPLES = sorted((Path(__file__).parents[3] / "docs" / "sdk").glob("*.py"))
PAGE = (Path(__file__).parents[3] / "docs" / "sdk.md").read_text(encoding="utf-8")
PRINTED = {
    "chain": "lines: 4",
    "failures": "PARTIAL 3 done 1 failed",
    "files": "hits-000000002.txt",
    "follow": "COMPLETED, 2 events done",
    "inputs": "run-c with 42",
    "results": "3 squared is 9",
    "submit": "10 events",
}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_stands(home: Home, path: Path) -> None:
    assert PRINTED[path.stem] in printed(home, path)


def test_the_page_names_every_example_and_every_name_of_the_sdk() -> None:
    assert set(PRINTED) == {path.stem for path in EXAMPLES} == set(re.findall(r"\(sdk/(\w+)\.py\)", PAGE))
    core = set(tidemill.__all__) - extensions.names(extensions.SDK)
    assert [name for name in sorted(core) if f"`{name}" not in PAGE] == []


def test_the_page_shows_every_method_with_its_signature_and_every_field() -> None:
    assert {name for _, name, _ in shown(PAGE)} >= {
        "CampaignRow", "Client", "JobDetail", "JobRow", "Member", "OutputFile", "Submission", "progress",
    }  # fmt: skip
    for module, name, page in shown(PAGE):
        assert interface(page) == real(module, name), f"docs/sdk.md shows `{name}` of {module} as it is not"


def test_type_checkers_see_the_names_that_there_are() -> None:
    stub = (Path(tidemill.__file__).parent / "__init__.pyi").read_text()
    assert set(re.findall(r" as (\w+)$", stub, re.MULTILINE)) == {
        *tidemill.__all__,
        *extensions.names(extensions.SDK),
    }


def test_importing_tidemill_imports_nothing_else() -> None:
    code = (
        "import sys, tidemill; print([m for m in sys.modules if m.startswith('tidemill.') or m == 'msgspec'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
