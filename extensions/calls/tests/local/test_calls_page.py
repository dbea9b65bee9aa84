"""The examples of the page on calls run as they stand, against one home; the page shows the Executor as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sdk_pages import interface, printed, real, shown
from tests.worlds.home.homes import Home, started_home

from tidemill import extensions
from tidemill_calls.executor import ExecutorOptions

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "sdk").glob("*.py"))
PAGE = (DOCS / "calls.md").read_text(encoding="utf-8")
PRINTED = {"calls": "5050", "trouble": "killed by signal 6"}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_stands(home: Home, path: Path) -> None:
    assert PRINTED[path.stem] in printed(home, path)


def test_the_page_names_every_example_option_and_name_that_tidemill_exports() -> None:
    assert set(PRINTED) == {path.stem for path in EXAMPLES} == set(re.findall(r"\(sdk/(\w+)\.py\)", PAGE))
    names = [*ExecutorOptions.__annotations__, *extensions.KNOWN["calls"].sdk]
    assert [name for name in names if f"`{name}" not in PAGE] == []


def test_the_page_shows_every_method_with_its_signature() -> None:
    assert {name for _, name, _ in shown(PAGE)} == {"CallFuture", "Executor"}
    for module, name, page in shown(PAGE):
        wanted = real(module, name)
        if name == "CallFuture":
            del wanted["__init__"]  # an executor makes it
        assert interface(page) == wanted, f"the page shows `{name}` of {module} as it is not"
