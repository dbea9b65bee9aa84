"""Work that needs a GPU, and work that needs none, on a cluster where two of six nodes have GPUs."""

from __future__ import annotations

import os

import pytest
from tests.worlds.batch.newcomer import Newcomer
from tests.worlds.batch.ordinary_cluster import CPU_NODES, GPU_NODES

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(400),
]


def test_a_gpu_job_without_a_wholly_idle_gpu_node_is_not_said_to_run(newcomer: Newcomer) -> None:
    cluster = newcomer.cluster
    cluster.regular(*GPU_NODES)
    job = newcomer.run_beside("gpu", "--gpus", "1", "--", "hostname")
    newcomer.wait(lambda: "waiting" in newcomer.said("gpu"), "`run` says that it waits")
    seen_s = newcomer.polled_s()
    newcomer.wait(
        lambda: newcomer.polled_s() > seen_s + 4, "polls go by, with four idle nodes that have no GPU"
    )

    assert newcomer.job(job)["phase"] == "ASSIGNED"
    said = newcomer.shown("job", "explain", str(job))
    assert "nothing holds it up" not in said
    assert "waiting for a wholly idle node with GPUs: 2 nodes have 3 of 8 cores free" in said
    assert "; 4 nodes without GPUs are idle" in said
    assert cluster.allocations() == []  # a node without GPUs cannot run it

    cluster.regular("g1")
    newcomer.wait(lambda: newcomer.job(job)["state"] == "COMPLETED", "it runs when a GPU node is idle", 120)


def test_an_allocation_on_a_gpu_node_does_not_keep_work_from_idle_plain_nodes(newcomer: Newcomer) -> None:
    cluster = newcomer.cluster
    cluster.regular(*CPU_NODES, "g2")
    before = {row["JobID"] for row in cluster.accounted("ada")}
    newcomer.run_beside("short", "--events", "400", "--", "sh", "-c", "sleep $((5 + {event} % 6))")

    def used() -> set[str]:
        return {each["node"] for each in cluster.allocations("R")}

    newcomer.wait(lambda: used() == {"g1"}, "a node with GPUs is taken where no other is idle", 120)
    cluster.regular("n1", "g2")
    newcomer.wait(lambda: used() >= {"n2", "n3", "n4"}, "the three idle nodes without GPUs work", 120)

    def accounted() -> list[str]:
        return [row["AllocTRES"] for row in cluster.accounted("ada") if row["JobID"] not in before]

    newcomer.wait(lambda: sum(map(bool, accounted())) >= 4, "slurmdbd has heard of all four")
    assert [each for each in accounted() if "gres/gpu" in each] == []
