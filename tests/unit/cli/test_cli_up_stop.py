"""`up --stop` returns when the process has ended, not when it gives its lock back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.cli.start.up import start_detached, stop_up, stopped_text
from tidemill.errors import ConfigError

HOLDER = """
import fcntl, os, signal, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(str(os.getpid()))
lock.flush()

def end(*_):
    fcntl.flock(lock, fcntl.LOCK_UN)
    time.sleep(0.5)  # an interpreter takes a while to end
    os._exit(0)

signal.signal(signal.SIGTERM, end)
print("held", flush=True)
while True:
    signal.pause()
"""


def test_a_wrong_site_file_ends_a_start_in_the_background_as_one_in_the_foreground(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "site.toml").write_text('name = "x"\nserver = "unix:/x"\nwaltime_s = 5\n')
    with pytest.raises(ConfigError, match="unknown key `waltime_s`") as refused:
        start_detached(tmp_path)
    assert (refused.value.exit_code, refused.value.hint) == (2, "did you mean `walltime_s`?")


def test_a_stopped_up_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "up.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        assert stop_up(tmp_path)

        assert holder.poll() == 0


def test_nothing_is_stopped_where_nothing_runs(tmp_path: Path) -> None:
    assert not stop_up(tmp_path)


@pytest.mark.parametrize(
    ("unended", "text"),
    [
        (0, "stopped; every job had ended"),
        (1, "stopped; 1 job that had not ended goes on with the next `tidemill up`"),
        (2, "stopped; 2 jobs that had not ended go on with the next `tidemill up`"),
        (None, "stopped; what was running goes on with the next `tidemill up`"),
    ],
)
def test_a_stop_says_what_goes_on_later(unended: int | None, text: str) -> None:
    assert stopped_text(unended) == text
