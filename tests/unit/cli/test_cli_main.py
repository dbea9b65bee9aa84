"""The command line as such: verbs, options, errors, exit codes, documentation. Runs the real `main`."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.verb_help import check_help

from tidemill import extensions
from tidemill.cli.main import VERBS, main
from tidemill.cli.reference import reference
from tidemill.cli.verbs import CORE

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)


def test_help_imports_little_and_nothing_heavy() -> None:
    code = (
        "import sys; before = {*sys.modules}; from tidemill.cli.main import main; main(['--help']); "
        "print(*sys.modules.keys() - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    of_extensions = {name for name in loaded if name.startswith("tidemill_")}
    assert len(loaded - of_extensions) < 60  # 59 with Python 3.11, imported in 50 ms
    assert len(of_extensions) <= 2 * len(extensions.installed())  # the package and its table of verbs
    assert not loaded & {"msgspec", "rich", "starlette", "uvicorn", "tidemill.client.client", "asyncio"}


def test_every_command_that_is_written_can_be_called() -> None:
    folder = ROOT / "src" / "tidemill" / "cli"
    written: set[str] = set()
    for path in sorted(folder.glob("*/*.py")):
        module = importlib.import_module(f"tidemill.cli.{path.parent.name}.{path.stem}")
        written |= getattr(module, "COMMANDS", {}).keys()
    assert written == {verb for group in CORE.values() for verb in group}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_and_an_about_for_each_option(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_help(verb, capsys)


def test_the_documentation_is_what_the_parsers_say() -> None:
    told = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert told == reference(), "run: python -m tidemill.cli.reference > docs/cli.md"
    assert "%%" not in told, "argparse's way to write one is not the reader's"


@pytest.mark.parametrize(
    ("words", "said", "hinted"),
    [
        (["sumbit"], "has no verb `sumbit`", "did you mean `tidemill submit`?"),
        (["campaigns"], "has no verb `campaigns`", "did you mean `tidemill top`?"),
        (["status"], "has no verb `status`", "`tidemill site status`"),
        (["job", "shwo", "1"], "has no verb `job shwo`", "did you mean `tidemill job show`?"),
        (["job"], "needs one more word", "`job cancel`"),
        (["--home", "x", "jobs"], "`--home` comes before the verb", "options follow the verb"),
        (["jobs", "--stat", "x"], "has no option `--stat`", "did you mean `--state`?"),
        (["jobs", "extra"], "has no use for `extra`", "--help"),
        (["job", "cancel", "0"], "`0`: jobs are numbered from 1", ""),
        (["run"], "needs a command", "tidemill run"),
        (["run", "--events", "0", "--", "true"], "`0` is less than 1", "--help"),
        (["run", "--retries", "-1", "--", "true"], "`-1`: it must be 0 or more", "--help"),
        (["run", "--failed-max", "-1", "--", "true"], "`-1`: it must be 0 or more", "--help"),
        (["run", "--resume", "x", "--no-keep-stdout"], "does not take `--no-keep-stdout`", "--memory"),
        (["run", "--resume", "x", "--keep-stdout"], "does not take `--keep-stdout`", "--memory"),
        (["run", ""], "the command is empty", "tidemill run -- CMD"),
        (
            ["run", "--sweep", "a=1,\udcff", "--", "echo", "{a}"],
            "--sweep a: value 2, `\\xff`, is not valid UTF-8",
            "",
        ),
        (["run", "--name", "s\udcff", "--", "true"], "`s\\xff` is not a valid name", "letters"),
        (["run", "--env", "=x", "--", "true"], "--env `=x`: the name is missing", "NAME=VALUE"),
        (
            ["run", "--each", "/dev/null", "--", "true"],
            "`/dev/null` is empty: it needs a line for each event",
            "",
        ),
        (["run", "--memory", "1G..", "--", "true"], "`1G..` has no maximum; write `1G..4G`", "--help"),
        (["run", "--memory", "..8G", "--", "true"], "`..8G` has no first value; write `2G..8G`", "--help"),
        (["run", "--wall", "..", "--", "true"], "`..` has no first value; write `2G..8G`", "--help"),
        (["run", "--wall", "soon", "--", "true"], "`soon` is not a duration", "--help"),
        (["run", "--", "no-such-program-at-all"], "program `no-such-program-at-all` does not exist", "PATH"),
        (["run", "--", "echo", "{line}"], "uses {line}", ""),
        (["run", "--output", "/etc/x", "--", "true"], "outside the command's work directory", "relative"),
        (
            ["run", "--env", "NOT_SET_ANYWHERE", "--", "true"],
            "the variable is not set here",
            "NOT_SET_ANYWHERE=",
        ),
        (["run", "--input", "no.txt", "--", "true"], "input `no.txt` does not exist", "looked for"),
        (["run", "--name", "a b", "--", "true"], "`a b` is not a valid name", "letters"),
        (["submit"], "needs a job file, or --app", ""),
        (["run", "--wall", "30", "--", "true"], "`30s` for seconds, `30m` for minutes", "--help"),
        (["submit", "--app", "x", "--wall", "30"], "`30` has no unit", "--help"),
        (["wait", "--timeout", "30", "x"], "`30` has no unit", "--help"),
        (["jobs"], "no server is named", "tidemill up --detach"),
        (["jobs", "--state", "RUNING"], "is not a state", "did you mean `RUNNING`?"),
        (["job", "cancel"], "needs a job or a campaign", "tidemill job cancel zmumu"),
        (["outputs", "ls"], "needs a job or a campaign", ""),
        (["site", "harm", "--since", "yore"], "neither a time", "--help"),
    ],
)
def test_wrong_usage_is_code_2_and_names_what_is_nearest(
    words: list[str], said: str, hinted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert said in captured.err
    assert hinted in captured.err


def test_a_server_that_does_not_answer_is_code_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["jobs", "--server", f"unix:{tmp_path}/none.sock"]) == 3
    said = capsys.readouterr().err
    assert "failed to reach the server" in said
    assert "`tidemill up` starts one" in said


def test_the_server_of_another_machine_is_not_started_by_up(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("s" * 40)
    (tmp_path / "secret").chmod(0o600)
    words = [
        "--server",
        "https://127.0.0.1:1",
        "--secret-file",
        str(tmp_path / "secret"),
        "--home",
        str(tmp_path),
    ]
    assert main(["jobs", *words]) == 3
    said = capsys.readouterr().err
    assert "failed to reach the server at https://127.0.0.1:1" in said
    assert "ask the person who runs it" in said
    assert "tidemill up" not in said


def test_a_bug_is_code_70_and_leaves_its_traceback_in_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; from tidemill.cli.main import main; sys.exit(main([3]))"  # no shell hands over a number
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "this is a bug of Tidemill: TypeError" in done.stderr
    (written,) = tmp_path.glob("tidemill-bug-*.txt")
    assert str(written) in done.stderr
    assert "Traceback" in written.read_text()


def test_a_reader_that_has_left_is_no_failure() -> None:
    argv = [sys.executable, "-m", "tidemill.cli.main", "--help"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_tells_every_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert {"tidemill", "node binary", "isolation", "home", "disk", "server"} <= {
        each["check"] for each in findings
    }
    assert code == (2 if any(each["state"] == "fail" for each in findings) else 0)


def test_clean_removes_what_dead_processes_left_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    dead, alive, log = (
        home / "executor" / "999999999-x",
        home / "executor" / f"{os.getpid()}-x",
        home / "site.log.1",
    )
    dead.mkdir(parents=True)
    alive.mkdir()
    log.write_text("old")
    spooled, fresh = home / "inputs" / "old", home / "inputs" / "new"
    spooled.mkdir(parents=True)
    fresh.mkdir()
    os.utime(spooled, (0, 0))
    assert main(["clean", "--dry-run"]) == 0
    assert dead.exists()
    assert main(["clean"]) == 0
    capsys.readouterr()
    assert (dead.exists(), alive.exists(), log.exists()) == (False, True, False)
    assert (spooled.exists(), fresh.exists()) == (True, True), "no server says that its job has ended"
