"""Where the work of a campaign goes on a cluster with plain nodes and nodes with GPUs, on a real Slurm."""

from __future__ import annotations

import os

import pytest
from tests.worlds.batch.ordinary_cluster import CPU_NODES, GPU_NODES, OrdinaryCluster
from tests.worlds.batch.person import SlurmPerson

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(300),
]
CAMPAIGN = """
[[job]]
command = ["/bin/sh", "-c", "sleep $((5 + {event} % 16))"]
events = 400
"""


def start(person: SlurmPerson, jobs: str = CAMPAIGN) -> None:
    """A site of up to 6 nodes, and a campaign of events of 5 to 20 s."""
    person.done("site", "init", "--enable", "--nodes", "6")
    person.done("up", "--detach")
    (person.space / "jobs.toml").write_text(jobs)
    person.done("submit", str(person.space / "jobs.toml"))


def test_a_campaign_uses_all_idle_plain_nodes_and_holds_no_gpu(ordinary_cluster: OrdinaryCluster) -> None:
    ordinary_cluster.regular("n1")
    earlier = {row["JobID"] for row in ordinary_cluster.accounted("ada")}
    person = SlurmPerson(ordinary_cluster, "pools")
    with person.staying():
        start(person)
        idle = set(CPU_NODES) - {"n1"}

        def used() -> set[str]:
            return {row["node"] for row in ordinary_cluster.allocations("R")}

        ordinary_cluster.wait(lambda: idle <= used(), "all idle plain nodes are in use", deadline_s=90)
        ordinary_cluster.wait(lambda: used() == {*idle, *GPU_NODES}, "and what is left, too", deadline_s=90)
        person.done("up", "--stop")
        ordinary_cluster.wait(lambda: ordinary_cluster.allocations() == [], "all nodes are given back")

    def mine() -> list[dict[str, str]]:
        rows = [row for row in ordinary_cluster.accounted("ada") if row["JobID"] not in earlier]
        return [row for row in rows if row["JobName"].startswith("tm-") and "-e0-" not in row["JobName"]]

    # slurmdbd hears of what squeue shows a moment later
    nodes = {*idle, *GPU_NODES}
    ordinary_cluster.wait(lambda: nodes <= {row["NodeList"] for row in mine()}, "slurmdbd has heard of them")
    on_gpus = [row for row in mine() if row["NodeList"] in GPU_NODES]
    assert not [row for row in on_gpus if "gres/gpu" in row["AllocTRES"]], "none of their GPUs is held"
    first = min(row["Start"] for row in mine() if row["NodeList"] in CPU_NODES)
    assert first <= min(row["Start"] for row in on_gpus), "nodes with GPUs come last"
