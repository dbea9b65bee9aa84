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
    ("name", "said"),
    [
        ("dir", "it is a directory"),
        ("none", "failed to read"),
        ("empty", "is empty: it needs a line for each event"),
    ],
)
def test_what_has_no_lines_is_refused_with_a_sentence(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match=said):
        rows(tmp_path / name, CommandFiles(tmp_path / "spool"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"caf\xe9\nok\n", "list`, line 1: byte 0xe9 is not valid UTF-8"),
        (b"ok\n\nx\xff", "list`, line 3: byte 0xff is not valid UTF-8"),
        (b"ok\nx\xc3", "list`, line 2: byte 0xc3 is not valid UTF-8"),
        (b"a" * (1 << 20) + b"\n" + b"\xc3\xa9" * (1 << 20) + b"\n\xe9", "list`, line 3: byte 0xe9"),
    ],
)
def test_lines_that_are_not_utf_8_are_refused_with_file_line_and_byte(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(ConfigError, match=said) as refused:
        rows(tmp_path / "list", CommandFiles(tmp_path / "spool"))
    assert refused.value.exit_code == 2
    (tmp_path / "list.csv").write_bytes(b"line\n" + content)
    with pytest.raises(ConfigError, match=r"list.csv`, line \d: byte 0x.. is not valid UTF-8"):
        rows(tmp_path / "list.csv", CommandFiles(tmp_path / "spool"))


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"a\0b\n", 1), (b"a\nb\n\0", 3), (b"a" * (1 << 20) + b"\nb\n" + b"c" * 9 + b"\0", 3)],
)
def test_a_line_with_a_nul_byte_which_no_argument_can_hold_is_refused(
    tmp_path: Path, content: bytes, line: int
) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(ConfigError, match=f"list`, line {line}: it holds a NUL byte"):
        rows(tmp_path / "list", CommandFiles(tmp_path / "spool"))


def test_a_number_of_events_is_refused_beside_values_that_each_have_an_event(tmp_path: Path) -> None:
    args = Namespace(each=None, events=3, sweep=["a=1,2"], zip=False, output=[])
    with pytest.raises(ConfigError, match="--events 3 is not allowed with --sweep") as refused:
        rows_of(args, ["echo", "{a}"], CommandFiles(tmp_path / "spool"))
    assert refused.value.hint is not None
    more = Namespace(each=None, events=None, sweep=["a=1,2", "run=1..3"], zip=False, output=[])
    assert rows_of(more, ["echo", "{a}", "{run}"], CommandFiles(tmp_path / "spool")).events == 6


def test_a_character_at_the_end_of_a_piece_is_whole(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"a" + b"\xc3\xa9" * (1 << 20) + b"\nb\n")
    assert rows(tmp_path / "list", CommandFiles(tmp_path / "spool")).events == 2


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a\n\n\nb\n\n", "has 3 empty lines among 5"),
        (b"\r\na\r\n", "has 1 empty line among 2"),
        (b"a" * ((1 << 20) - 1) + b"\n" + b"\n", "has 1 empty line among 2"),
        (b"a" * ((1 << 20) - 2) + b"\n\r" + b"\nb", "has 1 empty line among 3"),
        (b"a\n b\n", ""),
    ],
    ids=["three", "CRLF", "second piece", "second piece CRLF", "none"],
)
def test_empty_lines_are_events_and_counted_in_a_remark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes, said: str
) -> None:
    (tmp_path / "list").write_bytes(text)
    found = rows(tmp_path / "list", CommandFiles(tmp_path / "spool"))
    printed = capsys.readouterr().err
    assert found.events == text.count(b"\n") + (not text.endswith(b"\n"))
    assert said in printed
    assert bool(printed) is bool(said)


def test_doubled_braces_are_text_and_use_no_line(tmp_path: Path) -> None:
    args = Namespace(each=None, events=2, sweep=[], zip=False, output=[])
    assert rows_of(args, ["echo", "{{line}}"], CommandFiles(tmp_path / "spool")).events == 2
