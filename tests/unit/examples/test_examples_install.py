"""The approval files of the example applications."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import msgspec
import pytest

from tidemill.errors import ConfigError
from tidemill.examples import APPLICATIONS, HERE, install
from tidemill.model.application import Application, Mode
from tidemill.model.job import OutputKind
from tidemill.site.applications.catalogue import load_application


def digest_of(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def load(apps_dir: Path) -> dict[str, Application]:
    return {
        path.stem: msgspec.toml.decode(path.read_bytes(), type=Application)
        for path in sorted(apps_dir.glob("*.toml"))
    }


def test_every_application_is_written_with_absolute_paths_and_true_digests(tmp_path: Path) -> None:
    assert install(tmp_path / "apps") == sorted(APPLICATIONS)
    apps = load(tmp_path / "apps")
    assert sorted(apps) == sorted(APPLICATIONS)
    for name, app in apps.items():
        assert app.name == name
        assert app.executable == sys.executable
        assert app.digest == digest_of(Path(sys.executable))
        assert app.script is not None
        assert Path(app.script) == HERE / APPLICATIONS[name]
        assert app.script_digest == digest_of(Path(app.script))
        assert app.help


def test_merge_steps_name_applications_that_exist(tmp_path: Path) -> None:
    install(tmp_path)
    apps = load(tmp_path)
    merged = [output for app in apps.values() for output in app.outputs if output.kind is OutputKind.MERGE]
    assert [output.merge for output in merged] == ["hepmc-merge"]
    assert all(output.merge in apps for output in merged)


def test_defaults_of_parameters_keep_their_own_limits(tmp_path: Path) -> None:
    install(tmp_path)
    for app in load(tmp_path).values():
        for parameter in app.parameters.values():
            assert parameter.default is not None
            if parameter.choices is not None:
                assert parameter.default in parameter.choices
            if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
                assert parameter.min is not None
                assert parameter.max is not None
                assert parameter.min <= parameter.default <= parameter.max


def test_range_applications_are_marked_so(tmp_path: Path) -> None:
    install(tmp_path)
    modes = {name: app.mode for name, app in load(tmp_path).items()}
    assert [name for name, mode in modes.items() if mode is Mode.RANGE] == ["pi", "pythia8"]


def test_installing_again_replaces_the_files_and_leaves_no_others(tmp_path: Path) -> None:
    (tmp_path / "pi.toml").write_text("old")
    (tmp_path / "mine.toml").write_text("mine")
    install(tmp_path)
    install(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.toml" for name in [*APPLICATIONS, "mine"]}
    assert (tmp_path / "mine.toml").read_text() == "mine"


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"failed to read `/no/such/python` for its digest"):
        install(tmp_path, python="/no/such/python")


def test_paths_with_quotes_survive(tmp_path: Path) -> None:
    python = tmp_path / 'a "b" \\c'
    python.write_bytes(b"#!/bin/sh\n")
    install(tmp_path / "apps", python=str(python))
    assert load(tmp_path / "apps")["pi"].executable == str(python)


def test_a_site_accepts_every_example(tmp_path: Path) -> None:
    install(tmp_path)
    approved = [load_application(path) for path in sorted(tmp_path.glob("*.toml"))]
    assert [each.app.name for each in approved] == sorted(APPLICATIONS)
