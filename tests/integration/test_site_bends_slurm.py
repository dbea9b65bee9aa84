"""A gap that Slurm sees shorter than our count of nodes is used all the same, and the pilots know their end."""

from __future__ import annotations

import json

import pytest
from tests.integration.site_slurm import Site, site_on
from tests.integration.slurm_cluster import OTHER_USER, SlurmCluster
from tests.integration.test_site_harvest_slurm import SECOND, campaign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def ends_told(it: Site) -> set[str]:
    """Allocations whose pilots were told an earlier end."""
    found: set[str] = set()
    for path in (it.directory / "fleets").rglob("0*.json"):
        found |= {end["allocation"] for end in json.loads(path.read_bytes())["ends"]}
    return found


def test_pilots_start_in_a_gap_that_is_shorter_than_they_asked_for(slurm_cluster: SlurmCluster) -> None:
    submit = ("sbatch", "--parsable", "-D", "/", "-o/dev/null", "--wrap", "sleep 110")
    slurm_cluster.run_as_user(*submit, "-N1", "-t2", user=OTHER_USER)
    slurm_cluster.wait(lambda: "R" in slurm_cluster.run("squeue", "-h", "-o", "%t"), "the first one runs")
    slurm_cluster.run_as_user(
        *submit, "-N4", "-t1", user=OTHER_USER
    )  # planned when the first one's limit ends
    with site_on(slurm_cluster, harvest="slack_s = 200") as it:  # we believe that others overstay for long
        campaign(it, *SECOND, events=5000)
        it.wait(lambda: len(it.ours("R")) == 3, "pilots run beside the first one", 30)
        assert min(record["walltime_s"] for record in it.records("submit")) >= 180.0
        limits = slurm_cluster.run("squeue", "-h", "-r", "-t", "R", "-u", "nobody", "-o", "%l").split()
        assert limits == ["1:00"] * 3
        it.wait(lambda: len(ends_told(it)) == 3, "they are told when they end")
