"""The examples of the page on reports run as they stand, against one home; the page shows the frames as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sdk_pages import interface, printed, real, shown
from tests.worlds.home.homes import Home, started_home

pytest.importorskip("pyarrow")

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "sdk").glob("*.py"))
PAGE = (DOCS / "reports.md").read_text(encoding="utf-8")
PRINTED = {"frames_of_jobs": "0 failures"}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_stands(home: Home, path: Path) -> None:
    assert PRINTED[path.stem] in printed(home, path)


def test_the_page_names_every_example_and_shows_every_function_with_its_signature() -> None:
    assert set(PRINTED) == {path.stem for path in EXAMPLES} == set(re.findall(r"\(sdk/(\w+)\.py\)", PAGE))
    assert {name for _, name, _ in shown(PAGE)} == {"from_archive", "from_client", "samples"}
    for module, name, page in shown(PAGE):
        assert interface(page) == real(module, name), f"the page shows `{name}` of {module} as it is not"
