"""Inputs as they are typed at `tidemill submit`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import cast

import pytest

from tidemill.cli.command.lines import check_lists
from tidemill.cli.jobs.submit import _report_submitted, _submit_file, inputs_of
from tidemill.client.client import Client, Submission
from tidemill.errors import ConfigError
from tidemill.model.job import Input, InputKind, JobSpec


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


@pytest.mark.parametrize("start", ["", "file://"])
def test_a_list_that_is_not_utf_8_is_refused_with_file_line_and_byte(tmp_path: Path, start: str) -> None:
    """Its job failed when the site read the list."""
    (tmp_path / "list").write_bytes(b"ok\ncaf\xe9\n")
    url = f"{start}{tmp_path}/list"
    said = r"list`, line 2: byte 0xe9 is not valid UTF-8"
    with pytest.raises(ConfigError, match=said):
        inputs_of([], [url])

    job = tmp_path / "job.toml"
    job.write_text(
        f"""[[job]]
        app = "sim"
        [[job]]
        app = "sim"
        inputs = [{{ name = "lines", url = "{url}", kind = "each" }}]"""
    )
    args = Namespace(file=job, campaign=None)
    with pytest.raises(ConfigError, match=r"job.toml: `job\[1\]`: input `lines`: .*" + said) as error:
        _submit_file(cast("Client", None), args)  # nothing is asked before
    assert "iconv" in (error.value.hint or "")


def test_lists_that_are_elsewhere_are_not_looked_at(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    inputs = [
        Input(name="shared", url=str(binary)),
        Input(name="gone", url=f"{tmp_path}/gone", kind=InputKind.EACH),
        Input(name="far", url="https://h.example.org/list", kind=InputKind.EACH),
        Input(name="job", url="job:7/list", kind=InputKind.EACH),
        Input(name="wrong", url="file://elsewhere/list", kind=InputKind.EACH),
    ]
    check_lists([JobSpec(app="sim", inputs=inputs)], source=Path("job.toml"))


def test_every_id_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    _report_submitted(
        Namespace(json=False), Submission(campaign="c", jobs=list(range(1, 2_501)), repeated=False)
    )
    assert capsys.readouterr().out.split() == [str(each) for each in range(1, 2_501)]
