"""The script of an allocation, run by a real shell."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.worlds.home.processes import said_of, tree

from tidemill import clock
from tidemill.batch.contract import BatchSubmission, Ending
from tidemill.batch.script import ScriptDialect, compose, node_text
from tidemill.batch.submissions import Records
from tidemill.model.state import AllocationState

NAME = "tm-here-e1-5"
TIMEOUT_S = 20.0


def start(folder: Path, script: str, **changes: Any) -> subprocess.Popen[bytes]:
    values: dict[str, Any] = {
        "name": NAME, "command": ["/bin/sh", "-c", script, "{allocation}", "it's {allocation}!"], "nodes": 1,
        "cores": 1, "memory_mb": 0, "walltime_s": 600, "environment": {"ODD": "a 'b' $c"},
    }  # fmt: skip
    submission = BatchSubmission(**{**values, **changes})
    records = Records(folder / "it's here")
    dialect = ScriptDialect(directory=records.directory, index="INDEX")
    path = records.prepare(submission.name, compose(submission, dialect), node_text(submission))
    return subprocess.Popen(["/bin/sh", path], env={"PATH": "/usr/bin:/bin", "INDEX": "3"})


def descendants(pid: int, command: str) -> list[int]:
    """Processes below this one with these words."""
    return [
        each for each in tree(pid)[1:] if said_of(each, "cmdline").rstrip("\0").replace("\0", " ") == command
    ]


def wait_for(what: Callable[[], bool]) -> None:
    deadline_s = clock.monotonic_s() + TIMEOUT_S
    while not what():
        assert clock.monotonic_s() < deadline_s
        clock.sleep_s(0.01)


def ending(folder: Path, name: str = NAME) -> tuple[AllocationState, Ending, str]:
    status = Records(folder / "it's here").ending(name, "7")
    assert status is not None
    return status.state, status.ending, status.output_tail


def output(folder: Path, name: str = NAME) -> str:
    return Records(folder / "it's here").output(name).read_text()


def test_words_and_environment_come_as_they_are(tmp_path: Path) -> None:
    with start(tmp_path, 'printf "%s|" "$0" "$1" "$ODD" "$TIDEMILL_ALLOCATION"') as process:
        assert process.wait(TIMEOUT_S) == 0
    assert output(tmp_path) == f"{NAME}|it's {NAME}!|a 'b' $c|{NAME}|"
    assert ending(tmp_path)[:2] == (AllocationState.COMPLETED, Ending.DONE)


def test_element_of_an_array_has_its_own_name_and_files(tmp_path: Path) -> None:
    with start(tmp_path, 'echo "$0"; exit 4', count=5) as process:
        assert process.wait(TIMEOUT_S) == 4
    assert output(tmp_path, f"{NAME}.3") == f"{NAME}.3\n"
    assert ending(tmp_path, f"{NAME}.3") == (AllocationState.FAILED, Ending.FAILED, f"{NAME}.3")


def test_wide_element_of_an_array_keeps_its_statuses_apart(tmp_path: Path) -> None:
    with start(tmp_path, 'echo "$0 $TIDEMILL_RANK"; exit $TIDEMILL_RANK', count=5, nodes=2) as process:
        assert process.wait(TIMEOUT_S) == 1
    assert sorted(output(tmp_path, f"{NAME}.3").splitlines()) == [f"{NAME}.3 0", f"{NAME}.3 1"]


def test_signal_of_the_batch_system_becomes_term(tmp_path: Path) -> None:
    script = f"trap 'sleep 0.1; echo term; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.02; done"
    for number, sent in enumerate((signal.SIGUSR2, signal.SIGTERM)):
        (tmp_path / "up").unlink(missing_ok=True)
        with start(tmp_path, script, name=f"tm-here-e1-{number}") as process:
            wait_for(lambda: (tmp_path / "up").exists())
            process.send_signal(sent)
            assert process.wait(TIMEOUT_S) == 0
        assert output(tmp_path, f"tm-here-e1-{number}") == "term\n"
        assert ending(tmp_path, f"tm-here-e1-{number}")[1] is Ending.CANCELED


def test_an_end_whose_signal_reaches_the_timer_first_is_not_the_limit(tmp_path: Path) -> None:
    script = f"trap 'echo term; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.02; done"
    with start(tmp_path, script, walltime_s=600) as process:
        wait_for(lambda: (tmp_path / "up").exists() and bool(descendants(process.pid, "sleep 595")))
        (nap,) = descendants(process.pid, "sleep 595")
        os.kill(nap, signal.SIGTERM)
        wait_for(lambda: not descendants(process.pid, "sleep 595"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    assert ending(tmp_path)[1] is Ending.CANCELED


def test_usr1_and_then_term_come_before_the_limit(tmp_path: Path) -> None:
    script = "trap 'echo usr1' USR1; trap 'echo term; exit 0' TERM; while :; do sleep 0.02; done"
    with start(tmp_path, script, walltime_s=4, signal_before_s=3) as process:
        assert process.wait(TIMEOUT_S) == 0
    assert output(tmp_path) == "usr1\nterm\n"
    assert ending(tmp_path)[:2] == (AllocationState.COMPLETED, Ending.WALLTIME)


def test_late_start_runs_nothing(tmp_path: Path) -> None:
    with start(tmp_path, "echo ran", start_by_s=clock.now_s() - 10.0) as process:
        assert process.wait(TIMEOUT_S) == 0
    assert output(tmp_path) == ""
    assert ending(tmp_path)[:2] == (AllocationState.CANCELED, Ending.DEADLINE)
