"""A campaign of Pythia jobs through Slurm, also with pilots that mpiexec starts on two nodes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.worlds.batch.slurm_cluster import SlurmCluster
from tests.worlds.batch.slurm_world import slurm_world
from tests.worlds.home.pythia import FILE, check, needs_pythia

needs_pythia()

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(os.geteuid() != 0, reason="the clusters' daemons need root"),
]


def test_slurm(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    with slurm_world(slurm_cluster) as it:
        it.submit_file(FILE)
        check(it.wait_jobs("c"), tmp_path)


@pytest.mark.parametrize("mpiexec", ["mpich", "openmpi"])
def test_mpiexec_on_two_nodes_of_slurm(slurm_cluster: SlurmCluster, tmp_path: Path, mpiexec: str) -> None:
    program = shutil.which(f"mpiexec.{mpiexec}")
    if program is None:
        pytest.fail(f"there is no mpiexec.{mpiexec}; hint: apt-get install mpich openmpi-bin")
    chosen = slurm_cluster.directory / f"mpi-{mpiexec}"
    chosen.mkdir(mode=0o755)
    # a link would hide MPICH's own programs
    (chosen / "mpiexec").write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    (chosen / "mpiexec").chmod(0o755)
    path = {"PATH": f"{chosen}:{os.environ['PATH']}"}
    launcher = 'launcher = "mpiexec"'
    with slurm_world(slurm_cluster, cluster_keys=launcher, harvest="width = 2", environment=path) as it:
        it.submit_file(FILE)
        check(it.wait_jobs("c"), tmp_path)

        def ranks() -> set[str]:
            bundles = (it.home / "site" / "fleets").glob("*/bundle/*.tar")
            return {path.stem.split(".")[-2] for path in bundles}

        # one rank may do all the work before the other has started
        it.wait_for(lambda: ranks() == {"r0", "r1"}, "a pilot has started on each node")
