"""An ordinary user on a fresh Slurm: the commands of docs/first-campaign-slurm.md, from the installed wheel to results
from compute nodes."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.worlds.batch.person import COMMAND_S, SlurmPerson
from tests.worlds.batch.slurm_cluster import SlurmCluster
from tests.worlds.home.pages import Step, missing, steps

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user")


def known(cluster: SlurmCluster) -> dict[str, str]:
    """Name, user, nodes and comment of every job that Slurm knows, by number."""
    lines = cluster.run("squeue", "-h", "-a", "-t", "all", "-o", "%A %j %u %N %k").splitlines()
    return dict((line + " ").split(" ", 1) for line in lines)


def on_the_page(person: SlurmPerson, step: Step) -> str:
    """What the page's commands print for this user, as a reader pastes them into a shell."""
    shell = ["/bin/bash", "-c", f"set -eu -o pipefail; {step.commands}"]
    done = subprocess.run(
        [*person.words()[:-1], *shell],
        cwd=person.space,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{step.commands}\n{done.stdout}"
    assert missing(step.shown, done.stdout) == [], f"{step.commands}\n{done.stdout}"
    return done.stdout


@pytest.mark.timeout(300)
def test_the_page_leads_from_the_wheel_to_results_from_compute_nodes(slurm_cluster: SlurmCluster) -> None:
    """Its first command installs the wheel, which has happened: the environment of the tests is what it leaves."""
    person = SlurmPerson(slurm_cluster, "first")
    before = set(known(slurm_cluster))  # of other tests
    page = steps("first-campaign-slurm")
    with person.staying():
        for step in page[:-1]:
            on_the_page(person, step)
        told = [line for number, line in known(slurm_cluster).items() if number not in before]
        pilots = [line.split() for line in told if "-e1-" in line.split()[0]]
        assert pilots, told
        assert {each[1] for each in pilots} == {"nobody"}
        assert all(each[2].startswith("n") for each in pilots)
        status = person.data("site", "status")
        assert (status["mode"], status["batch"], status["policy"]) == ("run", "slurm", "yield")
        assert "up --stop" in page[-1].commands
        on_the_page(person, page[-1])
        slurm_cluster.wait(
            lambda: slurm_cluster.run("squeue", "-h", "-a", "-t", "PD,R,S") == "", "all nodes are given back"
        )
