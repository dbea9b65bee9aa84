"""The settings of the submitting shell apply to the command and its outputs, with real processes."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import TIDEMILL, WAIT_S, Home, started_home


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def typed(
    home: Home, script: str, *words: str | bytes, env: dict[str, bytes] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """A bash script in which `"$@"` is `tidemill` with these words."""
    return subprocess.run(
        ["bash", "-c", script, "bash", *TIDEMILL, *words],
        cwd=home.work,
        env={**{os.fsencode(k): os.fsencode(v) for k, v in home.env.items()},
             **{os.fsencode(k): v for k, v in (env or {}).items()}},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )  # fmt: skip


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("umask", "file", "program", "folder"),
    [("077", 0o600, 0o700, 0o700), ("002", 0o664, 0o775, 0o775), ("022", 0o644, 0o755, 0o755)],
)
def test_outputs_have_the_umask_of_the_shell_and_the_execute_bits_that_the_command_gave_them(
    home: Home, umask: str, file: int, program: int, folder: int
) -> None:
    name = f"u{umask}"
    script = "umask; echo x > x.txt; echo '#!/bin/sh' > prog; chmod +x prog"
    words = [
        "run",
        "--name",
        name,
        "--events",
        "2",
        "--output",
        "x.txt",
        "--output",
        "prog",
        "--",
        "sh",
        "-c",
        script,
    ]
    done = typed(home, f'umask {umask}; exec "$@"', *words)
    assert done.returncode == 0, done.stderr
    place = home.work / "tidemill-out" / name
    assert {mode_of(path) for path in place.glob("x*.txt")} == {file}
    assert {mode_of(path) for path in place.glob("prog*")} == {program}
    assert mode_of(place) == folder
    assert {mode_of(path) for path in place.glob("*stdout*")} == {file}
    assert {mode_of(path) for path in place.glob("manifest-*.json")} == {file}


def test_soft_limits_of_the_shell_hold_for_the_command(home: Home) -> None:
    done = typed(
        home,
        'ulimit -S -s 4096; ulimit -S -n 200; exec "$@"',
        "run", "--", "sh", "-c", "ulimit -S -s; ulimit -S -n; ulimit -S -c",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"4096\n200\n0\n"), done.stderr
    hard = subprocess.run(["bash", "-c", "ulimit -H -s"], capture_output=True, check=True).stdout
    done = typed(
        home, f'ulimit -S -s {hard.decode().strip()}; exec "$@"', "run", "--", "bash", "-c", "ulimit -S -s"
    )
    assert (done.returncode, done.stdout) == (0, hard), done.stderr


def test_a_command_of_a_job_file_has_the_umask_of_the_shell_unless_the_file_names_one(home: Home) -> None:
    for umask, line in (("027", ""), ("077", "shell = { umask = 0o027 }")):
        (home.work / f"jobs{umask}.toml").write_text(
            f'[[job]]\ncommand = ["/bin/sh", "-c", "umask > x"]\n{line}\noutput_dir = "out{umask}"\n'
            'outputs = [{ name = "x", path = "x" }]\n'
        )
        done = typed(home, f'umask {umask}; exec "$@"', "submit", f"jobs{umask}.toml", "--wait")
        assert done.returncode == 0, done.stderr
        (found,) = (home.work / f"out{umask}").rglob("*-x")
        assert (found.read_text(), mode_of(found)) == ("0027\n", 0o640)


def test_words_and_variables_reach_the_command_byte_for_byte(home: Home) -> None:
    script = 'printf "%s|%s|%s|%s" "$1" "$R_LIBS" "$OWN" "$2"'
    done = typed(
        home,
        'exec "$@"',
        "run", "--env", b"OWN=\xff{event}", "--", "sh", "-c", script, "sh", b"caf\xe9{event}", "\U0010ffe9é",
        env={"R_LIBS": b"/x/\xe9", "PATH": home.env["PATH"].encode() + b":/opt/\xe9"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"caf\xe90|/x/\xe9|\xff{event}|" + "\U0010ffe9é".encode()
    assert done.stderr == b""


@pytest.mark.parametrize(
    "name", [b"b\xe9n/prog", b"my prog", "pr\u00f6g".encode(), b"p\xff", b"li\nne", b"__main__", b"p" * 200]
)
def test_a_program_of_any_name_runs(home: Home, name: bytes) -> None:
    program = home.work / os.fsdecode(name)
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/bin/sh\nprintf %s "$0"\n')
    program.chmod(0o755)
    done = typed(home, 'exec "$@"', "run", "--", b"./" + name)
    assert (done.returncode, done.stdout) == (0, os.fsencode(program)), done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([b"--input", b"l\xe9.txt"], rb"l\xe9.txt`: the name is not valid UTF-8"),
        ([b"--output", b"l\xe9.txt"], rb"output `l\xe9.txt`: the name is not valid UTF-8"),
        ([b"--dir", b"d\xe9"], rb"d\xe9`: the name is not valid UTF-8"),
        ([b"--sweep", b"a=\xe9"], rb"\xe9"),
        ([b"--name", b"caf\xe9"], rb"is not a valid name"),
        ([b"--env", b"caf\xe9=1"], rb"caf\xe9` is not a valid name of a variable"),
    ],
)
def test_names_that_are_not_utf_8_are_refused_by_name(home: Home, words: list[bytes], said: bytes) -> None:
    (home.work / os.fsdecode(b"l\xe9.txt")).touch()
    done = typed(home, 'exec "$@"', "run", *words, "--", "echo", "{a}")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert b"bug" not in done.stderr


def test_a_directory_whose_name_is_not_utf_8_is_refused_for_outputs_only(home: Home) -> None:
    (home.work / os.fsdecode(b"d\xe9")).mkdir()
    done = typed(home, "cd d$'\\xe9'; exec \"$@\"", "run", "--", "pwd")
    assert done.returncode == 2, done.stderr
    assert b"--dir DIR" in done.stderr
    done = typed(
        home, "cd d$'\\xe9'; exec \"$@\"", "run", "--dir", str(home.work / "elsewhere"), "--", "echo", "ran"
    )
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr


def test_a_path_longer_than_a_page_of_text_is_passed_on(home: Home) -> None:
    long = home.env["PATH"].encode() + b":/very/long" * 8_000
    done = typed(home, 'exec "$@"', "run", "--", "sh", "-c", "echo ${#PATH}", env={"PATH": long})
    assert (done.returncode, int(done.stdout)) == (0, len(long)), done.stderr


def test_a_byte_order_mark_is_part_of_no_line_and_of_no_job_file(home: Home) -> None:
    for name, head, place in (("l.txt", b"", "{line}"), ("l.csv", b"what\n", "{what}")):
        (home.work / name).write_bytes(b"\xef\xbb\xbf" + head + b"first\r\nsecond\r\n")
        campaign = f"bom-{name[2:]}"
        done = typed(
            home, 'exec "$@"', "run", "--name", campaign, "--each", name, "--output", f"{place}.txt", "--",
            "sh", "-c", 'printf %s "$1" > "$1.txt"', "sh", place,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = {path.read_text() for path in (home.work / "tidemill-out" / campaign).glob("*.txt")}
        assert found == {"first", "second"}
    (home.work / "bom.toml").write_bytes(b'\xef\xbb\xbf[[job]]\ncommand = ["/bin/true"]\n')
    done = typed(home, 'exec "$@"', "submit", "bom.toml", "--wait")
    assert done.returncode == 0, done.stderr


def test_a_list_that_is_not_utf_8_is_refused_before_any_event_runs(home: Home) -> None:
    (home.work / "latin1.txt").write_bytes(b"ok\ncaf\xe9\n")
    done = typed(home, 'exec "$@"', "run", "--name", "latin1", "--each", "latin1.txt", "--", "echo", "{line}")
    assert done.returncode == 2
    assert b"`latin1.txt`, line 2: byte 0xe9 is not valid UTF-8" in done.stderr
    assert not home.jobs("latin1")


@pytest.mark.parametrize("shell", ["> /dev/full", ">&-"])
def test_tables_of_every_length_that_cannot_be_printed_are_an_error(home: Home, shell: str) -> None:
    (home.work / "many.toml").write_text('[[job]]\ncommand = ["/bin/true"]\nrepeat = 90\n')
    assert typed(home, 'exec "$@"', "submit", "many.toml", "--campaign", f"many{len(shell)}").returncode == 0
    for words in (
        ["jobs", "--limit", "5"],
        ["jobs", "--limit", "50"],
        ["jobs", "--limit", "90"],
        ["jobs", "--json"],
    ):
        done = typed(home, f'exec "$@" {shell}', *words)
        assert done.returncode == 3, (words, done.stderr)
        assert b"error: failed to write to stdout" in done.stderr
        assert b"bug" not in done.stderr


@pytest.mark.parametrize("shell", ["> /dev/full", ">&-"])
@pytest.mark.parametrize("words", [["run", "--", "echo", "kept"], ["run", "--json", "--", "echo", "kept"]])
def test_a_campaign_whose_output_cannot_be_printed_is_named_and_can_be_read_again(
    home: Home, shell: str, words: list[str]
) -> None:
    done = typed(home, f'exec "$@" {shell}', *words)
    assert done.returncode == 3, done.stderr
    assert b"error: failed to write to stdout" in done.stderr
    found = re.search(rb"`tidemill attach (\S+)`", done.stderr)
    assert found is not None, done.stderr
    again = typed(home, 'exec "$@"', "attach", found[1])
    assert (again.returncode, again.stdout) == (0, b"kept\n"), again.stderr


def test_messages_of_payloads_are_shown_in_a_locale_that_lacks_their_characters(home: Home) -> None:
    typed(home, 'exec "$@"', "run", "--name", "jp", "--", "sh", "-c", "echo 日 >&2; exit 1")
    env = {"LC_ALL": b"C", "PYTHONUTF8": b"0", "PYTHONCOERCECLOCALE": b"0"}
    done = typed(home, 'exec "$@"', "errors", "--campaign", "jp", env=env)
    assert done.returncode == 0, done.stderr
    assert rb"\u65e5" in done.stdout
    done = typed(home, 'exec "$@"', "run", "--", "echo", "é", env=env)
    assert (done.returncode, done.stdout) == (0, "é\n".encode()), done.stderr
