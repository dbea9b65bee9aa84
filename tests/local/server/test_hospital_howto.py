"""The steps of docs/hospital.md: files and commands as they stand there, in the order of the page."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.timing import passed_on
from tests.worlds.home.world import namespace_command

from tidemill.client import Client

PAGE = Path(__file__).parents[3] / "docs" / "hospital.md"
TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
DEADLINE_S = 120.0


def blocks() -> list[tuple[str, str]]:
    """Language and content of the fenced blocks of the steps."""
    steps = PAGE.read_text().partition("## Step by step")[2].partition("\n## ")[0]
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", steps, re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(text)) for language, text in found]


def answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE_S)
            connection.connect(os.fspath(path))
            connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return connection.recv(12) == b"HTTP/1.1 200"
    except OSError:
        return False


TIMING = {"site": {"SYNC_INTERVAL_S": 0.2, "LOCAL_POLL_S": 0.1}}


class Steps:
    """The page's server in a home of its own, in a PID namespace with whatever else is started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "server"
        self.folder.mkdir(mode=0o700)
        self.environ = {**os.environ, "TIDEMILL_HOME": str(home), "HOME": str(home), **passed_on(TIMING)}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        """Run `tidemill WORDS` until `stop`."""
        with (self.home / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*namespace_command(), *TIDEMILL, *words],
                    stdout=log, stderr=log, env=self.environ, cwd=self.folder,
                )
            )  # fmt: skip

    def run(self, line: str) -> str:
        """What a command line of the page prints."""
        done = subprocess.run(
            [*TIDEMILL, *shlex.split(line)[1:]],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def until(self, true: Callable[[], bool]) -> None:
        """Ask until it is so."""
        end = time.monotonic() + DEADLINE_S
        while not true():
            assert all(each.poll() is None for each in self._processes), (self.home / "log").read_text()
            assert time.monotonic() < end, (self.home / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """End everything."""
        for process in self._processes:
            process.kill()  # --kill-child ends the namespace with it
            process.wait()


@pytest.fixture
def steps(short_path: Path) -> Iterator[Steps]:
    made = Steps(short_path)
    yield made
    made.stop()


@pytest.mark.timeout(600)
def test_the_steps_are_run_as_they_stand_on_the_page(steps: Steps) -> None:
    files = [text for language, text in blocks() if language == "toml"]
    lines = [line for language, text in blocks() if not language for line in text.splitlines()]
    check, submit, listed, explain, jobs, report = lines
    today, tomorrow = ((datetime.now(UTC) + timedelta(days=each)).strftime("%Y-%m-%d") for each in (-1, 1))
    planned = files[1].replace("start = 2026-11-25", f"start = {today}")
    (steps.folder / "server.toml").write_text(files[0])
    (steps.folder / "downtimes.toml").write_text(planned.replace("end = 2026-11-25", f"end = {tomorrow}"))
    client = Client(f"unix:{steps.folder}/api.sock", home=steps.home, retry_s=60)
    make_site(steps, "garching")

    steps.start("server", "run", "--config", str(steps.folder / "server.toml"))
    steps.until(lambda: answers(steps.folder / "api.sock"))
    assert "new racks" in steps.run(check)
    steps.start("site", "run", str(steps.home / "garching"))
    steps.until(lambda: [each.state for each in client.sites() if each.name == "garching"] == ["UP"])
    steps.run(submit)
    assert "new racks" in steps.run(listed)
    steps.until(lambda: bool(client.job(1).stays))
    assert "home-down" in steps.run(explain)
    steps.until(lambda: client.job(1).row.state == "COMPLETED")

    assert "ttbar" in steps.run(jobs)
    assert "home-down" in steps.run(report)
    (stay,) = client.job(1).stays
    assert (stay.ward, stay.site, stay.outcome) == ("home-down", "garching", "cured")
    (ward,) = client.wards()
    assert ward.cured == 1


def make_site(steps: Steps, name: str) -> None:
    """A site of one node that has the application of the page."""
    folder = steps.home / name
    (folder / "apps").mkdir(mode=0o700, parents=True)
    (folder / "apps" / "simulate.toml").write_text(
        'name = "simulate"\nexecutable = "/bin/true"\narguments = []\n'
    )
    (folder / "site.toml").write_text(
        f'name = "{name}"\nserver = "unix:{steps.folder}/api.sock"\nnodes_max = 1\n[local]\nnodes = 1\n'
    )
