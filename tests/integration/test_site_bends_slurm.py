"""Our count of nodes sees a longer gap than Slurm, which has chosen nodes: we ask for what Slurm will give."""

from __future__ import annotations

import pytest
from tests.integration.site_slurm import site_on
from tests.integration.slurm_cluster import OTHER_USER, SlurmCluster
from tests.integration.test_site_harvest_slurm import SECOND, campaign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_gap_is_as_long_as_slurm_plans_it(slurm_cluster: SlurmCluster) -> None:
    submit = ("sbatch", "--parsable", "-D", "/", "-o/dev/null", "--wrap", "sleep 170")
    slurm_cluster.run_as_user(*submit, "-N1", "-t3", user=OTHER_USER)
    slurm_cluster.wait(lambda: "R" in slurm_cluster.run("squeue", "-h", "-o", "%t"), "the first one runs")
    slurm_cluster.run_as_user(
        *submit, "-N4", "-t1", user=OTHER_USER
    )  # planned when the first one's limit ends
    with site_on(slurm_cluster, harvest="slack_s = 300") as it:  # we believe that others overstay for long
        campaign(it, *SECOND, events=5000)
        it.wait(lambda: len(it.ours("R")) == 3, "pilots run beside the first one", 20)
        assert {record["walltime_s"] for record in it.records("submit")} <= {60.0, 120.0}
