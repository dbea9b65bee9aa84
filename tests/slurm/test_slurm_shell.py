"""On a real Slurm, the shell of a Tidemill user changes neither what the agent sees nor what it does."""

from __future__ import annotations

import os

import pytest
from tests.worlds.batch.person import SlurmPerson
from tests.worlds.batch.slurm_cluster import NODES, SlurmCluster
from tests.worlds.batch.slurm_shell import VARIABLES, trial

from tidemill import config
from tidemill.config.site import SiteConfig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user")

YIELD_S = 45.0
"""A poll is every 30 s; without these variables the job waits for up to 25 s (bench/profile_variables.py)."""


@pytest.mark.timeout(420)
def test_a_regular_job_of_all_nodes_starts_soon_whatever_the_shell_exports(
    slurm_cluster: SlurmCluster,
) -> None:
    found = trial(slurm_cluster, VARIABLES, nodes=NODES)
    assert found.held, found
    assert found.seen == {"ACTIVE": NODES}, "each allocation is one, and is seen"
    assert not found.doubted
    assert found.wait_s is not None
    assert found.wait_s < YIELD_S
    assert found.stopped.startswith("stopped; ")
    assert found.left == 0, "what `up --stop` says is true"


def test_windows_and_checks_read_times_whatever_the_shell_exports(slurm_cluster: SlurmCluster) -> None:
    person = SlurmPerson(slurm_cluster, "shell-windows")
    words = ["sbatch", "--parsable", "-N", str(NODES - 1), "-t", "20", "-o", "/dev/null", "--chdir=/"]
    number = slurm_cluster.run_as_user(*words, "--wrap", "sleep 600").strip()
    slurm_cluster.wait(lambda: "R" in slurm_cluster.run("squeue", "-h", "-j", number, "-o", "%t"), "it runs")
    wide = slurm_cluster.run_as_user(*words, f"-N{NODES}", "--wrap", "true").strip()
    slurm_cluster.wait(
        lambda: "T" in slurm_cluster.run("squeue", "-h", "-j", wide, "-o", "%S"), "its start is planned"
    )
    clean = person.data("windows", "--batch", "slurm")
    person.env.update(VARIABLES)
    hostile = person.data("windows", "--batch", "slurm")
    assert clean["steps"], "the idle node's window ends with the planned start"
    assert clean["steps"][0]["seconds"] <= 20 * 60
    assert [(each["nodes"], each["by"]) for each in hostile["steps"]] == [
        (each["nodes"], each["by"]) for each in clean["steps"]
    ]
    assert hostile["steps"][0]["seconds"] == pytest.approx(clean["steps"][0]["seconds"], abs=60)


def test_init_takes_the_shells_wishes_and_says_so(slurm_cluster: SlurmCluster) -> None:
    person = SlurmPerson(slurm_cluster, "shell-init")
    person.env.update(
        SBATCH_PARTITION="shared",
        SBATCH_QOS="long",
        SBATCH_GRES="gpu:1",
        SQUEUE_USERS="daemon",
        SALLOC_ACCOUNT="phys",
    )
    told = person.data("site", "init", "--no-probe")
    site = config.load(person.site / "site.toml", SiteConfig)
    assert (site.cluster.partition, site.cluster.qos, site.accounts[0].name) == ("shared", "long", "phys")
    said = [each["found"] for each in told["findings"] if each["check"] == "your shell"]
    assert said[0].startswith(
        "taken into site.toml: `SALLOC_ACCOUNT=phys` as `accounts`, `SBATCH_PARTITION=shared`"
    )
    assert said[1] == "no effect on Tidemill: SBATCH_GRES, SQUEUE_USERS"
    text = (person.site / "site.toml").read_text()
    assert "-> `SBATCH_QOS` of your shell" in text
    person.env["SBATCH_RESERVATION"] = "school"
    checked = [each for each in person.data("site", "check") if each["check"] == "your shell"]
    assert [each["hint"] for each in checked if each["state"] == "warn"] == [
        "if Tidemill's jobs are to use it, set `cluster.reservation` in site.toml"
    ]
