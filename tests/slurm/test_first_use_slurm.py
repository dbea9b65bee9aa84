"""An ordinary user on a fresh Slurm: three commands, from the installed wheel to a result from a compute node."""

from __future__ import annotations

import os

import pytest
from tests.worlds.batch.person import SlurmPerson
from tests.worlds.batch.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user")


def known(cluster: SlurmCluster) -> dict[str, str]:
    """Name, user, nodes and comment of every job that Slurm knows, by number."""
    lines = cluster.run("squeue", "-h", "-a", "-t", "all", "-o", "%A %j %u %N %k").splitlines()
    return dict((line + " ").split(" ", 1) for line in lines)


@pytest.mark.timeout(180)
def test_three_commands_from_the_wheel_to_the_first_result(slurm_cluster: SlurmCluster) -> None:
    """The first command, `pip install tidemill`, has happened: the environment of the tests is what it leaves."""
    person = SlurmPerson(slurm_cluster, "first")
    before = set(known(slurm_cluster))  # of other tests
    with person.staying():
        person.done("site", "init", "--enable")
        printed = person.done("run", "--", "/bin/sh", "-c", "echo computed by $(id -un)")
        assert printed == "computed by nobody\n"
        told = [line for number, line in known(slurm_cluster).items() if number not in before]
        pilots = [line.split() for line in told if "-e1-" in line.split()[0]]
        assert pilots, told
        assert {each[1] for each in pilots} == {"nobody"}
        assert all(each[2].startswith("n") for each in pilots)
        status = person.data("site", "status")
        assert (status["mode"], status["batch"], status["policy"]) == ("run", "slurm", "yield")
        person.done("up", "--stop")
        slurm_cluster.wait(
            lambda: slurm_cluster.run("squeue", "-h", "-a", "-t", "PD,R,S") == "", "all nodes are given back"
        )
