"""`tidemill quickstart` as a new user runs it, with fewer events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import NAMESPACE, TIDEMILL, wait_for
from tests.worlds.home.processes import snapshot

from tidemill import extensions

pytest.importorskip("pythia8mc")
pytest.importorskip("uproot")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        yield Path(directory)


def _environment(place: Path) -> dict[str, str]:
    (place / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(place / "tmp"), "TIDEMILL_HOME": str(place / "unused")}


def _processes(place: Path) -> list[tuple[str, ...]]:
    return [
        each.argv for each in snapshot().values() if any(str(place / "tmp") in word for word in each.argv)
    ]


@pytest.mark.slow
def test_quickstart_generates_analyses_and_leaves_outputs_and_nothing_else(place: Path) -> None:
    done = subprocess.run(
        [*TIDEMILL, "quickstart", "--events", "60", "--json"],
        cwd=place, env=_environment(place), capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    out = place / "tidemill-quickstart"
    assert told["outputs"] == str(out / "out")
    # `make test-core` runs this without the extension, whose tests look at its report
    if "report" not in extensions.installed():
        assert (told["report"], told["data"], (out / "report.html").exists()) == (None, None, False)
        assert "`tidemill report` needs the extension `report`; install it: pip install" in done.stderr
    assert len(list(out.rglob("*.hepmc*"))) == 3
    assert len(list(out.rglob("*.root"))) == 3
    assert not _processes(place)
    assert not list((place / "tmp").iterdir())
    assert not (place / "unused").exists()


@pytest.mark.slow
def test_quickstart_that_is_interrupted_leaves_no_process(place: Path) -> None:
    with subprocess.Popen(
        [*NAMESPACE, sys.executable, "-c", _FORWARD, *TIDEMILL, "quickstart"],
        cwd=place, env=_environment(place), stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        wait_for(lambda: any("generate.py" in " ".join(argv) for argv in _below(running.pid)))
        (first,) = [each for each in snapshot().values() if each.parent == running.pid]
        os.kill(first.pid, signal.SIGTERM)
        _, said = running.communicate(timeout=100)
    assert "interrupted" in said
    assert not _processes(place)
    assert not list((place / "tmp").iterdir())


def _below(pid: int) -> list[tuple[str, ...]]:
    """What was started by `pid`, however deep: other tests generate events at the same time."""
    processes = snapshot()
    family = {pid}
    while more := {each for each, process in processes.items() if process.parent in family} - family:
        family |= more
    return [process.argv for each, process in processes.items() if each in family]


# The first process of a PID namespace ignores signals that it does not handle; it hands them on and waits for the end.
_FORWARD = """
import signal, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait())
"""
