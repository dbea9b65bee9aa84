"""A running `tidemill up` for all tests of this folder; they run with integrations/.venv (`make test-integrations`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]


@pytest.fixture(scope="session", autouse=True)
def home() -> Iterator[Path]:
    """Its home, named in the environment."""
    path = Path(tempfile.mkdtemp(prefix="tmi-"))
    os.environ["TIDEMILL_HOME"] = str(path)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["XDG_CACHE_HOME"] = str(path / "cache")
    with (path / "out.log").open("wb") as log:
        subprocess.run([*TIDEMILL, "up", "--detach"], check=True, stdout=log, stderr=log, timeout=100)
    try:
        yield path
    finally:
        subprocess.run([*TIDEMILL, "up", "--stop"], check=False, timeout=100, capture_output=True)
        shutil.rmtree(path, ignore_errors=True)
