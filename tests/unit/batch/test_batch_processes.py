"""What /proc says of processes is read whatever they call themselves."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.batch import processes
from tidemill.cli import supervise

PR_SET_NAME = 15  # <linux/prctl.h>


@pytest.fixture(params=[b"\xff\xfe", b"a) S 1 (b", b"a\n) R 2 3"])
def named(request: pytest.FixtureRequest) -> Iterator[None]:
    """This process calls itself so for a while."""
    comm = Path("/proc/self/comm")
    before = comm.read_bytes().rstrip(b"\n")
    library = ctypes.CDLL(None, use_errno=True)
    assert library.prctl(PR_SET_NAME, request.param) == 0
    try:
        yield
    finally:
        library.prctl(PR_SET_NAME, before)


@pytest.mark.usefixtures("named")
def test_a_process_of_any_name_is_found_with_its_parent() -> None:
    found = processes.find(os.getpid())
    assert found is not None
    assert (found.parent, found.session) == (os.getppid(), os.getsid(0))
    assert supervise._parent(os.getpid()) == os.getppid()


def test_what_is_no_line_of_a_process_is_none() -> None:
    line = "7 (a) R 6 5 4 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0\n"
    assert processes.parse_stat(7, line) == processes.Process(7, "R", 6, 4, 99, 7)
    for changed in (line.replace(" 6 ", " x "), line.replace("99", "9" * 5000), line[:20], "", ")"):
        assert processes.parse_stat(7, changed) is None
