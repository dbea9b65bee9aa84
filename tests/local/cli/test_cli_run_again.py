"""A name that was used before the server was stopped: `tidemill run` starts one, and then knows it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import Home


@pytest.fixture
def home() -> Iterator[Home]:
    it = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        it.start()
        yield it
    finally:
        it.run("up", "--stop")
        it.end()


def test_a_name_is_refused_and_its_files_stay_also_where_no_server_runs_that_knows_it(home: Home) -> None:
    words = ["--each", "-", "--name", "again", "--", "echo", "{line}"]
    assert home.run("run", *words, stdin="a\nb\n").returncode == 0
    home.stop()
    done = home.run("run", *words, stdin="c\n")
    assert (done.returncode, "campaign `again` exists" in done.stderr) == (2, True), done.stderr
    assert [path.read_text() for path in (home.path / "inputs").glob("*/lines")] == ["a\nb\n"]
    assert len(home.jobs("again")) == 1
