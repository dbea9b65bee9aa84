"""Our count of nodes sees a longer gap than Slurm, which has chosen nodes: we ask for what Slurm will give."""

from __future__ import annotations

import pytest
from tests.slurm.test_site_harvest_slurm import SECOND, campaign
from tests.worlds.batch.site_slurm import site_on
from tests.worlds.batch.slurm_cluster import OTHER_USER, SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_gap_is_as_long_as_slurm_plans_it(slurm_cluster: SlurmCluster) -> None:
    submit = ("sbatch", "--parsable", "-D", "/", "-o/dev/null", "--wrap", "sleep 170")
    nodes = slurm_cluster.run("sinfo", "-h", "-N", "-p", "batch", "-o", "%N").split()
    slurm_cluster.run_as_user(*submit, "-N1", "-w", nodes[0], "-t3", user=OTHER_USER)
    slurm_cluster.wait(lambda: "R" in slurm_cluster.run("squeue", "-h", "-o", "%t"), "the first one runs")
    # wants the first one's node, which we do not read: we count idle nodes enough, and leave it out after a while
    slurm_cluster.run_as_user(*submit, "-N2", "-w", ",".join(nodes[:2]), "-t1", user=OTHER_USER)
    with site_on(slurm_cluster) as it:
        campaign(it, *SECOND, events=5000)
        it.wait(lambda: len(it.ours("R")) == 3, "pilots run beside the first one", 40)
        asked = [record["walltime_s"] for record in it.records("submit") for _ in range(record["count"])]
        assert (
            sum(walltime_s <= 180.0 for walltime_s in asked) == 1
        )  # on the node that is planned for the second
