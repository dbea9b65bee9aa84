"""On machines that cannot have a bare Debian, the script prints the reason and exits with 3; failures differ."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "bare_root.sh"
SYSTEM = ("bash", "cat", "dirname", "env", "grep", "head", "mkdir", "realpath", "rm", "sed", "tail")
SOURCES = "#!/bin/sh\n[ $1 != indextargets ] || echo bookworm http://mirror.example/debian/\n"

Make = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a root, as root, on a machine with few programs besides these, which are given by their text."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in SYSTEM:
        (programs / name).symlink_to(shutil.which(name) or name)

    def run(goal: str = "make", **texts: str) -> subprocess.CompletedProcess[str]:
        for name, text in {"id": "#!/bin/sh\necho 0\n", "unshare": "#!/bin/sh\n", **texts}.items():
            path = programs / name.replace("_", "-")
            path.write_text(text)
            path.chmod(0o755)
        return subprocess.run(
            [SCRIPT, goal, tmp_path / "root"],
            env={"PATH": str(programs), "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        ({"id": "#!/bin/sh\necho 1000\n", "apt_get": SOURCES}, "only root can make one"),
        ({}, "apt has no source of Debian bookworm here"),
        ({"apt_get": "#!/bin/sh\n"}, "apt has no source of Debian bookworm here"),
        (
            {"apt_get": SOURCES, "unshare": "#!/bin/sh\nexit 1\n"},
            "this machine refuses unshare of mounts and processes",
        ),
    ],
    ids=["no root", "no apt", "no source", "no unshare"],
)
def test_a_machine_that_cannot_have_one_says_why(make: Make, programs: dict[str, str], why: str) -> None:
    done = make(**programs)
    assert (done.returncode, done.stderr) == (3, f"bare_root: no bare Debian here: {why}\n")


def test_one_that_cannot_be_made_is_a_failure_with_the_last_words(make: Make, tmp_path: Path) -> None:
    done = make(apt_get=SOURCES, debootstrap="#!/bin/sh\necho E: the mirror is down\nexit 1\n")
    assert done.returncode == 1
    assert "E: the mirror is down" in done.stderr
    assert f"debootstrap failed: see {tmp_path}/root.log" in done.stderr
    assert not (tmp_path / "root.made").exists()


def test_debootstrap_is_installed_where_it_is_missing(make: Make, tmp_path: Path) -> None:
    done = make(apt_get=SOURCES + "[ $1 = indextargets ] || { echo E: no such package; exit 100; }\n")
    assert done.returncode == 1
    assert f"apt-get install debootstrap failed: see {tmp_path}/root.log" in done.stderr


@pytest.mark.parametrize("goal", ["make", "remove"])
def test_a_folder_that_holds_something_else_is_left_as_it_is(make: Make, tmp_path: Path, goal: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".thesis").write_text("all of it")
    done = make(goal, apt_get=SOURCES)
    assert (done.returncode, (tmp_path / "root" / ".thesis").read_text()) == (1, "all of it")
    assert done.stderr == (
        f"bare_root: {tmp_path}/root exists, but this script did not make it: name another folder\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "root"]


def test_what_was_begun_here_can_be_removed(make: Make, tmp_path: Path) -> None:
    debootstrap = "#!/bin/sh\nmkdir -p $4/etc && echo half > $4/etc/made; exit 1\n"
    assert make(apt_get=SOURCES, debootstrap=debootstrap).returncode == 1
    assert (tmp_path / "root" / "etc").exists()
    assert make("remove").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "root.log"]
