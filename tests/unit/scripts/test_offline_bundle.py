"""The file that installs Tidemill without a network: a real shell and a real Python, with small packages in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from bundle import write_bundle
from tests.worlds.home.bundles import pip_wheel

PROGRAM = "#!/bin/sh\necho tidemill 9.9.9\n"


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A wheel of version 9.9.9 with these programs."""
    info = f"{name}-9.9.9.dist-info"
    path = folder / f"{name}-9.9.9-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9.9\nProvides-Extra: tokens\n"
    if name == "tidemill":
        metadata += "Requires-Dist: tidemill-node\n"
    with zipfile.ZipFile(path, "w") as archive:
        for program, text in files.items():
            entry = zipfile.ZipInfo(f"{name}-9.9.9.data/scripts/{program}")
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels of ours"
    folder.mkdir()
    pip = pip_wheel(folder)
    own = [
        wheel(folder, "tidemill", {"tidemill": PROGRAM}),
        wheel(folder, "tidemill_node", {"tidemill-node": PROGRAM}),
    ]
    target = tmp_path / "tidemill-9.9.9-offline.sh"
    write_bundle([pip, *own], target, version="9.9.9", extras=["tokens"])
    return target


def sh(bundle: Path, *words: str, path: str = "", home: Path) -> subprocess.CompletedProcess[str]:
    """Run it as a user would, with this PATH before the system's programs."""
    env = {"PATH": path or os.environ["PATH"], "HOME": str(home)}
    return subprocess.run(["sh", bundle, *words], env=env, capture_output=True, text=True, timeout=100)


def test_it_installs_and_a_second_run_repairs_what_is_there(bundle: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = sh(bundle, "--python", sys.executable, home=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    top = tmp_path / ".local/share/tidemill"
    assert sorted(path.name for path in top.iterdir()) == ["9.9.9", "bin"]
    assert f"export PATH={top}/bin:$PATH" in done.stdout
    steps = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" ...")]
    assert steps == ["unpacking", "making", "installing", "starting"]
    program = subprocess.run([top / "bin/tidemill"], capture_output=True, text=True, check=True)
    assert program.stdout == "tidemill 9.9.9\n"


def test_a_second_run_with_the_first_on_path_takes_the_python_of_the_machine(
    bundle: Path, tmp_path: Path
) -> None:
    """A person has `bin` on PATH, as the script asked. It holds no `python`, which would hide theirs, and the
    environment that is replaced is not the one that makes the new one."""
    top = tmp_path / ".local/share/tidemill"
    assert sh(bundle, "--python", sys.executable, home=tmp_path).returncode == 0
    assert sorted(path.name for path in (top / "bin").iterdir()) == ["tidemill", "tidemill-node"]
    for own in (top / "bin", top / "9.9.9" / "bin"):  # the second as an earlier script had it
        done = sh(bundle, path=f"{own}:{os.environ['PATH']}", home=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    again = sh(bundle, "--python", str(top / "9.9.9/bin/python"), home=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert subprocess.run([top / "bin/tidemill"], check=False).returncode == 0


def test_a_run_that_fails_leaves_what_was_there(bundle: Path, tmp_path: Path) -> None:
    top = tmp_path / ".local/share/tidemill"
    assert sh(bundle, "--python", sys.executable, home=tmp_path).returncode == 0
    broken = tmp_path / "wheels of ours"
    wheel(broken, "tidemill_node", {"tidemill-node": "#!/bin/sh\nexit 1\n"})
    write_bundle(sorted(broken.iterdir()), bundle, version="9.9.9", extras=["tokens"])
    done = sh(bundle, "--python", sys.executable, home=tmp_path)
    assert (done.returncode, "tidemill-node does not start" in done.stderr) == (2, True), done.stderr
    assert sorted(path.name for path in top.iterdir()) == ["9.9.9", "bin"]
    program = subprocess.run([top / "bin/tidemill-node"], capture_output=True, text=True, check=True)
    assert program.stdout == "tidemill 9.9.9\n"


def test_a_damaged_file_is_refused_before_anything_is_written(bundle: Path, tmp_path: Path) -> None:
    content = bytearray(bundle.read_bytes())
    content[-100] ^= 1
    bundle.write_bytes(content)
    done = sh(bundle, "--python", sys.executable, home=tmp_path)
    assert done.returncode == 2
    assert f"error: {bundle} is damaged" in done.stderr
    assert not (tmp_path / ".local").exists()


def test_without_a_python_it_says_what_to_ask_for(bundle: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "sed", "tail", "sha256sum", "cut", "uname"):
        (programs / name).symlink_to(shutil.which(name) or name)
    old = programs / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # a Python that is too old: the question is answered with 1
    old.chmod(0o755)
    done = sh(bundle, path=str(programs), home=tmp_path)
    assert done.returncode == 2
    assert "error: no Python 3.11 or later on PATH" in done.stderr
    assert "module avail python" in done.stderr


def test_check_names_the_python_and_installs_nothing(bundle: Path, tmp_path: Path) -> None:
    done = sh(bundle, "--check", "--python", sys.executable, "--dir", "here", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("whole; would install Tidemill 9.9.9 into ")
    assert not Path("here").exists()


def test_help_is_the_head_of_the_script(bundle: Path, tmp_path: Path) -> None:
    done = sh(bundle, "--help", home=tmp_path)
    assert done.returncode == 0
    assert "--python PYTHON" in done.stdout
    assert "sh tidemill-9.9.9-offline.sh [--dir DIR]" in done.stdout
