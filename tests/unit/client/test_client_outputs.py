"""Single files out of delivered bundles: named so that none overwrites another, and never left half-written."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tidemill.cli.main import main
from tidemill.client.outputs import copy_members, copy_outputs, members, output_files
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


def directory(path: Path, job: int, output: str, *names: str) -> JobOutput:
    """A delivered directory with a file for each event, of this name and with its name as content."""
    path.mkdir(parents=True, exist_ok=True)
    files, listed = [], ""
    for event, name in enumerate(names):
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        listed += f"{sha256}  {name}\n"
        member = {"first": event, "count": 1}
        files.append(
            {"output": output, "file": name, "size_bytes": len(name), "sha256": sha256, "members": [member]}
        )
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    (path / f"manifest-{job}.json").write_text(json.dumps({"files": files}))
    row = OutputRow(
        name=output, url=f"{path.as_uri()}/", size_bytes=sum(map(len, names)),
        sha256=hashlib.sha256(listed.encode()).hexdigest(), events=f"0-{len(names) - 1}",
    )  # fmt: skip
    return JobOutput(job=job, output=row)


def test_files_of_a_directory_are_read_copied_and_opened_one_by_one(tmp_path: Path) -> None:
    found = directory(tmp_path / "out", 7, "hits", "a.txt", "b.txt")
    assert [(each.name, each.first, each.path) for each in output_files(7, found.output)] == [
        ("a.txt", 0, tmp_path / "out" / "a.txt"),
        ("b.txt", 1, tmp_path / "out" / "b.txt"),
    ]
    assert [each.data for each in members(7, found.output)] == [b"a.txt", b"b.txt"]
    copies = copy_outputs(7, found.output, tmp_path / "to")
    assert [path.read_text() for path in copies] == ["a.txt", "b.txt"]


def test_copies_keep_execute_bits(tmp_path: Path) -> None:
    found = directory(tmp_path / "out", 7, "prog", "prog.sh")
    (tmp_path / "out" / "prog.sh").chmod(0o755)
    (copied,) = copy_outputs(7, found.output, tmp_path / "to")
    assert copied.stat().st_mode & 0o100
    (member,) = copy_members([found], tmp_path / "member", name="prog.sh")
    assert member.stat().st_mode & 0o100
    with tarfile.open(tmp_path / "x.tar", "w:") as archive:
        for name, mode in (("x-000000000.sh", 0o755), ("x-000000001.sh", 0o644)):
            info = tarfile.TarInfo(name)
            info.mode = mode
            archive.addfile(info)
    row = OutputRow(name="x", url=str(tmp_path / "x.tar"), size_bytes=1, sha256="0" * 64)
    for name, bit in (("x-000000000.sh", 0o100), ("x-000000001.sh", 0)):
        (one,) = copy_members([JobOutput(job=1, output=row)], tmp_path / "to", name=name)
        assert one.stat().st_mode & 0o100 == bit


@pytest.mark.parametrize("name", ["../stolen", "/tmp/stolen", "sub/stolen", ".."])
def test_a_manifest_leads_to_no_place_outside_of_its_directory(tmp_path: Path, name: str) -> None:
    found = directory(tmp_path / "out", 7, "hits", "a.txt")
    sha256 = hashlib.sha256(b"x").hexdigest()
    manifest = tmp_path / "out" / "manifest-7.json"
    text = manifest.read_text().replace('"a.txt"', json.dumps(name))
    manifest.write_text(text.replace(hashlib.sha256(b"a.txt").hexdigest(), sha256))
    row = OutputRow(
        name="hits", url=found.output.url, size_bytes=1, events="0",
        sha256=hashlib.sha256(f"{sha256}  {name}\n".encode()).hexdigest(),
    )  # fmt: skip
    with pytest.raises(SiteError, match="lists other files of output `hits`"):
        copy_outputs(7, row, tmp_path / "to")


def test_a_manifest_that_was_changed_after_the_delivery_is_not_believed(tmp_path: Path) -> None:
    found = directory(tmp_path / "out", 7, "hits", "a.txt", "b.txt")
    directory(tmp_path / "out", 7, "hits", "a.txt", "c.txt")
    with pytest.raises(SiteError, match="lists other files of output `hits` than were delivered"):
        copy_outputs(7, found.output, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_files_of_two_directories_with_the_same_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    chosen = [directory(tmp_path / name, 7, name, "out.txt") for name in ("a", "b")]
    copies = copy_members(chosen, tmp_path / "to", event=0)
    assert [path.name for path in copies] == ["out.txt", "b-out.txt"]


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


def test_of_a_directory_to_which_files_still_come_those_that_are_there_are_read_and_verified(
    tmp_path: Path,
) -> None:
    found = directory(tmp_path / "out", 7, "hits", "a.txt", "b.txt", "c.txt", "d.txt")
    path = tmp_path / "out" / "manifest-7.json"
    manifest = json.loads(path.read_text())
    manifest["files"][0]["delivery"] = 1  # of an earlier delivery: an output of its own
    for each in manifest["files"][1:]:
        each["delivery"] = 0
    path.write_text(json.dumps(manifest))
    (tmp_path / "out" / "c.txt").unlink()  # listed, and about to appear
    row = OutputRow(name="hits", url=found.output.url, size_bytes=5, sha256="", events="1")
    assert [each.data for each in members(7, row)] == [b"b.txt", b"d.txt"]
    assert [each.name for each in copy_outputs(7, row, tmp_path / "to")] == ["b.txt", "d.txt"]
    (tmp_path / "out" / "b.txt").write_text("B.txt")
    with pytest.raises(SiteError, match="has checksum"):
        copy_outputs(7, row, tmp_path / "to")
