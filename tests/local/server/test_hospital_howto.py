"""The files and the downtimes of the steps in docs/hospital.md, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

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


@pytest.mark.timeout(600)
def test_the_files_of_the_steps_are_read_and_the_downtimes_are_listed() -> None:
    files = [text for language, text in blocks() if language == "toml"]
    lines = [line for language, text in blocks() if not language for line in text.splitlines()]
    commands = [each for each in lines if each.startswith("tidemill downtimes ")]  # the others need a site
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%d")
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as text:
        folder = Path(text)
        home = folder / "server"
        home.mkdir(mode=0o700)
        (home / "server.toml").write_text(files[0])
        (home / "downtimes.toml").write_text(files[1].replace("2026-11-25", tomorrow))
        environ = {**os.environ, "TIDEMILL_HOME": str(folder), "HOME": str(folder)}
        words = [*TIDEMILL, "server", "run", "--config", str(home / "server.toml")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(words, stdout=log, stderr=log, env=environ, cwd=home)
        try:
            end = time.monotonic() + DEADLINE_S
            while not answers(home / "api.sock"):
                assert server.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end
                time.sleep(0.1)
            said = {}
            for command in commands:
                done = subprocess.run(
                    [*TIDEMILL, *shlex.split(command)[1:]],
                    cwd=home, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                )  # fmt: skip
                assert done.returncode == 0, f"{command}: {done.stderr}"
                said[command] = done.stdout
        finally:
            server.terminate()
            server.wait(DEADLINE_S)
    assert len(said) == 2
    assert "new racks" in said["tidemill downtimes check downtimes.toml"]
    assert "new racks" in said["tidemill downtimes list"]
