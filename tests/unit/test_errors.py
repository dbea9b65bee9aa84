"""Errors as those see them who write Python."""

from __future__ import annotations

import re
import tomllib
import traceback
from pathlib import Path

import pytest

from tidemill.errors import ConfigError, SiteError, did_you_mean, install_hint

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def test_a_traceback_shows_what_to_do() -> None:
    text = "".join(traceback.format_exception(SiteError("no data frames", hint="`pip install pyarrow`")))
    assert text.endswith("tidemill.errors.SiteError: no data frames\nhint: `pip install pyarrow`\n")
    assert not hasattr(ConfigError("wrong"), "__notes__")


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_hint_for_a_missing_extra_names_a_section_that_lists_it(extra: str) -> None:
    named = re.search(r'"(.*)", (\w+)$', install_hint(extra))
    assert named is not None
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {named[1]}\n")
    section = page.partition(f"\n## {named[2]}\n")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert f"`{extra}`" in ", ".join(first_cells).split(", ")


def test_a_hint_names_the_nearest_name_else_as_many_as_it_may() -> None:
    names = [f"run-{number}" for number in range(106)]
    assert did_you_mean("run-1", names) == "did you mean `run-1`?"
    assert did_you_mean("xyz", names[:2]) == "known: `run-0`, `run-1`"
    assert did_you_mean("xyz", names, most=2) == "known: `run-0`, `run-1`, 104 more"
    assert did_you_mean("xyz", names[:2], most=2) == "known: `run-0`, `run-1`"
