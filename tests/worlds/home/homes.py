"""A home with a running `tidemill up`, in a PID namespace of its own, for tests that use it as a person would."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.world import namespace_command

from tidemill.client import Client
from tidemill.client.home import read_up
from tidemill.wire.api import JobRow
from tidemill.wire.server_connection import NotFoundError

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
NAMESPACE = [
    *namespace_command()[:-1],
    "--mount-proc",
    "--",
]  # what looks into /proc finds its own numbers there
WAIT_S = 100.0  # the machine may be shared; a test may take 120


class Home:
    """A home with a running `tidemill up`, and a directory to work in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "w"
        self.work.mkdir()
        self.env = {**os.environ, "TIDEMILL_HOME": str(path)}
        self._up: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.path / "up.log").open("wb") as log:
            self._up = subprocess.Popen(
                [*NAMESPACE, *TIDEMILL, "up", "--home", str(self.path)],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: read_up(self.path) is not None, self.logs)

    def stop(self) -> None:
        """Server and site end as with `tidemill up --stop`."""
        assert self._up is not None
        children = Path(f"/proc/{self._up.pid}/task/{self._up.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        self._up.wait(WAIT_S)

    def kill(self) -> None:
        """Server and site end as when their machine loses power. All have ended when this returns: `unshare` waits for
        the first process of the namespace, whose end is that of all others; were it killed itself, these would end
        at any time later, and a server could answer until then."""
        if self._up is None or self._up.poll() is not None:
            return
        children = Path(f"/proc/{self._up.pid}/task/{self._up.pid}/children").read_text().split()
        if children:
            with suppress(ProcessLookupError):
                os.kill(int(children[0]), signal.SIGKILL)
        else:
            self._up.kill()
        self._up.wait()

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.path, ignore_errors=True)

    def run(
        self,
        *words: str,
        stdin: str = "",
        timeout_s: float = WAIT_S,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*TIDEMILL, *words],
            input=stdin,
            cwd=self.work,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def data(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def jobs(self, campaign: str) -> list[JobRow]:
        try:
            return list(Client(home=self.path).jobs(campaign=campaign))
        except NotFoundError:
            return []

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A `tidemill` that runs beside the test, killed if the test leaves it."""
        process = subprocess.Popen(
            [*TIDEMILL, *words],
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def logs(self) -> str:
        return "\n".join(
            f"--- {path}\n{path.read_text()[-2000:]}" for path in sorted(self.path.glob("*.log"))
        )


@contextmanager
def started_home() -> Iterator[Home]:
    """A new home in which `tidemill up` runs; removes both at the end."""
    home = Home(Path(tempfile.mkdtemp(prefix="tm-")))
    try:
        home.start()
        yield home
    finally:
        home.end()


def wait_for(done: Callable[[], bool], told: Callable[[], str] = str, timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            pytest.fail(f"waited in vain\n{told()}")
        time.sleep(0.02)
