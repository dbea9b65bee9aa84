"""The forked mode: initialise once, one copy per core, deaths cost one event."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from tests.worlds.home.processes import children_of

from tidemill.examples import try_ranges
from tidemill.examples.try_ranges import Trial, TrialOutcome


def run(tmp_path: Path, source: str, trial: Trial) -> TrialOutcome:
    script = tmp_path / "payload.py"
    script.write_text("import os, sys, time, signal\nimport tidemill_payload as tidemill\n" + source)
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    return try_ranges.run([sys.executable, str(script)], work_dir, trial)


def test_setup_runs_once_and_every_copy_works(tmp_path: Path) -> None:
    source = """
state = []
def setup():
    state.append(os.getpid())
    tidemill.log("setup")
def work(r):
    assert len(state) == 1 and state[0] == os.getppid()
    with open("text", "w") as out:
        out.write("%d\\n" % r.first)
    tidemill.log("copy %d" % os.getpid())
    while r.first < 3 and len(set(os.listdir(".."))) < 3:
        time.sleep(0.001)
    r.done(outputs={"text": "text"})
tidemill.forked(work, setup=setup)
"""
    outcome = run(tmp_path, source, Trial(events=60, size=1, cores=3))
    assert (outcome.error, outcome.exit_status) == (None, 0)
    assert outcome.joined("text") == b"".join(b"%d\n" % k for k in range(60))
    assert outcome.log.count("setup") == 1
    assert len(set(outcome.log)) >= 3  # setup and at least two copies
    assert outcome.lines[0] == "log setup"
    assert outcome.lines[1] == "ready"


def test_a_killed_copy_costs_the_event_that_it_was_at_and_no_other(tmp_path: Path) -> None:
    source = """
def work(r):
    for event in r.events():
        if event == 17:
            tidemill.log("pid %d" % os.getpid())
            time.sleep(60)
    r.done()
tidemill.forked(work)
"""

    def kill(_: int, line: str) -> None:
        if line.startswith("log pid "):
            os.kill(int(line.split()[2]), signal.SIGKILL)

    outcome = run(tmp_path, source, Trial(events=40, size=5, cores=3, watch=kill))
    assert (outcome.error, outcome.exit_status) == (None, 0)
    assert outcome.failed == {17: "the forked copy was killed by signal 9"}
    assert str(outcome.done()) == "0-16,18-39"


def test_pieces_that_a_dead_copy_had_reported_stay_done(tmp_path: Path) -> None:
    source = """
def work(r):
    for event in r.events():
        if event == 6:
            os._exit(3)
        r.done(event, 1)
tidemill.forked(work)
"""
    outcome = run(tmp_path, source, Trial(events=10, size=10, cores=1))
    assert (outcome.error, outcome.exit_status) == (None, 0)
    assert outcome.failed == {6: "the forked copy ended with exit status 3"}
    assert [(piece.first, piece.count) for piece in outcome.pieces] == [(e, 1) for e in range(10) if e != 6]


def test_an_exception_is_told_with_its_event(tmp_path: Path) -> None:
    source = """
def work(r):
    for event in r.events():
        if event in (0, 4, 9):
            raise ValueError("no event %d" % event)
    r.done()
tidemill.forked(work)
"""
    outcome = run(tmp_path, source, Trial(events=10, size=5, cores=2))
    assert (outcome.error, outcome.exit_status) == (None, 0)
    assert outcome.failed == {event: f"ValueError: no event {event}" for event in (0, 4, 9)}


def test_a_death_before_the_first_event_is_blamed_on_the_first(tmp_path: Path) -> None:
    source = """
def work(r):
    if r.first == 2:
        os._exit(1)
    r.done()
tidemill.forked(work)
"""
    outcome = run(tmp_path, source, Trial(events=6, size=2, cores=2))
    assert outcome.failed == {2: "the forked copy ended with exit status 1"}
    assert str(outcome.done()) == "0-1,3-5"


def test_copies_that_die_without_work_end_the_payload(tmp_path: Path) -> None:
    source = """
tidemill._copy_main = lambda *a: os._exit(5)  # as if the memory were used up
tidemill.forked(lambda r: r.done())
"""
    outcome = run(tmp_path, source, Trial(events=6, size=2, cores=1))
    assert outcome.exit_status == 1
    assert outcome.pieces == []


def test_by_hand_nothing_is_forked(tmp_path: Path) -> None:
    import subprocess

    library = tmp_path / "tidemill_payload.py"
    library.write_bytes(try_ranges.LIBRARY.read_bytes())
    source = "import os, tidemill_payload as t\nt.forked(lambda r: (print(os.getpid()), r.done()), size=1)"
    result = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env={"TIDEMILL_COUNT": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(set(result.stdout.split())) == 1
    assert result.stderr.count("done") == 3


@pytest.mark.parametrize("seed", range(4))
def test_every_event_is_settled_once_however_many_copies_are_killed(tmp_path: Path, seed: int) -> None:
    source = """
def work(r):
    for event in r.events():
        time.sleep(0.0005)
        r.done(event, 1)
tidemill.forked(work)
"""
    chance = random.Random(seed)
    killed = []

    def kill(parent: int, line: str) -> None:
        if line.startswith("done ") and chance.random() < 0.05:
            copies = children_of(parent)
            if copies:
                killed.append(chance.choice(copies))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    outcome = run(tmp_path, source, Trial(events=300, size=7, cores=3, watch=kill))
    assert (outcome.error, outcome.exit_status) == (None, 0)
    assert killed
    assert len(outcome.done()) + len(outcome.failed) == 300
    assert len(outcome.failed) <= len(set(killed))
    assert set(outcome.failed.values()) <= {"the forked copy was killed by signal 9"}
