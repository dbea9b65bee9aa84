"""The payload library against a strict pilot over real pipes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.examples import try_ranges
from tidemill.examples.try_ranges import Trial, TrialOutcome

LIBRARY = Path(try_ranges.LIBRARY)

ECHO = """
import tidemill_payload as tidemill
for r in tidemill.ranges():
    with open("out.txt", "w") as out:
        for event in r.events():
            out.write("%d %d\\n" % (event, r.seed_of(event)))
    r.done(outputs={"text": "out.txt"})
"""


def run(
    tmp_path: Path, source: str, trial: Trial | None = None, *, python: str = sys.executable
) -> TrialOutcome:
    script = tmp_path / "payload.py"
    script.write_text(source)
    work_dir = tmp_path / "work"
    work_dir.mkdir(exist_ok=True)
    return try_ranges.run([python, str(script)], work_dir, trial or Trial())


def expect_ok(outcome: TrialOutcome) -> None:
    assert (outcome.error, outcome.exit_status) == (None, 0)


def text_of(first: int, count: int, seed: int) -> bytes:
    return "".join(f"{first + k} {seed + k}\n" for k in range(count)).encode()


def test_library_has_syntax_of_python_3_6_and_imports_the_standard_library_only() -> None:
    tree = ast.parse(LIBRARY.read_text(), feature_version=(3, 6))
    modules = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= set(sys.stdlib_module_names)
    assert "dataclasses" not in modules  # 3.7


def test_each_event_is_done_once_with_its_seed_and_output(tmp_path: Path) -> None:
    outcome = run(tmp_path, ECHO, Trial(events=10, size=3, first=100, seed=7))
    expect_ok(outcome)
    assert str(outcome.done()) == "100-109"
    assert outcome.joined("text") == text_of(100, 10, 7)


def test_lines_that_arrive_byte_by_byte_are_understood(tmp_path: Path) -> None:
    outcome = run(tmp_path, ECHO, Trial(events=5, size=2, bytewise=True))
    expect_ok(outcome)
    assert len(outcome.done()) == 5


def test_output_is_out_of_reach_before_the_next_range_writes_the_same_name(tmp_path: Path) -> None:
    outcome = run(tmp_path, ECHO, Trial(events=6, size=2, keep_files=True))
    expect_ok(outcome)
    kept = sorted(path.name for path in (tmp_path / "work" / "tidemill-kept").iterdir())
    assert kept == ["0-text", "2-text", "4-text"]


def test_a_second_range_is_asked_for_before_the_first_is_done(tmp_path: Path) -> None:
    outcome = run(tmp_path, ECHO, Trial(events=6, size=2))
    assert outcome.lines[:3] == ["ready", "next", "next"]
    assert outcome.lines[3].startswith("done 0 2 text=")
    assert outcome.lines[4] == "next"


def test_size_is_told_to_the_pilot_and_limit_ends_the_loop(tmp_path: Path) -> None:
    source = """
import tidemill_payload as tidemill
for r in tidemill.ranges(size=1, limit=3):
    r.done()
"""
    outcome = run(tmp_path, source, Trial(events=100, size=10))
    expect_ok(outcome)
    assert outcome.ranges == [(0, 1), (1, 1), (2, 1)]
    assert outcome.lines[1] == "next 1"


def test_failed_events_are_told_and_the_rest_is_done_in_pieces(tmp_path: Path) -> None:
    source = """
import tidemill_payload as tidemill
for r in tidemill.ranges():
    for event in r.events():
        if event % 4 == 2:
            r.failed(event, "bad\\n event  %")
    r.done()
"""
    outcome = run(tmp_path, source, Trial(events=8, size=8))
    expect_ok(outcome)
    assert outcome.failed == {2: "bad event %", 6: "bad event %"}
    assert str(outcome.done()) == "0-1,3-5,7"


def test_strange_file_names_arrive(tmp_path: Path) -> None:
    source = """
import os, tidemill_payload as tidemill
os.mkdir("a b")
os.chdir("a b")
tidemill.ready()
for r in tidemill.ranges():
    name = os.fsdecode(b"x %\\n=\\xff\\xc3\\xa9")
    with open(name, "w") as out:
        out.write("x")
    r.done(r.first, r.count, {"o.1+2": name})
"""
    outcome = run(tmp_path, source, Trial(events=2, size=1))
    expect_ok(outcome)
    assert outcome.joined("o.1+2") == b"xx"
    assert "o.1+2=a%20b/tidemill-kept/0-o.1+2" in outcome.lines[3]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("pass", "events 0-2 of the range of events 0-2 were left without `done` or `failed`"),
        ("r.done(); r.done()", "every event of the range of events 0-2 is settled already"),
        ("r.done(0, 2); r.done(1, 2)", "events 1-2 are not unsettled events of the range of events 0-2"),
        ("r.done(2, 2)", "events 2-3 are not unsettled events"),
        ("r.done(1, 0)", "are not unsettled events"),
        ("r.done(1)", "takes both `first` and `count`"),
        ("r.failed(9, 'x')", "events 9 are not unsettled events"),
        ("r.done(outputs={'a': 'missing'})", "`missing` is not a regular file"),
        ("r.done(outputs={'a': '/etc/passwd'})", "is not below the work directory"),
        ("r.done(outputs={'a/b': 'x'})", "`a/b` is not a name of an output"),
        ("r.failed(1, 'x'); r.done(outputs={'a': __file__})", "a file cannot belong to pieces"),
        ("tidemill.inputs['no']", "no input `no`: TIDEMILL_INPUT_NO is not set"),
    ],
)
def test_misuse_gets_an_error_that_says_what_is_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], body: str, message: str
) -> None:
    source = f"import tidemill_payload as tidemill\nfor r in tidemill.ranges():\n    {body}\n"
    outcome = run(tmp_path, source, Trial(events=3, size=3))
    assert outcome.exit_status == 1
    assert message in capfd.readouterr().err


def test_parameters_inputs_logs_and_beats(tmp_path: Path) -> None:
    source = """
