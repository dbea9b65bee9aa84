"""Rows and files that a command line makes for its job: each line an event, no file of another job touched."""

from __future__ import annotations

import contextlib
import os
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from tidemill.cli.start.composing import CommandFiles, Rows, rows_of
from tidemill.errors import ConfigError, JobError, ProtocolError, SiteError, TidemillError


def rows(each: Path, spool: CommandFiles) -> Rows:
    args = Namespace(each=each, events=None, sweep=[], zip=False, output=[])
    return rows_of(args, ["echo", "{line}"], spool)


@pytest.mark.parametrize(("text", "lines"), [("a\nb\n", 2), ("a\n\nb", 3), ("a", 1), ("\n", 1)])
def test_each_line_is_an_event_also_one_without_an_end(tmp_path: Path, text: str, lines: int) -> None:
    (tmp_path / "list").write_text(text)
    found = rows(tmp_path / "list", CommandFiles(tmp_path / "spool"))
    assert (found.events, found.lines) == (lines, str(tmp_path / "list"))
    assert not (tmp_path / "spool").exists(), "a file is read where it is"


def test_a_pipe_is_copied_for_the_job_and_in_a_dry_run_only_counted(tmp_path: Path) -> None:
    for dry in (False, True):
        pipe, spool = tmp_path / f"pipe{dry:d}", tmp_path / f"spool{dry:d}"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(b"a\nb",))
        writer.start()
        found = rows(pipe, CommandFiles(spool, dry=dry))
        writer.join()
        assert (found.events, found.lines) == (2, str(spool / "lines"))
        assert spool.exists() is not dry
    assert (tmp_path / "spool0" / "lines").read_bytes() == b"a\nb"


@pytest.mark.parametrize(
    ("name", "said"), [("dir", "it is a directory"), ("none", "failed to read"), ("empty", "0 lines")]
)
def test_what_has_no_lines_is_refused_with_a_sentence(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match=said):
        rows(tmp_path / name, CommandFiles(tmp_path / "spool"))


def test_files_of_an_earlier_job_of_the_same_name_stay_as_they_are(tmp_path: Path) -> None:
    earlier = CommandFiles(tmp_path / "inputs" / "c").write("lines", "theirs")
    later = CommandFiles(tmp_path / "inputs" / "c")
    assert later.write("lines", "ours") == tmp_path / "inputs" / "c-2" / "lines"
    assert later.path("stdin").parent == tmp_path / "inputs" / "c-2"
    later.drop()
    CommandFiles(tmp_path / "inputs" / "c").drop()
    assert earlier.read_text() == "theirs"
    assert [path.name for path in (tmp_path / "inputs").iterdir()] == ["c"]


def test_a_pipe_that_never_ends_is_refused_at_the_most_lines(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write_on() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as file:
            while True:
                file.write(b"\n" * (1 << 20))

    writer = threading.Thread(target=write_on)
    writer.start()
    with pytest.raises(ConfigError, match="has more than 100,000,000 lines"):
        rows(pipe, CommandFiles(tmp_path / "spool", dry=True))
    writer.join()


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (SiteError("no reply came"), True),
        (ProtocolError("the reply cannot be read"), True),
        (JobError("refused"), False),
        (ConfigError("refused"), False),
    ],
)
def test_files_stay_where_the_server_may_have_taken_the_job(
    tmp_path: Path, error: TidemillError, stays: bool
) -> None:
    spool = CommandFiles(tmp_path / "inputs" / "c")
    path = spool.write("lines", "a")
    spool.drop_if_refused(error)
    assert path.exists() is stays
