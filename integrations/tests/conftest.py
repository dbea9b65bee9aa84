"""A running `tidemill up` for all tests of this folder; they run with integrations/.venv (`make test-integrations`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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
    _up(path)
    try:
        yield path
    finally:
        _down()
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def restart(home: Path) -> Callable[[], None]:
    """Restarts it; what runs is lost."""

    def again() -> None:
        _down()
        _up(home)

    return again


def _up(home: Path) -> None:
    with (home / "out.log").open("ab") as log:
        subprocess.run([*TIDEMILL, "up", "--detach"], check=True, stdout=log, stderr=log, timeout=300)


def _down() -> None:
    subprocess.run([*TIDEMILL, "up", "--stop"], check=False, timeout=300, capture_output=True)
