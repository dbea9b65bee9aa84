"""The examples that open far files: approval, what they read, and what they say of a bad file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill.examples import FAR, HERE, install_far
from tidemill.examples.far_copy.copy import summary

SKIM = [sys.executable, str(HERE / FAR["skim"])]
COPY = [sys.executable, str(HERE / FAR["far-copy"])]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_their_programs_are_approved_for_inputs_that_they_open(tmp_path: Path) -> None:
    assert install_far(tmp_path) == ["far-copy", "skim"]
    for name, script in FAR.items():
        app: dict[str, Any] = msgspec.toml.decode((tmp_path / f"{name}.toml").read_bytes())
        assert app["name"] == name
        assert Path(app["script"]) == HERE / script
        assert app["script_digest"].startswith("sha256:")
        assert app["opens"] == ["root", "roots"]
        assert app["arguments"][0] == "{input.events}"
        assert app["network"] is True


def test_a_site_accepts_them(tmp_path: Path) -> None:
    from tidemill.site.applications.catalogue import load_application

    install_far(tmp_path)
    approved = [load_application(path) for path in sorted(tmp_path.glob("*.toml"))]
    assert [each.app.name for each in approved] == sorted(FAR)


def test_a_skim_reads_a_tenth_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("uproot", reason="needs `tidemill[far]`")
    made = run([sys.executable, str(HERE / "skim" / "make.py"), "f.root", "--events", "120000"], tmp_path)
    assert made.returncode == 0, made.stderr

    done = run([*SKIM, "f.root"], tmp_path)

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "skim.json").read_text())
    assert json.loads(done.stdout) == found
    assert found["events"] == 120_000
    assert found["mass_gev"] == pytest.approx(91.19, abs=0.1)
    size = (tmp_path / "f.root").stat().st_size
    assert 120_000 * 80 < size < 120_000 * 80 * 1.05
    assert 120_000 * 8 <= found["bytes_read"] < size * 0.15


def test_the_same_seed_makes_the_same_events(tmp_path: Path) -> None:
    pytest.importorskip("uproot", reason="needs `tidemill[far]`")
    found = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        assert (
            run([sys.executable, str(HERE / "skim" / "make.py"), "f", "--events", "1000"], folder).returncode
            == 0
        )
        found.append(json.loads(run([*SKIM, "f"], folder).stdout))
    assert found[0]["mass_gev"] == found[1]["mass_gev"]


@pytest.mark.parametrize("command", [SKIM, COPY], ids=["skim", "far-copy"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, command: list[str]) -> None:
    done = run([*command, "no-such"], tmp_path)
    assert done.returncode == 1
    assert "no-such" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_copy_counts_events_across_pieces(tmp_path: Path) -> None:
    path = tmp_path / "e.hepmc"
    path.write_bytes(b"HepMC::Version 3\nE 0 1 2\nV E \nE 1 1 2\nE 2 1 2\n")
    for size in (1, 2, 3, 7, 1000):
        assert summary(path, piece_bytes=size)["events"] == 3


def test_a_copy_of_a_path_is_read_in_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"123456789")
    done = run([*COPY, "data"], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "far-copy.json").read_text())
    assert (found["bytes"], found["adler32"]) == (9, "091e01de")
    assert (tmp_path / "data").exists()
