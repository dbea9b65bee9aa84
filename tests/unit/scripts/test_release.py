"""What `make release` refuses before it builds anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the script and a file, both committed."""
    place = tmp_path / "checkout"
    (place / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "release.sh", place / "scripts")
    (place / "product.py").write_text("VERSION = 1\n")
    git(place, "init", "--quiet")
    git(place, "add", ".")
    git(place, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "One")
    return place


def git(place: Path, *words: str) -> None:
    subprocess.run(["git", "-C", place, *words], check=True, capture_output=True)


def check(place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [place / "scripts" / "release.sh", "check"], capture_output=True, text=True, check=False
    )


def test_what_is_committed_is_released(checkout: Path) -> None:
    assert check(checkout).returncode == 0


@pytest.mark.parametrize("name", ["product.py", "forgotten.py"])
def test_what_no_commit_has_is_not(checkout: Path, name: str) -> None:
    (checkout / name).write_text("VERSION = 2\n")
    ended = check(checkout)
    assert ended.returncode == 2
    assert "the tree is not what its last commit says" in ended.stderr
    assert name in ended.stderr


def test_it_is_the_first_step_of_make_release() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nrelease:")[1].split("\n\n")[0].splitlines()
    steps = [line.strip().lstrip("@") for line in recipe[1:]]
    assert steps == [
        "scripts/release.sh check", "$(MAKE) dist", "scripts/release.sh check", "scripts/release.sh try dist",
    ]  # fmt: skip


def test_a_folder_without_wheels_is_refused(checkout: Path) -> None:
    ended = subprocess.run(
        [checkout / "scripts" / "release.sh", "try", checkout], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "there are no wheels" in ended.stderr
