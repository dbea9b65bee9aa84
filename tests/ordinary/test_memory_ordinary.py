"""The memory that Tidemill names as the most that fits runs: allocations get less than their nodes have."""

from __future__ import annotations

import os
import re

import pytest
from tests.worlds.batch.newcomer import Newcomer

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm and act as its user"),
    pytest.mark.timeout(400),
]


def test_the_most_memory_that_is_said_to_fit_runs_and_no_more_is_taken(newcomer: Newcomer) -> None:
    """Nodes have 16,000 MB. Slurm gives 1,900 MB with each of 8 cores where a job asks for no memory."""
    huge = ("run", "--dry-run", "--memory", "99G", "--", "true")
    newcomer.wait(lambda: newcomer.run(*huge).returncode != 0, "the server knows the site's nodes")
    refused = newcomer.run("run", "--memory", "15200MB", "--", "hostname", COLUMNS="2000")
    assert refused.returncode != 0
    said = re.search(r"--memory (\d+)MB", refused.stderr)
    assert said is not None, refused.stderr
    assert said[1] == "15150"
    job = newcomer.run_beside("most", "--memory", f"{said[1]}MB", "--", "hostname")
    newcomer.wait(lambda: newcomer.job(job)["state"] == "COMPLETED", "it runs", 90)

    plan = newcomer.shown("run", "--dry-run", "--memory", "2000MB", "--events", "20", "--", "true")
    assert "at once 7 on a node of 8 cores" in plan
    assert "--memory 1850MB gives 8" in plan
    plan = newcomer.shown("run", "--dry-run", "--events", "20", "--", "true")
    assert "at once 8 on a node of 8 cores" in plan
