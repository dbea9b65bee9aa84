"""What a person reads while work waits on an ordinary cluster: the same sentence in each command, true at that poll."""

from __future__ import annotations

import os

import pytest
from tests.worlds.batch.newcomer import newcomer_on
from tests.worlds.batch.ordinary_cluster import NODES, OrdinaryCluster

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(500),
]
SHARED = "6 nodes have 3 of 8 cores free, and this version uses whole nodes"


def test_work_that_waits_says_why_in_every_command(ordinary_cluster: OrdinaryCluster) -> None:
    with newcomer_on(ordinary_cluster) as ada:
        ordinary_cluster.regular(*NODES)
        first = ada.run_beside("shared", "--events", "2", "--", "sleep", "1")
        sentence = f"waiting for a wholly idle node: {SHARED}"
        ada.wait(lambda: all(sentence in text for text in ada.views(first).values()), "each says it")
        ada.wait(lambda: sentence in ada.said("shared"), "run says it, too")
        assert ada.job(first)["phase"] == "ASSIGNED"
        assert "ASSIGNED" in ada.shown("jobs")
        assert sentence in ada.run("jobs").stderr
        assert "nothing holds it up" not in ada.shown("job", "explain", str(first))

        ordinary_cluster.regular(*NODES[1:])
        ada.wait(lambda: ada.job(first)["state"] == "COMPLETED", "a whole node is idle: it runs")

        big = ada.run_beside("big", "--events", "8", "--", "sleep", "900")
        ada.wait(lambda: ada.job(big)["events_leased"] == 8 and not ada.job(big)["phase"], "it runs")
        assert "nothing holds it up: it runs at site" in ada.shown("job", "explain", str(big))

        behind = ada.run_beside("behind", "--events", "2", "--", "hostname")
        ada.wait(
            lambda: ada.job(behind)["events_leased"] == 2 and ada.job(behind)["phase"] == "ASSIGNED",
            "it is leased behind events that fill the node, and does not run",
        )
        assert "nothing holds it up" not in ada.shown("job", "explain", str(behind))
        assert ada.job(big)["phase"] == ""
        ada.give_back()
