"""PBS in the conformance suite: complete fake commands (tests/fakes/pbs), which really run the jobs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.batch.batch_world import KEY, Can

from tidemill import clock
from tidemill.batch.contract import BatchSystem
from tidemill.batch.pbs import PbsBatchSystem
from tidemill.config.site import Cluster

COMMANDS = Path(__file__).parents[2] / "fakes" / "pbs"
CORES = 4
END_S = 0.2
"""Real MoMs notice ends 1 to 3 s after `qdel`, up to 19 s where PBS copied the script: scaled, as KILL_DELAY_S."""


class PbsWorld:
    """Two nodes of four processors; no history of jobs, which is PBS's default. What can never run is taken, and waits
    with a comment that says so."""

    can = frozenset(Can) - {Can.CONTAIN, Can.EXCLUDE, Can.NODE_COUNTS, Can.REFUSE, Can.START_BY}
    nodes = 2
    cores = CORES
    short_s = 8.0  #: the script has a quarter of it before KILL, on a busy machine, too
    deadline_s = 30.0
    features = ("left=True", "right=True")

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "batch"
        self.state = directory / "pbs"
        self.space = directory / "space"
        for each in (self.state, self.space):
            each.mkdir()
        self._alive = (self.state / "alive").open("w")  # its jobs end when this process does, however
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        self.configure()

    def configure(
        self,
        *,
        preempt_order: str = "",
        end_s: float = END_S,
        strict_ordering: bool = False,
        vnodes: int = 1,
        **server: str,
    ) -> None:
        """Write the server's configuration. `preempt_order`, `S` or `D`: there is a queue `urgent` that preempts.
        `end_s`: so late the MoM notices ends. `strict_ordering`: the first blocked job has a planned start. `vnodes`:
        the parts of each host, where there are several."""
        config = {
            "nodes": {"n1": CORES, "n2": CORES},
            "features": {"n1": {"left": "True"}, "n2": {"right": "True"}},
            "server": {"job_history_enable": "False", **server},
            "queues": {
                "workq": {"queue_type": "Execution", "enabled": "True", "started": "True"},
                **({"urgent": {"queue_type": "Execution", "enabled": "True", "started": "True", "Priority": "200"}}
                   if preempt_order else {}),
            },
            "preempt_order": preempt_order,
            "end_s": end_s,
            "strict_ordering": strict_ordering,
            "vnodes": vnodes,
        }  # fmt: skip
        (self.state / "config.json").write_text(json.dumps(config))

    def open(self) -> BatchSystem:
        config = Cluster(calls_per_min_max=100_000)
        return PbsBatchSystem(self.directory, config, key=KEY)

    def plant(self, *, name: str, comment: str, stranger: bool) -> str:
        words = comment.split()
        key = words[1] if words[:1] == ["tidemill"] else "-"
        script = self.space / "sleep"
        script.write_text("sleep 600\n")
        variables = f"TIDEMILL_KEY={key},TIDEMILL_NAME={name}"
        command = ["qsub", "-N", name, "-v", variables, "-h", str(script)]
        environ = person("stranger") if stranger else person()
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def lives(self, number: str) -> bool:
        return (
            subprocess.run(["qstat", number], env=person(), capture_output=True, check=False).returncode == 0
        )

    def has_lost_kill(self, number: str) -> bool:
        return False

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        (self.state / "away").touch()
        try:
            yield
        finally:
            (self.state / "away").unlink()

    def age(self, seconds: float) -> None:
        """What waits has waited so much longer."""
        with (self.state / "lock").open("w") as lock:  # a site's agent may be asking, or submitting
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads((self.state / "state.json").read_text())
            for job in state["jobs"].values():
                job.update(qtime=job["qtime"] - seconds)
            (self.state / "state.new").write_text(json.dumps(state))
            (self.state / "state.new").replace(self.state / "state.json")

    def commands(self, name: str) -> list[str]:
        """The command lines of one command so far."""
        lines = (self.state / "commands").read_text().splitlines()
        return [line for line in lines if line.split()[0] == name]

    def picture(self) -> str:
        command = ["qstat", "-f"]
        return subprocess.run(command, env=person(), capture_output=True, text=True, check=False).stdout

    def stop(self) -> None:
        """Nothing runs any more."""
        deadline_s = clock.monotonic_s() + self.deadline_s
        while numbers := self._living():
            for user in {user for _, user in numbers}:
                theirs = [number for number, owner in numbers if owner == user]
                subprocess.run(["qdel", *theirs], env=person(user), capture_output=True, check=False)
            if clock.monotonic_s() > deadline_s:
                pytest.fail("the fake PBS does not become empty")
            clock.sleep_s(0.05)

    def close(self) -> None:
        """What still runs ends by itself."""
        self._alive.close()

    def _living(self) -> list[tuple[str, str]]:
        subprocess.run(["qselect"], env=person(), capture_output=True, check=True)
        jobs = json.loads((self.state / "state.json").read_text())["jobs"].values()
        return [(job["key"], job["owner"]) for job in jobs if job["state"] != "F"]


def person(name: str = "") -> dict[str, str]:
    """The environment in which a user (default: this one) calls the commands."""
    return {**os.environ, "TIDEMILL_FAKE_PBS_USER": name or pwd.getpwuid(os.getuid()).pw_name}


def install(folder: Path, state: Path) -> None:
    """The commands of this PBS, for PATH: they find their server without a variable of Tidemill's."""
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    for each in COMMANDS.iterdir():
        if each.is_symlink():
            (folder / each.name).write_text(f'#!/bin/sh\nTIDEMILL_FAKE_PBS={state} exec {each} "$@"\n')
            (folder / each.name).chmod(0o755)


@contextlib.contextmanager
def world(request: pytest.FixtureRequest, directory: Path) -> Iterator[PbsWorld]:
    before = dict(os.environ)
    made = PbsWorld(directory)
    install(directory / "bin", made.state)
    os.environ["PATH"] = os.pathsep.join([str(directory / "bin"), before["PATH"]])
    try:
        yield made
        made.stop()
    finally:
        made.close()
        os.environ.clear()
        os.environ.update(before)
