"""Names that `tidemill` exports: those of extensions where they are installed, else how to install them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.worlds.home.installed import add_extension, installed_only

import tidemill
from tidemill import extensions

ENTRY = "[tidemill.sdk]\nExecutor = calls_of_a_test:Pool\n"


def test_a_name_of_an_extension_that_is_missing_says_which_command_installs_it(tmp_path: Path) -> None:
    with installed_only(tmp_path), pytest.raises(ImportError) as raised:
        from tidemill import Executor  # noqa: F401
    assert str(raised.value) == (
        "`tidemill.Executor` needs the extension `calls`; install it: pip install 'tidemill[calls]'"
    )
    assert raised.value.__cause__ is None


def test_a_name_of_an_extension_is_what_its_entry_point_names(tmp_path: Path) -> None:
    add_extension(tmp_path, "calls", ENTRY, calls_of_a_test="class Pool: pass\n")
    with installed_only(tmp_path):
        assert tidemill.Executor.__name__ == "Pool"
        assert "Executor" in tidemill.__all__
        with pytest.raises(ImportError, match=r"`tidemill\.CallError` needs the extension `calls`"):
            _ = tidemill.CallError


def test_an_extension_of_another_version_is_named_with_its_version(tmp_path: Path) -> None:
    add_extension(tmp_path, "calls", ENTRY)
    folder = next(tmp_path.glob("*.dist-info"))
    folder.rename(tmp_path / "tidemill_calls-9.9.9.dist-info")
    with installed_only(tmp_path):
        assert "Executor" not in tidemill.__all__
        with pytest.raises(
            ImportError, match=r"its version is 9\.9\.9, and Tidemill's is .* install it again"
        ):
            _ = tidemill.Executor


def test_a_star_import_works_without_extensions(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    with installed_only(tmp_path):
        exec("from tidemill import *", names)
    assert "Client" in names
    assert names.keys().isdisjoint(extensions.KNOWN["calls"].sdk)


def test_names_of_extensions_are_those_that_the_core_knows() -> None:
    listed = set(vars(tidemill)["_OF_EXTENSIONS"])
    assert listed == {name for each in extensions.KNOWN.values() for name in each.sdk}
    assert set(dir(tidemill)) & listed == set(tidemill.__all__) & listed, "what cannot be read is not listed"
