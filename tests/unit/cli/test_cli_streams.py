"""A stdout that cannot be written, or is closed, is an error of its own, never success and never a bug."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PRINT = """
import sys
from tidemill.cli.terminal import StdoutError, flush, prepare_streams, say, show, show_json, show_table
prepare_streams()
how, size, speaks = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "speaks"
try:
    if how == "line":
        show("x" * size)
    elif how == "json":
        show_json({"text": "x" * size})
    else:
        show_table(["A"], [["x" * 50]] * (size // 50))
    if speaks:
        say("a remark")
    flush()
except StdoutError as error:
    say(f"error: {error}")
    sys.exit(error.error.exit_code)
"""


def tidemill(
    *words: str, shell: str = "", env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The program as a shell starts it; `shell`: redirections."""
    command = f'exec "$0" -m tidemill.cli.main "$@" {shell}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *words],
        capture_output=True,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        check=False,
    )


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)


@pytest.mark.parametrize(
    ("how", "size"),
    [("line", 1), ("line", 4_097), ("line", 8_191), ("line", 100_000), ("table", 5_620), ("json", 5_620)],
)
def test_what_a_full_disk_does_not_take_is_an_error_whatever_its_size(how: str, size: int) -> None:
    for speaks in ("speaks", "is quiet"):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-c", PRINT, how, str(max(size, 50)), speaks],
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
            )
        assert done.returncode == 3, done.stderr
        assert b"error: failed to write to stdout: No space left on device" in done.stderr
        assert b"Traceback" not in done.stderr
        assert b"Exception" not in done.stderr


@pytest.mark.parametrize(
    "words", [("--version",), ("--json", "--version"), ("run", "--help"), ("man", "run")]
)
@pytest.mark.parametrize(("shell", "why"), [("> /dev/full", "No space left"), (">&-", "Bad file descriptor")])
def test_no_verb_succeeds_without_a_stdout_that_takes_what_it_prints(
    words: tuple[str, ...], shell: str, why: str
) -> None:
    done = tidemill(*words, shell=shell)
    assert done.returncode == 3
    told = done.stderr.decode().splitlines()
    assert told[0] == f"error: failed to write to stdout: {told[0].rpartition(': ')[2]}"
    assert why in told[0]
    assert len(told) == 2
    assert told[1].startswith("hint: ")


def test_an_error_in_json_that_cannot_be_printed_is_told_on_stderr() -> None:
    done = tidemill("nosuch", "--json", shell="> /dev/full")
    assert done.returncode == 3
    assert b"failed to write to stdout" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("shell", ["2>&-", "2> /dev/full", "<&-", "<&- >&- 2>&-", "<&- >&-"])
def test_a_wrong_word_is_refused_whatever_stream_is_closed(shell: str, unbuffered: str) -> None:
    done = tidemill("nosuch", shell=shell, env={"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 2
    assert b"Traceback" not in done.stdout + done.stderr


def test_a_closed_stream_is_not_taken_by_the_next_file_that_is_opened(tmp_path: Path) -> None:
    """Otherwise the file would get what is printed."""
    script = (
        "import os, pathlib, sys; from tidemill.cli.terminal import prepare_streams; prepare_streams(); "
        "opened = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR); pathlib.Path(sys.argv[2]).write_text(str(opened))"
    )
    words = [sys.executable, script, str(tmp_path / "file"), str(tmp_path / "number")]
    subprocess.run(["sh", "-c", 'exec "$0" -c "$@" <&- >&- 2>&-', *words], check=True)
    assert int((tmp_path / "number").read_text()) > 2


def test_the_reader_of_a_pipe_may_leave_early() -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            '"$0" -m tidemill.cli.main man run | head -n 1; exit ${PIPESTATUS[0]}',
            sys.executable,
        ],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_character_that_the_encoding_lacks_is_escaped() -> None:
    for words, shown in (
        (("verbé日",), rb"`verb\xe9\u65e5`"),
        (("--json", "verbé日"), b""),
    ):
        done = tidemill(*words, env={"PYTHONIOENCODING": "ascii"})
        assert done.returncode == 2
        assert b"bug" not in done.stderr
        assert shown in done.stderr


@pytest.mark.parametrize("shown", ["show_json({'text': [text]})", "show_json_parts({}, 'text', [text])"])
def test_json_stays_json_where_stdout_lacks_characters(shown: str) -> None:
    script = (
        "from tidemill.cli.terminal import prepare_streams, show_json, show_json_parts; prepare_streams(); "
        f"text = 'é日\\U0001f600'; {shown}"
    )
    for encoding in ("ascii", "iso8859-1", "utf-8"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            check=True,
        )
        assert json.loads(done.stdout.decode(encoding)) == {"text": ["é日\U0001f600"]}


def test_a_directory_that_was_removed_is_said_and_not_a_bug(tmp_path: Path) -> None:
    for words in (("run", "--", "true"), ("run", "--json", "--", "true")):
        gone = tmp_path / "gone"
        gone.mkdir()
        command = 'cd "$1"; rmdir "$1"; shift; exec "$0" -m tidemill.cli.main "$@"'
        done = subprocess.run(
            ["sh", "-c", command, sys.executable, str(gone), *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        assert done.returncode == 2, done.stderr
        assert "the current directory no longer exists" in done.stdout + done.stderr
        assert "bug" not in done.stdout + done.stderr


def test_words_are_read_as_utf_8_in_a_locale_of_another_encoding() -> None:
    """The C locale serves as an example: with these variables, Python reads words as ASCII."""
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    done = tidemill("nosuché", env=env)
    assert (done.returncode, done.stderr.decode().splitlines()[0]) == (
        2,
        "error: `tidemill` has no verb `nosuché`",
    )


def test_words_are_not_encoded_twice_in_a_latin_1_locale(tmp_path: Path) -> None:
    charmaps = Path("/usr/share/i18n/charmaps")
    if shutil.which("localedef") is None or not list(charmaps.glob("ISO-8859-1*")):
        pytest.skip(
            "without localedef and its sources (Debian package `locales`) no Latin-1 locale can be made"
        )
    made = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(tmp_path / "en_US.ISO-8859-1")]
    subprocess.run(made, check=True, capture_output=True)
    env = {"LC_ALL": "en_US.ISO-8859-1", "LOCPATH": str(tmp_path)}
    done = tidemill("né日", env=env)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        b"error: `tidemill` has no verb `n\xe9\\u65e5`",
    )
