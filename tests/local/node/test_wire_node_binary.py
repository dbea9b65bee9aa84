"""The binary itself: its options and exit codes, how little it looks up, that it needs no library."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tidemill.node.binary import find_binary


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(find_binary()), *arguments], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("arguments", [["--help"], ["lead", "--help"], ["run", "--help"]])
def test_help_is_data_and_exits_0(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: tidemill-node" in done.stdout or "usage" in done.stdout.lower()


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["lead"], ["lead", "--nonsense"], ["lead", "--fleet"], ["floor", "0", "1", "x"]],
)
def test_wrong_command_line_exits_2_and_prints_nothing_as_data(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tidemill-node")


def test_version_needs_at_most_five_look_ups() -> None:
    strace = shutil.which("strace")
    assert strace is not None, "strace is one of the packages that `make setup` installs"
    done = subprocess.run(
        [strace, "-e", "trace=%file", str(find_binary()), "--version"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert re.fullmatch(r"tidemill-node \d+\.\d+\.\d+\n", done.stdout)
    calls = [line for line in done.stderr.splitlines() if not line.startswith(("+++", "---"))]
    assert len(calls) <= 5, calls


def test_floor_counts_programs_per_second_and_names_one_that_fails(tmp_path: Path) -> None:
    true = shutil.which("true")
    assert true is not None
    assert float(run("floor", "40", "2", true).stdout) > 1
    missing = run("floor", "4", "1", str(tmp_path / "none"))
    assert missing.returncode == 3
    assert str(tmp_path / "none") in missing.stderr
