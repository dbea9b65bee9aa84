"""Inputs as they are typed at `tidemill submit`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tidemill.cli.jobs.submit import _tell, inputs_of
from tidemill.client.client import Submission
from tidemill.errors import ConfigError
from tidemill.model.job import InputKind


def test_inputs_that_the_program_opens_are_named(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("root://o//a\n")
    found = inputs_of(
        ["geometry=root://o//g", "root://o//x.root"], [str(lines)], opened=["x.root", "lines.txt"]
    )

    assert [(each.name, each.kind, each.is_opened) for each in found] == [
        ("geometry", InputKind.SHARED, False),
        ("x.root", InputKind.SHARED, True),
        ("lines.txt", InputKind.EACH, True),
    ]
    assert found[0] == inputs_of(["geometry=root://o//g"], [])[0], "written as older sites read it"


def test_a_name_that_no_input_has_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ConfigError, match="`--open geometri` names no input") as error:
        inputs_of(["geometry=root://o//g"], [], opened=["geometri"])
    assert "`geometry`" in (error.value.hint or "")


def test_every_id_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(Namespace(json=False), Submission(campaign="c", jobs=list(range(1, 2_501)), repeated=False))
    assert capsys.readouterr().out.split() == [str(each) for each in range(1, 2_501)]
