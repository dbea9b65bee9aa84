"""The cluster itself is what its tests take it for: shared nodes, another user's jobs, accounting, limits; and a whole
Tidemill of a person with an account runs there."""

from __future__ import annotations

import os

import pytest
from tests.worlds.batch.ordinary_cluster import CPU_NODES, GPU_NODES, NODES, OrdinaryCluster
from tests.worlds.batch.person import SlurmPerson

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(300),
]


def test_another_user_keeps_as_many_jobs_of_five_cores_as_is_said(ordinary_cluster: OrdinaryCluster) -> None:
    ordinary_cluster.regular("6")
    assert set(ordinary_cluster.states().values()) == {"mixed"}

    ordinary_cluster.regular("n1", "g2")

    busy = {node for node, state in ordinary_cluster.states().items() if state == "mixed"}
    assert busy == {"n1", "g2"}

    def accounted() -> set[tuple[str, str, str]]:
        regular = [row for row in ordinary_cluster.accounted("bob") if row["JobName"].startswith("r-")]
        return {(row["User"], row["Account"], row["NCPUS"]) for row in regular if row["Start"] != "Unknown"}

    ordinary_cluster.wait(lambda: accounted() == {("bob", "cms", "5")}, "slurmdbd has heard of bob's jobs")


def test_three_cores_of_a_busy_node_are_another_users_at_once(ordinary_cluster: OrdinaryCluster) -> None:
    ordinary_cluster.regular(*NODES)

    words = ("srun", "-c", "3", "-n", "1", "-t", "1", "id", "-un")
    assert ordinary_cluster.run_as_user(*words).strip() == "ada"


def test_first_to_last_a_tidemill_of_an_ordinary_user_runs_there(ordinary_cluster: OrdinaryCluster) -> None:
    ordinary_cluster.regular("n1", "n2", *GPU_NODES)
    person = SlurmPerson(ordinary_cluster, "whole")
    with person.staying():
        person.done("site", "init", "--enable")
        person.done("run", "--events", "8", "--name", "first", "--", "hostname")
        mine = ordinary_cluster.accounted("ada")
        assert {row["Account"] for row in mine} == {"atlas"}
        assert any(row["NodeList"] in CPU_NODES for row in mine if row["JobName"].startswith("tm-"))
        person.done("up", "--stop")
        ordinary_cluster.wait(lambda: ordinary_cluster.allocations() == [], "all nodes are given back")
