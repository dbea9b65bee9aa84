"""The strict one-slot pilot refuses every breach of the range protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.examples import HERE, try_ranges
from tidemill.examples.try_ranges import Trial, TrialOutcome


def run(tmp_path: Path, script: str, trial: Trial | None = None) -> TrialOutcome:
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    return try_ranges.run(["sh", "-c", script], work_dir, trial or Trial(events=3, size=3))


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo hello >&4; cat <&3", "not a line of the range protocol: `hello`"),
        ("echo ready >&4; echo ready >&4; cat <&3", "not a line of the range protocol: `ready`"),
        ("echo next >&4; cat <&3", "not a legal request here: `next`"),
        ("echo ready >&4; echo next 0 >&4; cat <&3", "not a legal request here: `next 0`"),
        ("echo ready >&4; echo done 0 1 >&4; cat <&3", "reports events that it does not have: `done 0 1`"),
        ("echo ready >&4; echo done 0 >&4; cat <&3", "not a legal report: `done 0`"),
        ("echo ready >&4; echo failed 0 x >&4; cat <&3", "fails an event that it does not have"),
        (
            "echo ready >&4; echo next >&4; read -r x <&3; echo done 0 4 >&4; cat <&3",
            "events that it does not have",
        ),
        (
            "echo ready >&4; echo next >&4; read -r x <&3; ln -s /etc/passwd o; echo done 0 3 o=o >&4; cat <&3",
            "`o` is not a file below the work directory",
        ),
        (
            "echo ready >&4; echo next >&4; read -r x <&3; echo done 0 3 o=../up >&4; cat <&3",
            "`../up` is not a file below the work directory",
        ),
        ("echo ready >&4; printf ne >&4", "ended in the middle of a line"),
        (
            "echo ready >&4; echo next >&4; read -r x <&3; echo done 0 1 >&4",
            "ended without finishing: was given 0-2",
        ),
        ("head -c 70000 /dev/zero >&4; cat <&3", "a line of more than 65536 bytes"),
    ],
)
def test_a_breach_is_named(tmp_path: Path, script: str, error: str) -> None:
    outcome = run(tmp_path, script)
    assert outcome.error is not None
    assert error in outcome.error


def test_a_payload_that_says_nothing_is_killed_in_time(tmp_path: Path) -> None:
    outcome = run(tmp_path, "exec sleep 100", Trial(timeout_s=0.2))
    assert outcome.error == "nothing more after 0.2 s"
    assert outcome.exit_status == -9


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(FileNotFoundError):
        try_ranges.run(["/no/such/payload"], tmp_path / "work", Trial())


def test_the_command_line_tells_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payload = str(HERE / "shell" / "payload.sh")
    options = [
        "--dir",
        str(tmp_path / "work"),
        "--keep",
        str(tmp_path / "kept"),
        "--events",
        "5",
        "--range",
        "2",
    ]
    assert try_ranges.main([*options, "--", "sh", payload]) == 0
    assert capsys.readouterr().out.startswith("5 events done in 3 ranges, 0 failed, ")
    assert (tmp_path / "kept" / "text").read_text() == "0 1\n1 2\n2 3\n3 4\n4 5\n"
    assert try_ranges.main(["--dir", str(tmp_path / "other"), "--", "sh", "-c", "echo what >&4"]) == 1
    assert "error: not a line of the range protocol: `what`" in capsys.readouterr().err
