"""Processes are told apart also in a PID namespace that sees the outer /proc, where every number there is another's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import os, subprocess
from tidemill.batch import processes

child = subprocess.Popen(["sleep", "60"], start_new_session=True)
assert str(os.getpid()) != os.readlink("/proc/self"), "the test needs an outer /proc"
table = processes.processes()
assert set(table) == {os.getpid(), child.pid}, table
assert table[child.pid].session == child.pid and table[child.pid].parent == os.getpid()
started = processes.start_of(child.pid)
assert started and processes.is_alive(child.pid, started)
assert processes.words_of(child.pid)[0] == b"sleep"
assert processes.kill_family([child.pid], "MARK=none")
assert child.wait() == -9
assert not processes.kill_family([child.pid], "MARK=none")
print("fine")
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="util-linux is missing")
def test_numbers_of_an_outer_proc_are_translated() -> None:
    own = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    command = ["unshare", *own, "--pid", "--fork", "--kill-child", "--", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("no PID namespaces for this user")
    assert done.stdout == "fine\n", done.stderr
