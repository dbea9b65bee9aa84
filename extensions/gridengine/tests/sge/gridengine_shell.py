"""A user of a real Grid Engine with files of default options, and their effect on others when Tidemill has all nodes.

Tidemill does not yield there (docs/gridengine.md): a regular job waits for the end of its short limits, and for
longer where the agent does not see it and takes the nodes again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from extensions.gridengine.tests.sge.batch_gridengine import NOBODY, SLOTS, environment
from tests.timing import Values, passed_on
from tests.worlds.batch.shell_trial import Trial, becomes, tried
from tests.worlds.home.homes import TIDEMILL

NODES = 2
HOLDER = "HOLDER"  #: in a file: the number of a job that never ends
HOSTILE = {".sge_qstat": "-s r\n-q nosuch.q\n", ".sge_request": f"-hold_jid {HOLDER} -q nosuch.q\n"}
"""Files of a home directory that hide jobs, or keep each job from starting."""

WALLTIME_S = 90
TIMING: Values = {"site": {"CLUSTER_POLL_S": 5}}
COMMAND_S = 90.0


class GridEngineTrialUser:
    """Root with another home directory, by an entry of /etc/passwd in this mount namespace only."""

    batch = "gridengine"
    nodes = NODES
    yields = False
    started_s = 2.0 * WALLTIME_S

    def __init__(self, cluster: Path, files: Mapping[str, str]) -> None:
        self._staff = {**os.environ, **environment(cluster)}
        self.space = cluster.parent / f"shell-{secrets.token_hex(3)}"
        self.space.mkdir()
        for name, text in files.items():
            (self.space / name).write_text(text)
        entry = rf"\g<1>{self.space}:/bin/sh"
        passwd = re.sub(r"(?m)^(root:[^:]*:0:0:[^:]*:).*$", entry, Path("/etc/passwd").read_text())
        (self.space / "passwd").write_text(passwd)
        home = {"HOME": str(self.space), "TIDEMILL_HOME": str(self.space / "h")}
        self.env = {**self._staff, **home, **passed_on(TIMING)}
        self.env.pop("SLURM_CONF", None)
        self._inner = 0

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Kill what commands have left running at the end."""
        script = 'mount --bind "$0" /etc/passwd && exec sleep infinity'
        words = ["unshare", "-pmf", "--kill-child", "--mount-proc", "sh", "-c", script]
        with subprocess.Popen([*words, str(self.space / "passwd")]) as keeper:
            try:
                children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children")
                assert becomes(lambda: bool(children.read_text().split()), COMMAND_S)
                self._inner = int(children.read_text().split()[0])
                comm = Path(f"/proc/{self._inner}/comm")
                assert becomes(lambda: comm.read_text().strip() == "sleep", COMMAND_S)
                yield
            finally:
                keeper.kill()

    def make_site(self) -> None:
        """Set up the site: short limits, so that a trial is short."""
        self.told("site", "init", "--enable", "--no-probe", "--nodes", str(NODES), "--batch", self.batch)
        site = self.space / "h" / "site" / "site.toml"
        text = re.sub(r"(?m)^walltime_s = .*$", "", site.read_text())
        site.write_text(f"walltime_s = {WALLTIME_S}\n{text}")

    def words(self, *words: str) -> list[str]:
        """The command line of a `tidemill` of this user."""
        return ["nsenter", "-t", str(self._inner), "-p", "-m", f"--wd={self.space}", *TIDEMILL, *words]

    def told(self, *words: str) -> str:
        """What a `tidemill` of this user prints, on either stream; a failure fails the test."""
        done = subprocess.run(
            self.words(*words), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=COMMAND_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
        return done.stdout or done.stderr

    def data(self, *words: str) -> Any:
        """Its JSON."""
        return json.loads(self.told(*words, "--json"))

    def ours(self, *, waiting: bool) -> int:
        """Tidemill's jobs that run; those that wait, too."""
        return sum(row[2].startswith("tm-") and (waiting or "r" in row[4]) for row in _rows(self._staff))

    def submit(self) -> str:
        """The number of a short job of another user on all nodes."""
        words = ["-pe", "nodes", str(NODES * SLOTS), "-l", "h_rt=60", "sleep", "2"]
        return _qsub(self._staff, *words)

    def waits(self, number: str) -> bool:
        """Whether that job waits."""
        return any(row[0] == number and row[4] in ("qw", "hqw") for row in _rows(self._staff))


def trial(cluster: Path, files: Mapping[str, str]) -> Trial:
    """One trial on an idle cluster of two nodes, which is idle again afterwards."""
    env = {**os.environ, **environment(cluster)}
    holder = _qsub(env, "-h", "sleep", "600")
    user = GridEngineTrialUser(cluster, {name: text.replace(HOLDER, holder) for name, text in files.items()})
    try:
        with user.staying():
            return tried(user)
    finally:
        subprocess.run(["qdel", "-u", "*"], env=env, capture_output=True, check=False)
        becomes(lambda: not _rows(env), COMMAND_S)


def _qsub(env: dict[str, str], *words: str) -> str:
    """The number of a job of another user."""
    command = ["qsub", "-terse", "-b", "y", "-o", "/dev/null", "-j", "y", *words]
    done = subprocess.run(
        command, env=env, user=NOBODY, group=NOBODY, cwd="/", capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _rows(env: dict[str, str]) -> list[list[str]]:
    """Number, priority, name, user, state of all jobs."""
    told = subprocess.run(["qstat", "-u", "*"], env=env, capture_output=True, text=True, check=True).stdout
    return [line.split() for line in told.splitlines()[2:]]
