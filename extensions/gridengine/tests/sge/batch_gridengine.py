"""Grid Engine in the conformance suite: a real one, two nodes in network namespaces of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.batch.batch_world import KEY, BatchWorld, Can

from tidemill import clock
from tidemill.batch.contract import BatchSystem
from tidemill.config.site import Cluster
from tidemill_gridengine.adapter import GridEngineBatchSystem
from tidemill_gridengine.settings import GridEngineSettings

SCRIPT = Path(__file__).with_name("gridengine.sh")
SLOTS = 4
NOBODY = 65534
KILLS_IGNORED = 15  #: a job that has got its KILL is gone long before


def read_if_there(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


TIMING = {"batch": {"NICE": 0, "COMMAND_TIMEOUT_S": 20}}
"""What `pytest.mark.timing` of the conformance suite is for this system."""


class GridEngineWorld:
    """Two nodes of four slots. Jobs are root's, for their files are; strangers' are of user 65534."""

    can = frozenset(
        {
            Can.ARRAYS, Can.FORGET,
            Can.NAMES, Can.AWAY, Can.EXCLUDE, Can.FOREIGN, Can.NODE_COUNTS, Can.ORDER, Can.REFUSE, Can.SIGNAL,
            Can.SNAPSHOT, Can.WALLTIME,
        }
    )  # fmt: skip
    nodes = 2
    cores = SLOTS
    short_s = 8.0  #: the script has a quarter of it before KILL, on a busy machine, too
    deadline_s = 60.0
    features = ("", "")

    def __init__(self, cluster: Path, directory: Path) -> None:
        self._cluster = cluster
        self.directory = directory / "batch"
        self.space = directory / "space"
        self.space.mkdir()
        self._planted: list[str] = []

    def open(self) -> BatchSystem:
        config = Cluster(launcher="mpiexec", calls_per_min_max=100_000)
        own = GridEngineSettings(parallel_environment="nodes")
        return GridEngineBatchSystem(self.directory, config, key=KEY, own=own)

    def plant(self, *, name: str, comment: str, stranger: bool) -> str:
        words = comment.split()
        key = words[1] if words[:1] == ["tidemill"] else "-"
        command = [
            "qsub",
            "-terse",
            "-N",
            name,
            "-ac",
            f"tidemill={key}",
            "-b",
            "y",
            "-o",
            "/dev/null",
            "-j",
            "y",
        ]
        done = subprocess.run(
            [*command, "-h", "sleep", "600"],
            user=NOBODY if stranger else None, group=NOBODY if stranger else None,
            capture_output=True, text=True, check=True, cwd="/",
        )  # fmt: skip
        self._planted.append(done.stdout.strip())
        return self._planted[-1]

    def lives(self, number: str) -> bool:
        listed = subprocess.run(["qstat", "-u", "*"], capture_output=True, text=True, check=True).stdout
        return any(line.split()[:1] == [number] for line in listed.splitlines())

    def has_lost_kill(self, number: str) -> bool:
        """The shepherd of Grid Engine 8.1.9 forwards one KILL, which can go astray under load. It ignores the further
        ones, one a second, and notes that in its trace."""
        traces = (self._cluster / "spool" / "execd").glob(f"*/active_jobs/{number}.1/trace")
        return any(
            read_if_there(each).count("ignoring repeated KILL notification") >= KILLS_IGNORED
            for each in traces
        )

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        subprocess.run([SCRIPT, "crash", self._cluster], check=True)
        try:
            yield
        finally:
            subprocess.run([SCRIPT, "master", self._cluster], check=True)

    def picture(self) -> str:
        return subprocess.run(["qstat", "-f", "-u", "*"], capture_output=True, text=True, check=False).stdout

    def clear(self) -> None:
        """Nothing runs or waits. A job whose end a daemon has missed stays for ever: it is taken off the list."""
        began_s = clock.monotonic_s()
        subprocess.run(["qdel", "-u", "*"], capture_output=True, check=False)
        while subprocess.run(["qstat", "-u", "*"], capture_output=True, check=True).stdout:
            waited_s = clock.monotonic_s() - began_s
            if waited_s > self.deadline_s:
                pytest.fail("Grid Engine does not become empty")
            if waited_s > self.deadline_s / 2:
                subprocess.run(["qdel", "-f", "-u", "*"], capture_output=True, check=False)
            clock.sleep_s(0.1)


def start(folder: Path, *options: str) -> None:
    """A Grid Engine in `folder`; `enter` it before use."""
    done = subprocess.run([SCRIPT, "start", folder, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = f"Grid Engine does not start: {done.stderr.strip()}"
        pytest.skip(reason)


def environment(folder: Path) -> dict[str, str]:
    """The variables by which its commands find the Grid Engine in this folder."""
    pairs = (folder / "env.sh").read_text().removeprefix("export ").split()
    return dict(pair.split("=", 1) for pair in pairs)


def enter(folder: Path) -> None:
    """Our process and its children use the Grid Engine in this folder from now on."""
    os.environ.update(environment(folder))


@contextlib.contextmanager
def running(*options: str) -> Iterator[Path]:
    """A Grid Engine in a short folder that all may enter; the tests may use the folder around it, too."""
    folder = Path(tempfile.mkdtemp(prefix="tm-ge-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        start(folder / "c", "--slots", str(SLOTS), "--notify", "1", *options)
        yield folder / "c"
    finally:
        subprocess.run([SCRIPT, "stop", folder / "c"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def gridengine() -> Iterator[Path]:
    """The group's cluster of two nodes, each with a network of its own."""
    with running("--nodes", "2") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gridengine_here() -> Iterator[Path]:
    """The group's cluster whose one node is this host."""
    with running() as cluster:
        yield cluster


@contextlib.contextmanager
def world(request: pytest.FixtureRequest, directory: Path) -> Iterator[BatchWorld]:
    cluster: Path = request.getfixturevalue("gridengine")
    enter(cluster)
    made = GridEngineWorld(cluster, directory)
    made.clear()
    yield made
    made.clear()
