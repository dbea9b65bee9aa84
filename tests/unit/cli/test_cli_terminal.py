"""What is printed while a verb runs reaches its reader, and a terminal that is closed ends it quietly."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

from tidemill.cli.terminal import plain_table

DEADLINE_S = 60.0

TOP = """
import os, sys
from tidemill.cli.terminal import flush, live_tables
def pages():
    while True:
        yield "headline", ["A"], [["1"]]
        if not sys.stdin.readline():
            sys.exit("it goes on without a terminal")
live_tables(pages())
flush()
print("ended quietly", file=sys.stderr)
"""

WEB = """
import sys
from argparse import Namespace
from pathlib import Path
from tidemill.cli.server.web import _serve
_serve(Namespace(port=0, json=sys.argv[2] == "json"), None, Path(sys.argv[1]))
"""


def test_a_live_table_ends_quietly_when_its_terminal_is_closed() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", TOP],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        seen = b""
        while b"headline" not in seen:
            assert select.select([ours], [], [], DEADLINE_S)[0], "nothing is shown"
            seen += os.read(ours, 4096)
        os.close(ours)
        _, told = process.communicate(b"\n" * 5, timeout=DEADLINE_S)
    assert (process.returncode, told.decode()) == (0, "ended quietly\n")


def test_the_url_of_the_web_pages_reaches_a_pipe_while_they_are_served(tmp_path: Path) -> None:
    for form, begins in (("text", b"http://"), ("json", b"{")):
        with subprocess.Popen(
            [sys.executable, "-c", WEB, str(tmp_path / "no.sock"), form],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        ) as process:
            assert process.stdout is not None
            try:
                assert select.select([process.stdout], [], [], DEADLINE_S)[0], "no URL came"
                assert process.stdout.readline().startswith(begins)
            finally:
                process.kill()


def test_tables_align_numbers_right_and_are_cut_at_the_width() -> None:
    text = plain_table(["N", "NAME"], [[1, "a"], [100, "long name"]], right=(0,), width=10)
    assert text.splitlines() == ["  N  NAME", "  1  a", "100  long…"]


MIXED = """
from tidemill.cli.terminal import hint, say, say_lines, show
show("data 1")
say("line 2")
show("data 3")
say_lines("line 4")
show("data 5")
hint("line 6")
"""


def test_both_streams_in_one_file_keep_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    with (tmp_path / "both").open("wb") as both:
        subprocess.run([sys.executable, "-c", MIXED], stdout=both, stderr=both, check=True)
    assert [line[-1] for line in (tmp_path / "both").read_text().splitlines()] == list("123456")
