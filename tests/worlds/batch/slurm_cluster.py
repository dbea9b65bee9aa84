"""A real Slurm on this machine for tests: `scripts/slurm.sh`, its commands as an ordinary user, and what breaks it.

The fixture `slurm_cluster` is shared by a test session: leave it idle. `start_slurm(...)` gives a test one of
its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill import clock

SCRIPT = Path(__file__).parents[3] / "scripts" / "slurm.sh"
CLIENTS = (
    "sbatch", "srun", "salloc", "squeue", "sinfo", "scontrol", "scancel", "sacct", "sdiag", "sacctmgr", "sprio",
)  # fmt: skip
USER, UID, GID = "nobody", 65534, 65534
OTHER_USER, OTHER_UID = "daemon", 1
NODES, CORES = 4, 2
INTERPRETER = str(Path(sys.executable).resolve().parents[1])
REACH = ("--reach", INTERPRETER)  #: options of a cluster whose jobs run programs in Python
COMMAND_TIMEOUT_S = 60.0


class SlurmCluster:
    """One cluster. Its folder is short, may be entered by all, and is removed by `stop`.

    `commands`: a folder with all client commands that run as the ordinary user `user`, whoever calls them; put it first
    on PATH (as `env` does) and the adapter under test is an ordinary user. `space`: a folder of that user, which jobs
    and tests may write to.
    """

    within: tuple[
        str, ...
    ] = ()  #: a prefix that enters its network and mounts, where they are not those of the tests

    def __init__(self, *options: str, parent: Path = Path("/tmp")) -> None:
        """Start one; `options` as `scripts/slurm.sh` takes them. Skips the test where Slurm cannot run, fails in CI.
        In `/tmp` slots do not see its folder: they have a `/tmp` of their own."""
        self.directory = Path(tempfile.mkdtemp(prefix="tm-sl-", dir=parent))
        self.directory.chmod(0o755)
        self.user, self.uid, self.gid = USER, UID, GID
        done = subprocess.run(
            [SCRIPT, "start", self.directory / "c", *options], capture_output=True, text=True, check=False
        )
        if done.returncode:
            self.stop()
            reason = f"Slurm does not start: {done.stderr.strip()}"
            pytest.skip(reason)
        self.conf = Path(done.stdout.strip())
        self.commands = self._make_commands(USER, UID)
        self.space = self.make_space("space")

    @property
    def env(self) -> dict[str, str]:
        """Environment in which every client command is the ordinary user's."""
        path = f"{self.commands}:{self.env_root['PATH']}"
        return {**self.env_root, "PATH": path}

    @property
    def env_root(self) -> dict[str, str]:
        """Environment of Slurm's administrator."""
        path = os.environ["PATH"].removeprefix(f"{self.commands}:")
        return {**os.environ, "PATH": path, "SLURM_CONF": str(self.conf)}

    def make_space(self, name: str, *, uid: int = UID) -> Path:
        """A folder that belongs to the ordinary user."""
        path = self.directory / name
        path.mkdir()
        os.chown(path, uid, GID)
        return path

    def run(self, *words: str) -> str:
        """What a client command prints to the administrator; a failure fails the test."""
        return self._run(*words)

    def run_as_user(self, *words: str, user: str = USER) -> str:
        """What a client command (or any program) prints to an ordinary user."""
        uid = UID if user == USER else OTHER_UID
        return self._run("setpriv", f"--reuid={uid}", f"--regid={GID}", "--clear-groups", *words)

    def crash_controller(self) -> None:
        """kill -9 of slurmctld: what it accepted in its last seconds is lost, its numbers come again."""
        self._run(str(SCRIPT), "crash", str(self.directory / "c"))

    def stop_controller(self) -> None:
        """End slurmctld in good order: it saves its state."""
        self._run(str(SCRIPT), "quit", str(self.directory / "c"))

    def start_controller(self) -> None:
        """Start slurmctld again, and wait until it answers."""
        self._run(str(SCRIPT), "controller", str(self.directory / "c"))

    def crash_node(self, node: str) -> None:
        """kill -9 of a node's slurmd."""
        self._run(str(SCRIPT), "node-crash", str(self.directory / "c"), node)

    def start_node(self, node: str) -> None:
        """Start a node's slurmd again."""
        self._run(str(SCRIPT), "node", str(self.directory / "c"), node)

    def resume_node(self, node: str) -> None:
        """Bring a node back that was set down or drained, unless it has come back by itself."""
        words = ["scontrol", "update", f"NodeName={node}", "State=RESUME"]
        self._tried(*words)

    def register_nodes(self) -> None:
        """Let each node's slurmd tell the controller of itself now, not a minute later."""
        self._run(str(SCRIPT), "register", str(self.directory / "c"))

    def picture(self) -> str:
        """Jobs and nodes as they are now, for the message of a failed test; or why the controller does not say."""
        asked = (("squeue", "-a", "-t", "all"), ("sinfo", "-N", "-l"))
        told = [self._tried(*words) for words in asked]
        return "".join(each.stdout or each.stderr for each in told)

    def cancel_all(self) -> None:
        """End all jobs and wait until every node takes jobs. `sinfo -t idle` will not do: it counts nodes that still
        complete a job or that have stopped answering, and on a loaded machine messages of either kind get lost."""
        for reservation in self.run("scontrol", "-o", "show", "reservations").splitlines():
            if reservation.startswith("ReservationName="):
                self.run("scontrol", "delete", reservation.split()[0])
        healed_s = clock.monotonic_s()

        def idle() -> bool:
            nonlocal healed_s
            jobs = self.run("squeue", "-h", "-a", "-t", "PD,R,S,CF,ST", "-o", "%A").split()
            if jobs:
                self._tried("scancel", "-f", *jobs)
            states = self.states()
            if clock.monotonic_s() - healed_s > 10.0:
                self._heal(states)
                healed_s = clock.monotonic_s()
            return not jobs and set(states.values()) == {"idle"}

        self.wait(idle, "all nodes take jobs")

    def states(self) -> dict[str, str]:
        """Slurm's state of each node, such as `idle` and `mixed`."""
        return dict(line.split() for line in self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines())

    def _heal(self, states: dict[str, str]) -> None:
        """What the controller does by itself after minutes: give up an end that it was never told of, and ask a
        node that does not answer."""
        for node, state in states.items():
            if state.startswith("completing"):
                words = ["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=completing"]
                self._tried(*words)
            if state != "idle":
                self.resume_node(node)
        self.register_nodes()

    def wait(self, done: Callable[[], bool], what: str, *, deadline_s: float = 60.0) -> None:
        """Ask until it is so, or fail the test."""
        until_s = clock.monotonic_s() + deadline_s
        while not done():
            if clock.monotonic_s() > until_s:
                pytest.fail(f"waited {deadline_s:g} s in vain: {what}\n{self.picture()}")
            clock.sleep_s(0.05)

    def stop(self) -> None:
        """End every process of the cluster and of its jobs; remove its folder."""
        subprocess.run([SCRIPT, "stop", self.directory / "c"], check=True, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, *words: str) -> str:
        done = self._tried(*words)
        if done.returncode:
            pytest.fail(
                f"`{' '.join(words)}` ended with status {done.returncode}: {done.stderr or done.stdout}"
            )
        return done.stdout

    def _tried(self, *words: str) -> subprocess.CompletedProcess[str]:
        enter = (*self.within, "-p") if self.within else ()
        return subprocess.run(
            [*enter, *words], env=self.env_root, cwd="/",
            capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip

    def _make_commands(self, name: str, uid: int) -> Path:
        folder = self.directory / f"bin-{name}"
        folder.mkdir(mode=0o755)
        for client in CLIENTS:
            real = shutil.which(client)
            if real is None:
                continue
            text = (
                f'#!/bin/sh\nexport SLURM_CONF="${{SLURM_CONF:-{self.conf}}}"\n'
                f'[ "$(id -u)" = 0 ] || exec {real} "$@"\n'  # inside of a job
                f'exec setpriv --reuid={uid} --regid={GID} --clear-groups {real} "$@"\n'
            )
            (folder / client).write_text(text)
            (folder / client).chmod(0o755)
        return folder


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmCluster]:
    """The session's cluster: take `slurm_cluster`."""
    cluster = SlurmCluster("--nodes", str(NODES), "--cores", str(CORES), *REACH)
    yield cluster
    cluster.stop()


@pytest.fixture
def slurm_cluster(slurm_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """A cluster of four two-core nodes without accounting, idle and without jobs at the start."""
    slurm_session.cancel_all()
    yield slurm_session
    slurm_session.cancel_all()


@pytest.fixture
def start_slurm() -> Iterator[Callable[..., SlurmCluster]]:
    """`start_slurm("--nodes", "16", ...)` starts a cluster of the test's own."""
    started: list[SlurmCluster] = []

    def start(*options: str) -> SlurmCluster:
        started.append(SlurmCluster(*options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
