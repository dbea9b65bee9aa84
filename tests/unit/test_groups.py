"""Which group a test belongs to, wherever its file is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.groups import group_of

ROOT = Path("/srv/tests/checkout")


@pytest.mark.parametrize(
    ("file", "group"),
    [
        (ROOT / "tests/unit/cli/test_a.py", "unit"),
        (ROOT / "tests/test_walls.py", ""),
        (ROOT / "extensions/odd/tests/local/test_a.py", "local"),
        (Path("/srv/tests/odd/tests/unit/test_a.py"), "unit"),
        (Path("/srv/tests/odd/test_a.py"), "odd"),
        (Path("/srv/odd/test_a.py"), ""),
    ],
)
def test_the_group_of_a_test_is_its_folder_below_tests(file: Path, group: str) -> None:
    """Before, each test of an extension that lay outside of the checkout failed in a fixture of all tests."""
    assert group_of(file, ROOT) == group
