"""A Slurm as universities run it (`scripts/ordinary.sh`): shared nodes, GPUs, accounts, another user's jobs everywhere.

The fixture `ordinary_cluster` is shared by a test session; no job is there when a test starts. `SlurmPerson` is ada on
it, with whom a whole Tidemill runs.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.batch.slurm_cluster import COMMAND_TIMEOUT_S, REACH, SlurmCluster

SCRIPT = Path(__file__).parents[3] / "scripts" / "ordinary.sh"
ADA, BOB = 20001, 20002
CPU_NODES, GPU_NODES = ("n1", "n2", "n3", "n4"), ("g1", "g2")
NODES = CPU_NODES + GPU_NODES
CORES, REGULAR_CORES = 8, 5
LICENSE, LICENSES = "idl", 8
LIMITS = {"short": "02:00:00", "long": "7-00:00:00"}
SACCT = (
    "JobID,JobName,User,Account,Partition,State,Submit,Start,End,ElapsedRaw,NNodes,NCPUS,NodeList,AllocTRES"
)


class OrdinaryCluster(SlurmCluster):
    """One cluster with the users ada, who has nothing yet, and bob, whose jobs are `regular`. It begins idle."""

    def __init__(self, *options: str, parent: Path = Path("/var/tmp")) -> None:
        """Start one; `options` as `scripts/slurm.sh` takes them. Skips the test where it cannot run, fails in CI. Its
        folder is not in /tmp: slots have a /tmp of their own, and ada's outputs are where she sees them."""
        self.directory = Path(tempfile.mkdtemp(prefix="tm-o-", dir=parent))
        self.directory.chmod(0o755)
        self.user, self.uid, self.gid = "ada", ADA, ADA
        done = subprocess.run(
            [SCRIPT, "start", self.directory, *options], capture_output=True, text=True, check=False
        )
        if done.returncode:
            self.stop()
            reason = f"an ordinary cluster does not start: {done.stderr.strip()}"
            pytest.skip(reason)
        self.conf = Path(done.stdout.strip())
        init = (self.directory / "run" / "init").read_text().strip()
        self.within = ("nsenter", "-t", init, "-n", "-m")
        self.commands = self.directory  # its clients need a network that a path cannot give
        self.space = self.make_space("space")

    def make_space(self, name: str, *, uid: int = ADA) -> Path:
        """A folder in ada's home."""
        return super().make_space(f"home/ada/{name}", uid=uid)

    def run_as_user(self, *words: str, user: str = "ada") -> str:
        """What a program prints to ada or bob, in the home directory."""
        return self._script("enter", user, *words)

    def regular(self, *where: str, seconds: int = 3600) -> None:
        """From now on bob has a job of 5 cores on each of these nodes (a number: so many, anywhere) and no others;
        returns when they run and the others are gone."""
        self._script("regular", "--seconds", str(seconds), *where)
        names = {f"r-{each}" for each in where if not each.isdecimal()}
        names |= {f"r-{i + 1}" for each in where if each.isdecimal() for i in range(int(each))}

        def settled() -> bool:
            lines = self.run("squeue", "-h", "-u", "bob", "-o", "%j %T").splitlines()
            rows = [line.split() for line in lines if line.startswith("r-")]
            return {row[0] for row in rows if row[1] == "RUNNING"} == names and len(rows) == len(names)

        self.wait(settled, f"bob's jobs are {sorted(names)}")

    def allocations(self, *states: str) -> list[dict[str, str]]:
        """Tidemill's jobs in these states (default: that wait or run): number, state, node, GPUs, limit and reason."""
        names = ("id", "name", "state", "node", "gres", "limit", "reason")
        words = (
            "squeue",
            "-h",
            "-r",
            "-t",
            ",".join(states) or "PD,R",
            "-u",
            "ada",
            "-o",
            "%i|%j|%T|%N|%b|%l|%r",
        )
        rows = [dict(zip(names, line.split("|"), strict=True)) for line in self.run(*words).splitlines()]
        return [row for row in rows if row["name"].startswith("tm-")]

    def accounted(self, user: str) -> list[dict[str, str]]:
        """What sacct says of all jobs of a user."""
        words = ("sacct", "-a", "-D", "-X", "-P", "--noconvert", "-S", "now-1day", "-o", SACCT, "-u", user)
        return list(csv.DictReader(io.StringIO(self.run(*words)), delimiter="|"))

    def take_licenses(self) -> None:
        """bob takes all licenses for a job of one core on n1: allocations that ask for one wait, idle nodes or not."""
        words = (
            "-L",
            f"{LICENSE}:{LICENSES}",
            "-c1",
            "-w",
            "n1",
            "-J",
            "licensed",
            "-o/dev/null",
            "--chdir=/",
        )
        self.run_as_user("sbatch", *words, "--wrap=sleep 1000", user="bob")
        rows = ("squeue", "-h", "-u", "bob", "-n", "licensed", "-t", "R", "-o", "%i")
        self.wait(lambda: self.run(*rows) != "", "bob has all licenses")

    def limit(self, partition: str, limit: str) -> None:
        """What staff do: another limit of a partition, at once."""
        self.run("scontrol", "update", f"PartitionName={partition}", f"MaxTime={limit}")

    def cancel_all(self) -> None:
        """The first state: no job, no reservation, all nodes idle, limits as at the start."""
        self._script("regular")
        for partition, limit in LIMITS.items():
            self.limit(partition, limit)
        super().cancel_all()

    def stop(self) -> None:
        """End every process of the cluster and of its jobs; remove its folder."""
        subprocess.run([SCRIPT, "stop", self.directory], check=True, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _script(self, verb: str, *words: str) -> str:
        command = (str(SCRIPT), verb, str(self.directory), *words)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd="/", timeout=COMMAND_TIMEOUT_S
        )
        if done.returncode:
            pytest.fail(
                f"`{' '.join(command)}` ended with status {done.returncode}: {done.stderr or done.stdout}"
            )
        return done.stdout


@pytest.fixture(scope="session")
def ordinary_session() -> Iterator[OrdinaryCluster]:
    """The session's cluster: take `ordinary_cluster`."""
    cluster = OrdinaryCluster(*REACH, "--line", f"Licenses={LICENSE}:{LICENSES}")
    yield cluster
    cluster.stop()


@pytest.fixture
def ordinary_cluster(ordinary_session: OrdinaryCluster) -> Iterator[OrdinaryCluster]:
    """Six nodes, idle and without jobs at the start."""
    ordinary_session.cancel_all()
    yield ordinary_session
    ordinary_session.cancel_all()
