"""`tidemill run` with a name that was used before: refused, or resumed with inputs as they are now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worlds.home.homes import Home, started_home


@pytest.fixture
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def test_a_name_is_refused_and_its_files_stay_also_where_no_server_runs_that_knows_it(home: Home) -> None:
    words = ["--each", "-", "--name", "again", "--", "echo", "{line}"]
    assert home.run("run", *words, stdin="a\nb\n").returncode == 0
    home.stop()
    try:
        done = home.run("run", *words, stdin="c\n")
    finally:
        stopped = home.run("up", "--stop")  # `run` started a server of its own
    assert (done.returncode, "campaign `again` exists" in done.stderr) == (2, True), done.stderr
    assert [path.read_text() for path in (home.path / "inputs").glob("*/lines")] == ["a\nb\n"]
    assert stopped.stderr == "stopped; every job had ended\n"


@pytest.mark.parametrize("size", [4, 100], ids=["as many bytes", "more bytes"])
def test_what_is_resumed_reads_its_inputs_as_they_are_now_also_on_nodes_that_have_them(
    home: Home, size: int
) -> None:
    card = home.path / "card"
    card.write_text("echo broken >&2; exit 3\n")
    words = ["--name", "card", "--retries", "0", "--events", "2", "--input", str(card), "--", "sh", "card"]
    assert home.run("run", *words).returncode != 0
    card.write_text("echo mended; exit 0\n" + "#" * size)
    done = home.run("run", "--resume", "card")
    assert done.returncode == 0, done.stderr
    logs = home.run("job", "logs", "card", "--event", "1")
    assert logs.stdout == "mended\n"
    assert "remark: the event is done; an earlier try failed (exit status 3)" in logs.stderr, logs.stderr
    assert "\nbroken\n" in logs.stderr


def test_run_starts_a_server_where_one_that_was_killed_left_its_socket(home: Home) -> None:
    home.kill()
    assert (home.path / "server" / "api.sock").is_socket()
    # of an agent in another PID namespace only its sign of life says that it is dead: a minute after the last one, of
    # the hundred seconds that `run` may take here
    for beat in (home.path / "site" / "epoch").glob("*.beat"):
        beat.write_text("1")
    done = home.run("run", "--", "echo", "here")
    home.run("up", "--stop")
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr
    assert "started a server and a site for you" in done.stderr
