"""On a real Grid Engine, default options in a user's files change neither what the agent sees nor what it requests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from extensions.gridengine.tests.sge.gridengine_shell import HOSTILE, NODES, WALLTIME_S, trial

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Grid Engine")

ENDS_S = WALLTIME_S + 45.0
"""Tidemill's time limit, and a cycle of the scheduler; a job that the agent does not see waits for two such limits."""


@pytest.mark.timeout(300)
def test_own_jobs_are_seen_and_a_regular_job_starts_whatever_the_files_hold(gridengine: Path) -> None:
    found = trial(gridengine, HOSTILE)
    assert found.held, found
    assert found.seen == {"ACTIVE": NODES}, "the agent sees its own jobs"
    assert not found.doubted, "and believes what it sees"
    assert found.waiting_seen, "a waiting job of another is in the windows"
    assert found.wait_s is not None
    assert found.wait_s < ENDS_S
    assert found.left == 0, "what `up --stop` says is true"
