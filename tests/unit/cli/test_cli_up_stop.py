"""`up --stop` returns when the process has ended, not when it gives its lock back."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.cli.start.up import prepare, start_detached, stop_up, stopped_text
from tidemill.client.home import make_home
from tidemill.errors import ConfigError, SiteError
from tidemill.site.setup.ownership import check_site_directory

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
    ("counts", "text"),
    [
        ((0,), "stopped; every job had ended"),
        ((1,), "stopped; 1 job that had not ended goes on with the next `tidemill up`"),
        ((2,), "stopped; 2 jobs that had not ended go on with the next `tidemill up`"),
        ((1, 1), "stopped; what is done of 1 canceled job is delivered with the next `tidemill up`"),
        (
            (4, 2),
            "stopped; 2 jobs that had not ended go on and what is done of 2 canceled jobs is delivered with the next "
            "`tidemill up`",
        ),
        ((None,), "stopped; what was running goes on with the next `tidemill up`"),
    ],
)
def test_a_stop_says_what_goes_on_later(counts: tuple[int | None, ...], text: str) -> None:
    unended, *canceled = counts
    assert stopped_text(unended, *(each or 0 for each in canceled)) == text


@pytest.mark.parametrize("foreign", ["another process", "no process"])
def test_a_number_that_is_not_the_holder_of_the_lock_gets_no_signal(tmp_path: Path, foreign: str) -> None:
    """In another PID namespace or on another host, the number is that of another process or of none."""
    lock = tmp_path / "up.lock"
    with (
        subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE) as holder,
        subprocess.Popen(["sleep", "1000"]) as other,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        number = other.pid if foreign == "another process" else 2**22 + 1  # beyond the kernel's numbers
        lock.write_text(f"{number}\nlogin7.example.org\n")
        try:
            with pytest.raises(SiteError, match=f"process {number} on host `login7.example.org`") as refused:
                stop_up(tmp_path)
            assert refused.value.hint is not None
            assert "login7.example.org" in refused.value.hint
            assert (holder.poll(), other.poll()) == (None, None)
        finally:
            holder.kill()
            other.kill()


def test_an_up_is_not_stopped_from_another_pid_namespace(tmp_path: Path) -> None:
    lock = tmp_path / "up.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        words = [sys.executable, "-m", "tidemill.cli.main", "up", "--stop", "--home", str(tmp_path)]
        for more in ([], ["--mount-proc"]):
            unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", *more]
            done = subprocess.run([*unshare, *words], capture_output=True, text=True, check=False)
            assert done.returncode == 3, done.stderr
            assert f"process {holder.pid} runs `tidemill up`" in done.stderr
            assert "PID namespace" in done.stderr
            assert holder.poll() is None
        holder.kill()


def test_a_home_made_under_a_umask_of_0_is_not_refused_afterwards(tmp_path: Path) -> None:
    home = tmp_path / "local" / "state" / "tidemill"
    before = os.umask(0)
    try:
        make_home(home)
        prepare(home, nodes=1, cores=1)
    finally:
        os.umask(before)
    make_home(home)
    check_site_directory(home / "site")
    assert stat.S_IMODE((home / "site" / "site.toml").stat().st_mode) == 0o644
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o755
