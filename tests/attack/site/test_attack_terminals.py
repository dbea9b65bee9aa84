"""Text of payloads, sites and jobs reaches a terminal as text: it sets no title, moves no cursor, forges no line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.terminals import WAIT_S, Terminal, check_harmless, environment, screen_of
from tests.worlds.home.homes import Home, started_home
from tests.worlds.services.hostile_answers import HOSTILE, hostile_answers

from tidemill.printable import printable_line, printable_lines

VERBS = [
    ["jobs"], ["job", "show", "7"], ["job", "explain", "7"], ["job", "cancel", "7"],
    ["errors"], ["outputs", "ls"], ["app", "list"], ["app", "show", HOSTILE], ["top", "--once"],
    ["audit", "--batch-id", "1"], ["outputs", "get", "7"],
]  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with hostile_answers() as found:
        yield found


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


@pytest.mark.parametrize("as_json", [False, True])
def test_no_verb_passes_on_what_a_hostile_server_writes(address: str, tmp_path: Path, as_json: bool) -> None:
    words = [[*verb, "--json"] if as_json else verb for verb in VERBS]
    screen = screen_of(words, address, tmp_path)
    check_harmless(screen)
    assert screen.count("]0;owned") > 20  # as text
    assert "this is a bug" not in screen


def test_the_log_of_a_hostile_server_is_text_and_may_have_lines(address: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidemill.cli.main", "job", "logs", "7"]
    screen = Terminal(command, cwd=tmp_path, env=environment(address, tmp_path)).until_end()
    assert screen == printable_lines(screen)
    assert screen.count("error: forged") == 2
    assert "`--raw` passes them" in screen
    raw = Terminal([*command, "--raw"], cwd=tmp_path, env=environment(address, tmp_path)).until_end()
    assert raw.startswith(HOSTILE)
    piped = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(address, tmp_path),
        capture_output=True,
        check=True,
        timeout=WAIT_S,
    )
    assert (piped.stdout.decode(), piped.stderr.decode()) == (HOSTILE, HOSTILE)


def test_the_moving_table_shows_hostile_names_as_text(address: str, tmp_path: Path) -> None:
    top = Terminal(
        [sys.executable, "-m", "tidemill.cli.main", "top"], cwd=tmp_path, env=environment(address, tmp_path)
    )
    end = time.monotonic() + WAIT_S
    while b"owned" not in top.screen or b"CAMPAIGN" not in top.screen:
        assert time.monotonic() < end, top.screen
        assert top.read(), top.screen
    top.process.send_signal(signal.SIGINT)
    screen = top.until_end()
    for char in ("\x1b]", "\x07", "\x9b", "\u202e", "\u2028", "\x85", "\x7f", "\x1b[2J\\"):
        assert char not in screen, ascii(screen)


PAYLOAD = r"printf 'a\033]0;owned\007b\302\233c\n'; printf '\033[2Jd\n' >&2"


def test_a_payloads_own_output_is_text_on_a_terminal_and_exact_everywhere_else(home: Home) -> None:
    env = {**home.env, "TERM": "xterm"}
    exact = home.run("run", "--", "sh", "-c", PAYLOAD)
    assert (exact.stdout, exact.stderr) == ("a\x1b]0;owned\x07b\x9bc\n", "\x1b[2Jd\n")
    command = [sys.executable, "-m", "tidemill.cli.main", "run", "--", "sh", "-c", PAYLOAD]
    screen = Terminal(command, cwd=home.work, env=env).until_end()
    assert "a\\u001b]0;owned\\u0007b\\u009bc\n" in screen, ascii(screen)
    assert "\\u001b[2Jd\n" in screen
    assert "`--raw` passes them" in screen
    for char in ("\x1b]", "\x1b[2J", "\x9b", "\x07"):
        assert char not in screen, ascii(screen)
    raw = Terminal([*command[:4], "--raw", *command[4:]], cwd=home.work, env=env).until_end()
    assert "a\x1b]0;owned\x07b\x9bc\n" in raw
    assert "--raw" not in raw


def test_last_words_of_a_failed_payload_are_text(home: Home) -> None:
    words = ["run", "--name", "bad", "--", "sh", "-c", PAYLOAD + "; exit 3"]
    command = [sys.executable, "-m", "tidemill.cli.main", *words]
    screen = Terminal(command, cwd=home.work, env={**home.env, "TERM": "xterm"}).until_end()
    assert "a\\u001b]0;owned\\u0007b\\u009bc\n" in screen, ascii(screen)
    assert "\\u001b[2Jd\n" in screen
    for char in ("\x1b]", "\x1b[2J", "\x9b", "\x07"):
        assert char not in screen, ascii(screen)
    words[2] = "worse"
    failed = home.run(*words)
    assert failed.returncode == 3, "a single event's own status"
    assert failed.stdout == "a\x1b]0;owned\x07b\x9bc\n"
    own, ours = failed.stderr[:6], failed.stderr[6:]
    assert own == "\x1b[2Jd\n", "exact where it is not a terminal"
    check_harmless(ours)
    (row,) = home.jobs("bad")
    for words in (
        ["job", "show", str(row.id)],
        ["errors", "--campaign", "bad"],
        ["job", "explain", str(row.id)],
    ):
        done = home.run(*words)
        check_harmless(done.stdout + done.stderr)
    assert "\\u001b[2Jd" in home.run("job", "show", str(row.id)).stdout


def test_what_is_shown_loses_nothing() -> None:
    assert json.loads(f'"{printable_line(HOSTILE)}"') == HOSTILE
