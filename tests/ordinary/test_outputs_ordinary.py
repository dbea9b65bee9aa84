"""Outputs of finished events come while a campaign runs, and the half of it that is not wanted can be canceled."""

from __future__ import annotations

import os

import pytest
from tests.worlds.batch.newcomer import ENDED, newcomer_on
from tests.worlds.batch.ordinary_cluster import GPU_NODES, OrdinaryCluster

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(400),
]
EVENTS, KEPT, QUICK = 40, 24, 4
"""Events in all, those that are not canceled, and those of them that end at once."""


def test_files_come_while_the_campaign_runs_and_half_of_it_can_be_canceled(
    ordinary_cluster: OrdinaryCluster,
) -> None:
    ordinary_cluster.regular("n1", "n2", *GPU_NODES)
    with newcomer_on(ordinary_cluster) as ada:
        folder = ada.space / "tidemill-out" / "half"
        go = ada.space / "go"  # until it is there, further events go on; those to be canceled go on for ever
        loop = f"until test {{event}} -lt {QUICK} || test -e {go} -a {{event}} -lt {KEPT}; do sleep 0.5; done"
        command = ("sh", "-c", f"{loop}; echo {{event}} > n-{{event}}")
        job = ada.run_beside("half", "--events", str(EVENTS), "--output", "n-{event}", "--", *command)

        def found() -> set[int]:
            names = [path.name.removeprefix("n-") for path in folder.rglob("n-*")]
            return {int(name) for name in names if name.isdecimal()}

        ada.wait(lambda: found() == set(range(QUICK)), "the first files are there", 150)
        assert ada.job(job)["state"] == "RUNNING"

        ada.done("job", "cancel", str(job), "--events", f"{KEPT}-{EVENTS - 1}")
        go.touch()
        ada.wait(lambda: ada.job(job)["state"] in ENDED, "the other half ends", 150)
        ada.wait(lambda: found() == set(range(KEPT)), "all files of the other half are there")
        assert ada.job(job)["events_done"] == KEPT
