"""Names, paths and other lines that could change what `tidemill stress schedule --install` puts into a crontab."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from tidemill.cli.main import main
from tidemill.errors import ConfigError
from tidemill_stress.cli import schedule

TEST = 'name = "{name}"\nlevels = [4]\nhold_s = 60\n[payload]\ncommand = ["x"]\nevent_s = 3\n'
CRONTAB = """#!/bin/sh
if [ "$1" = -l ]; then cat {table}; else cat > {table}; fi
"""
HOSTILE = [
    "a b",
    "$(touch evil)",
    "`touch evil`",
    "a;touch evil",
    "a'b",
    'a"b',
    "50%",
    "%s%",
    "#x",
    "-rf",
    "*",
    "ä",
    "a\\b",
]


def options(file: Path, runs: Path, **more: object) -> Namespace:
    given = {"server": None, "secret_file": None, "home": None, "scan": False, "at": schedule.WEEKLY}
    return Namespace(file=file, runs=runs, **given | more)


def as_cron_runs_it(line: str) -> str:
    """The command of a line: cron(8) takes five fields, ends at a bare `%`, and removes the backslash before others."""
    command = line.split(" ", 5)[5].replace("\\%", "\0")
    return command.partition("%")[0].replace("\0", "%")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_path_is_one_word_of_the_command_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (folder := tmp_path / name).mkdir()
    (program := tmp_path / "program").write_text('#!/bin/sh\nprintf "%s\\0" "$@" "$TIDEMILL_SERVER"\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("TIDEMILL_SERVER", f"unix:/{name}")
    line = schedule.crontab_line(options(folder / "t.toml", folder, server=f"unix:{folder}"), "x")
    subprocess.run(["/bin/sh", "-c", as_cron_runs_it(line)], cwd=tmp_path, check=True, timeout=60)
    words = (folder / "x.log").read_bytes().split(b"\0")
    assert os.fsencode(folder / "t.toml") in words
    assert os.fsencode(f"unix:/{name}") in words
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["a\nb", "a\\%b"])
def test_a_path_that_no_crontab_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot stand in a crontab"):
        schedule.crontab_line(options(tmp_path / name, tmp_path), "x")


@pytest.mark.parametrize("name", ["a b", "a\\nb", "$(x)", "a%", "../x", "x # tidemill stress y", "é", ""])
def test_a_test_whose_name_is_no_plain_word_is_not_scheduled(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.toml").write_text(TEST.format(name=name))
    assert main(["stress", "schedule", str(tmp_path / "t.toml")]) == 2
    assert "`name`" in capsys.readouterr().err


def test_all_other_lines_of_the_crontab_stay_byte_by_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Separators of Unicode and of old terminals end no line there: a remark behind one would become a command."""
    others = b"# a\x0cb\n0 1 * * * echo \xe2\x80\xa8* * * * * evil\n# caf\xe9 \x85 \x1e \r x\n\n#end"
    (table := tmp_path / "table").write_bytes(others)
    (program := tmp_path / "crontab").write_text(CRONTAB.format(table=shlex.quote(str(table))))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    schedule.install("1 1 * * * true # tidemill stress x", schedule.mark_of("x"))
    schedule.install("2 2 * * * true # tidemill stress x", schedule.mark_of("x"))
    assert table.read_bytes() == others + b"\n2 2 * * * true # tidemill stress x\n"
