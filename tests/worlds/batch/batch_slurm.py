"""A real Slurm in the conformance suite: four emulated nodes of two cores, used as an ordinary user."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.worlds.batch.batch_world import KEY, BatchWorld, Can
from tests.worlds.batch.slurm_cluster import CORES, NODES, OTHER_USER, USER, SlurmCluster

from tidemill.batch.contract import BatchSystem
from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.config.site import Cluster

TIMING = {"batch": {"UNKNOWN_S": 1, "COMMAND_TIMEOUT_S": 20}}
"""What `pytest.mark.timing` of the conformance suite is for this system."""


class SlurmWorld:
    """`proctrack/linuxproc` loses what leaves its process tree, so CONTAIN is missing; limits are kept to the half
    minute, so WALLTIME is; what can never run waits for ever unless EnforcePartLimits is set, so REFUSE is."""

    can = frozenset(set(Can) - {Can.CONTAIN, Can.REFUSE, Can.WALLTIME})
    nodes = NODES
    cores = CORES
    short_s = 60.0
    deadline_s = 60.0
    features = ("left", "right")

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        token = secrets.token_hex(4)
        self.space = cluster.make_space(f"space-{token}")
        self.directory = cluster.make_space(f"batch-{token}")

    def open(self) -> BatchSystem:
        config = Cluster(calls_per_min_max=100_000)
        batch = SlurmBatchSystem(self.directory, config, key=KEY)
        for folder in ("scripts", "output"):
            os.chown(self.directory / folder, self.cluster.uid, self.cluster.gid)
        return batch

    def plant(self, *, name: str, comment: str, stranger: bool) -> str:
        words = [
            "sbatch",
            "--parsable",
            "-p",
            "shared",
            "-n1",
            "-t60",
            "-o",
            "/dev/null",
            "--chdir=/",
            "-J",
            name,
        ]
        user = OTHER_USER if stranger else USER
        return self.cluster.run_as_user(
            *words, "--comment", comment, "--wrap", "sleep 1000", user=user
        ).strip()

    def lives(self, number: str) -> bool:
        return bool(self.cluster.run("squeue", "-h", "-a", "-j", number, "-t", "PD,R").strip())

    def has_lost_kill(self, number: str) -> bool:
        return False

    @contextmanager
    def away(self) -> Iterator[None]:
        """Clients give up after a second instead of ten."""
        self.cluster.stop_controller()
        hasty = self.cluster.directory / "hasty.conf"
        hasty.write_text(f"{self.cluster.conf.read_text()}\nMessageTimeout=1\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(hasty))
            yield
        self.cluster.start_controller()

    def picture(self) -> str:
        return self.cluster.picture()


@contextmanager
def world(request: pytest.FixtureRequest, directory: Path) -> Iterator[BatchWorld]:
    assert directory
    cluster: SlurmCluster = request.getfixturevalue("slurm_cluster")
    path: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    path.setenv("PATH", cluster.env["PATH"])
    path.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    yield SlurmWorld(cluster)