import os
import tidemill_payload as tidemill
assert tidemill.params() == {"mass": 91.2, "name": "Z"}
assert open(tidemill.inputs["my-file.txt"]).read() == "in"
assert open(tidemill.inputs["cards"]).read() == "cards"
tidemill.log("two\\n\\nlines")
tidemill.beat()
for r in tidemill.ranges():
    r.done()
"""
    (tmp_path / "elsewhere").write_text("in")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "cards").write_text("cards")
    trial = Trial(
        params={"mass": 91.2, "name": "Z"}, env={"TIDEMILL_INPUT_MY_FILE_TXT": str(tmp_path / "elsewhere")}
    )
    outcome = run(tmp_path, source, trial)
    expect_ok(outcome)
    assert outcome.log == ["two", "lines"]
    assert outcome.beats == 1


@pytest.mark.parametrize("answer", ["range 1 2", "range 0 0 1", "range -1 1 1", "stop"])
def test_an_answer_that_is_none_is_quoted(tmp_path: Path, answer: str) -> None:
    (tmp_path / "tidemill_payload.py").write_bytes(LIBRARY.read_bytes())
    read_end, write_end = os.pipe()
    os.write(write_end, f"{answer}\n".encode())
    source = "import tidemill_payload as t\nfor r in t.ranges(): pass\n"
    environment = {"PYTHONPATH": str(tmp_path), "TIDEMILL_IN": str(read_end), "TIDEMILL_OUT": "2"}
    result = subprocess.run(
        [sys.executable, "-c", source],
        pass_fds=[read_end],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(read_end)
    os.close(write_end)
    assert result.returncode == 1
    assert f"expected `range FIRST COUNT SEED` or `end` from the pilot, got `{answer}`" in result.stderr


def test_a_pilot_that_is_gone_is_an_error_not_a_silent_end(tmp_path: Path) -> None:
    (tmp_path / "tidemill_payload.py").write_bytes(LIBRARY.read_bytes())
    source = "import tidemill_payload as t\nfor r in t.ranges(): pass\n"
    environment = {"PYTHONPATH": str(tmp_path), "TIDEMILL_IN": "0", "TIDEMILL_OUT": "2"}
    result = subprocess.run(
        [sys.executable, "-c", source],
        stdin=subprocess.DEVNULL,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "the pilot closed the protocol without `end`" in result.stderr


def by_hand(tmp_path: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "tidemill_payload.py").write_bytes(LIBRARY.read_bytes())
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_by_hand_one_event_is_run_and_what_would_be_reported_is_said(tmp_path: Path) -> None:
    result = by_hand(tmp_path, ECHO)
    assert (result.returncode, result.stderr) == (0, "tidemill: done 0 1 text=out.txt\n")
    assert (tmp_path / "out.txt").read_text() == "0 1\n"


def test_by_hand_the_environment_names_the_events(tmp_path: Path) -> None:
    result = by_hand(tmp_path, ECHO, TIDEMILL_FIRST="20", TIDEMILL_COUNT="3", TIDEMILL_SEED="500")
    assert result.returncode == 0
    assert (tmp_path / "out.txt").read_bytes() == text_of(20, 3, 500)


def test_by_hand_a_failed_event_fails_the_command(tmp_path: Path) -> None:
    source = """
import tidemill_payload as tidemill
for r in tidemill.ranges(size=2):
    if r.first == 2:
        r.failed(2, "no")
    r.done()
"""
    result = by_hand(tmp_path, source, TIDEMILL_COUNT="5")
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "tidemill: done 0 2",
        "tidemill: failed 2 no",
        "tidemill: done 3 1",
        "tidemill: done 4 1",
        "tidemill: 1 of 5 events failed",
    ]


def test_by_hand_a_wrong_variable_is_named(tmp_path: Path) -> None:
    result = by_hand(tmp_path, ECHO, TIDEMILL_COUNT="ten")
    assert result.returncode == 1
    assert "environment variable TIDEMILL_COUNT is `ten`, not a whole number" in result.stderr


def test_library_runs_on_the_oldest_python_at_hand(tmp_path: Path) -> None:
    found = sorted(Path.home().glob(".pyenv/versions/3.6.*/bin/python3"))
    if not found:
        pytest.skip("no Python 3.6 on this machine; the syntax is checked above")
    for source in (ECHO, FORKED):
        outcome = run(tmp_path, source, Trial(events=7, size=2, cores=2), python=str(found[0]))
        expect_ok(outcome)
        assert outcome.joined("text") == text_of(0, 7, 1)


FORKED = """
import tidemill_payload as tidemill
def work(r):
    with open("out.txt", "w") as out:
        for event in r.events():
            out.write("%d %d\\n" % (event, r.seed_of(event)))
    r.done(outputs={"text": "out.txt"})
tidemill.forked(work)
"""
