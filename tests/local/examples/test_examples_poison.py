"""The test payload `poison` does what other tests rely on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.examples import try_ranges
from tidemill.examples.try_ranges import Trial, TrialOutcome

POISON = Path(__file__).parents[2] / "payloads" / "poison.py"


def in_ranges(tmp_path: Path, **params: object) -> TrialOutcome:
    (tmp_path / "work").mkdir()
    trial = Trial(events=12, size=5, seed=50, params=params)
    return try_ranges.run([sys.executable, str(POISON)], tmp_path / "work", trial)


def in_command(tmp_path: Path, *arguments: str) -> int:
    return subprocess.run(
        [sys.executable, str(POISON), *arguments],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        env={},
        check=False,
    ).returncode


def test_reported_events_fail_alone_and_the_others_have_their_output(tmp_path: Path) -> None:
    outcome = in_ranges(tmp_path, bad="0,6,7,11")
    assert (outcome.error, outcome.exit_status) == (None, 0)
    assert outcome.failed == dict.fromkeys([0, 6, 7, 11], "poison")
    good = [event for event in range(12) if event not in (0, 6, 7, 11)]
    assert outcome.joined("lines").decode() == "".join(f"{event} {50 + event}\n" for event in good)


@pytest.mark.parametrize(
    ("how", "status"), [("exit", 3), ("kill", -signal.SIGKILL), ("segv", -signal.SIGSEGV)]
)
def test_ends_are_as_ordered(tmp_path: Path, how: str, status: int) -> None:
    assert in_ranges(tmp_path, bad="7", how=how).exit_status == status
    assert in_command(tmp_path, "5", "5", "55", "7", how) == status


def test_a_command_without_bad_events_writes_a_line_for_each(tmp_path: Path) -> None:
    assert in_command(tmp_path, "5", "3", "55", "1,9", "exit") == 0
    assert (tmp_path / "lines.txt").read_text() == "5 55\n6 56\n7 57\n"
