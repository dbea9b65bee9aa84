"""Errors as those see them who write Python."""

from __future__ import annotations

import re
import tomllib
import traceback
from pathlib import Path

import pytest

from tidemill.errors import ConfigError, SiteError, install_hint

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
