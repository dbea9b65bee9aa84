"""Extensions that are there, missing, broken, or of another version: nothing of the core depends on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill
from tidemill.cli.main import main
from tidemill.extensions import KNOWN, VERBS, installed, missing

MODULE = """
GROUPS = {"sites": {"greet": ("greeting_verbs", "say a word"), "jobs": ("greeting_verbs", "not the core's"),
                    "jobs all": ("greeting_verbs", "not the core's")}}
"""
COMMANDS = """
from tidemill.cli.arguments import Command
from tidemill.cli.terminal import show
def define(parser): parser.add_argument("--word", metavar="WORD", help="what to say (default: moin)", default="moin")
def run(args):
    show(args.word)
    return 0
COMMANDS = {"greet": Command(define, run, "tidemill greet", talks=False)}
"""


def extension(
    folder: Path, *, version: str = tidemill.__version__, table: str = MODULE, verbs: str = COMMANDS
) -> None:
    """Install an extension `greeting` into a folder, as its wheel would be."""
    about = folder / f"tidemill_greeting-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "entry_points.txt").write_text(
        f"[console_scripts]\nx = y:z\n\n[{VERBS}]\ngreeting = greeting_table:GROUPS\n"
    )
    (folder / "greeting_table.py").write_text(table)
    (folder / "greeting_verbs.py").write_text(verbs)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "TIDEMILL_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "tidemill.cli.main", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_an_extension_adds_its_verb_and_its_version(tmp_path: Path) -> None:
    extension(tmp_path)
    done = run(tmp_path, "greet", "--word", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "  greet                say a word" in run(tmp_path, "--help").stdout
    assert f"greeting {tidemill.__version__}" in run(tmp_path, "--version", "--verbose").stdout
    assert (
        json.loads(run(tmp_path, "--version", "--json").stdout)["extensions"]["greeting"]
        == tidemill.__version__
    )


def test_a_verb_of_the_core_stays_the_cores_with_a_warning(tmp_path: Path) -> None:
    extension(tmp_path)
    done = run(tmp_path, "--help")
    assert "not the core's" not in done.stdout
    assert "warning: extension `greeting`: its verb `jobs" in done.stderr
    assert "no server is named" in run(tmp_path, "jobs").stderr


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"version": "0.0.1"}, "its version is 0.0.1"),
        ({"table": "import no_such_module_at_all"}, "cannot be imported: ModuleNotFoundError"),
        ({"table": "1 / 0"}, "cannot be imported: ZeroDivisionError"),
        ({"table": "OTHER = {}"}, "has no `greeting_table:GROUPS`"),
    ],
)
def test_an_extension_that_cannot_be_used_breaks_nothing_and_is_named(
    tmp_path: Path, broken: dict[str, str], said: str
) -> None:
    extension(tmp_path, **broken)
    helped = run(tmp_path, "--help")
    assert (helped.returncode, "greet  " in helped.stdout) == (0, False)
    assert len(helped.stderr.splitlines()) == 1
    assert said in helped.stderr
    used = run(tmp_path, "greet")
    assert used.returncode == 2
    assert said in used.stderr
    assert said in run(tmp_path, "--version", "--verbose").stdout


def test_an_extension_of_others_is_no_extra_of_tidemill(tmp_path: Path) -> None:
    extension(tmp_path, verbs="1 / 0")
    said = run(tmp_path, "greet").stderr
    assert f"made for Tidemill {tidemill.__version__}" in said
    assert "pip uninstall tidemill-greeting" in said
    assert "tidemill[greeting]" not in said


@pytest.mark.parametrize(
    ("fails", "whose"),
    [
        ("{}['here']", "the extension `greeting`: KeyError: 'here'"),
        ("from tidemill.model.number import whole; whole(3)", "the extension `greeting`, or of Tidemill: "),
        ("import json; json.loads('{')", "the extension `greeting`: JSONDecodeError"),
    ],
)
def test_a_bug_of_an_extension_is_not_called_one_of_tidemill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, whose: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the traceback goes
    verbs = COMMANDS.replace("show(args.word)", "import greeting_table; greeting_table.fail()")
    extension(tmp_path, table=f"{MODULE}\ndef fail():\n    {fails}\n", verbs=verbs)
    done = run(tmp_path, "greet")
    assert done.returncode == 70, done.stderr
    assert done.stderr.startswith(f"error: this is a bug of {whose}")
    assert "report it to those who make `tidemill-greeting`" in done.stderr


def test_a_verb_whose_file_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    extension(tmp_path, verbs="import no_such_module_at_all")
    done = run(tmp_path, "greet")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the extension `greeting` cannot be imported: ModuleNotFoundError")
    assert "bug" not in done.stderr


def test_a_verb_of_a_missing_extension_says_which_command_installs_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, verb in ((name, verb) for name, brings in KNOWN.items() for verb in brings.verbs):
        error = missing(VERBS, verb)
        assert error is not None
        assert (error.exit_code, error.hint) == (2, f"install it: pip install 'tidemill[{name}]'")
        if name not in installed():  # where `make test-core` runs this
            assert main(verb.split()) == 2
            assert f"`tidemill {verb}` needs the extension `{name}`" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["stress"], ["stress", "--help"], ["stress", "foo"]])
def test_the_first_word_of_an_absent_extensions_verbs_names_it(tmp_path: Path, words: list[str]) -> None:
    if "stress" in installed():
        pytest.skip("the extension is installed: `make test-core` runs this where none is")
    done = run(tmp_path, *words)
    assert (done.returncode, "needs the extension `stress`" in done.stderr) == (2, True)


@pytest.mark.parametrize("words", [["report"], ["report", "--campaign", "x"]])
def test_a_missing_verb_is_named_where_another_extension_has_verbs_that_begin_with_it(
    tmp_path: Path, words: list[str]
) -> None:
    if "report" in installed():
        pytest.skip("the extension is installed: `make test-core` runs this where none is")
    extension(tmp_path, table='GROUPS = {"jobs": {"report greet": ("greeting_verbs", "say a word")}}')
    done = run(tmp_path, *words)
    assert (done.returncode, "`tidemill report` needs the extension `report`" in done.stderr) == (2, True)
