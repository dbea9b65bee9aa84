"""A real Slurm whose compute nodes do not reach the login node: work and results travel by files alone."""

from __future__ import annotations

import os
import signal

import pytest
from tests.worlds.batch.slurm_cluster import SlurmCluster
from tests.worlds.batch.slurm_world import slurm_world
from tests.worlds.home.oracle import output_bytes
from tests.worlds.home.processes import send

TIMING = {"site": {"TOP_UP_S": 0.5, "DRAIN_S": 1}}
JOB = """campaign = "c"
[[job]]
command = ["sh", "-c", "sleep 0.25; echo {event} {seed} > hits"]
events = 120
retries = 50
outputs = [{name = "hits", path = "hits", kind = "concat"}]
[job.resources]
cores = 1
memory_mb = 200
event_s = 0.25
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons need root")
def test_a_campaign_runs_through_slurm_without_a_lead(slurm_cluster: SlurmCluster) -> None:
    with slurm_world(slurm_cluster, harvest='tcp = "nodes"', timing=TIMING) as it:
        it.submit_file(JOB)
        it.wait_for(lambda: bool(it.processes("pilot")), "pilots run")
        send(it.processes("pilot")[0], signal.SIGKILL)
        (detail,) = it.wait_jobs("c", 60.0)
        assert not it.processes("lead")
        assert (detail.row.events_done, detail.row.events_failed) == (120, 0), it.tails()
        lines = (f"{event} {1 + detail.seed_base + event}\n" for event in range(120))
        assert output_bytes(detail) == "".join(lines).encode(), it.tails()
