"""Single files out of delivered bundles: named so that none overwrites another, and never left half-written."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tidemill.cli.main import main
from tidemill.client.outputs import copy_members
from tidemill.errors import SiteError
from tidemill.wire.api import JobOutput, OutputRow


def bundle(path: Path, job: int, output: str, **files: str) -> JobOutput:
    """A delivered bundle of these members (name with `_` for `-`: content)."""
    with tarfile.open(path, "w:") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{name.replace('_', '-')}.txt")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
    row = OutputRow(name=output, url=str(path), size_bytes=path.stat().st_size, sha256="0" * 64)
    return JobOutput(job=job, output=row)


def test_the_same_file_of_several_jobs_is_copied_under_their_numbers(tmp_path: Path) -> None:
    chosen = [
        bundle(tmp_path / f"{job}.tar", job, "hits", hits_000000000=f"of {job}", hits_000000001="")
        for job in (7, 8)
    ]
    copies = copy_members(chosen, tmp_path / "to", event=0)
    told = {path.name: path.read_text() for path in copies}
    assert told == {"7-hits-000000000.txt": "of 7", "8-hits-000000000.txt": "of 8"}
    assert sorted(copies) == sorted((tmp_path / "to").iterdir())


def test_two_outputs_of_a_job_with_the_same_file_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    chosen = [bundle(tmp_path / f"{name}.tar", 7, name, hits_000000000=name) for name in ("a", "b")]
    copies = copy_members(chosen, tmp_path / "to", name="hits-000000000.txt")
    assert {path.name: path.read_text() for path in copies} == {
        "hits-000000000.txt": "a",
        "b-hits-000000000.txt": "b",
    }


def test_nothing_half_is_left_where_a_copy_fails(tmp_path: Path) -> None:
    chosen = [bundle(tmp_path / "a.tar", 7, "a", hits_000000000="x")]
    (tmp_path / "to" / "hits-000000000.txt" / "in the way").mkdir(parents=True)
    with pytest.raises(SiteError, match=r"failed to copy `.*a.tar` to `.*to`"):
        copy_members(chosen, tmp_path / "to", event=0)
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["hits-000000000.txt"]


def test_an_event_and_a_name_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["outputs", "get", "7", "--event", "1", "--file", "x"]) == 2
    assert "both --event and --file" in capsys.readouterr().err
