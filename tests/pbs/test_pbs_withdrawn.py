"""Jobs that others delete while they wait, where PBS keeps no history: their end is known a while later."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pbs.test_pbs_endings import client, is_final, kill, runs, submission, wait
from tests.worlds.batch.batch_pbs import PbsWorld, person, world
from tests.worlds.batch.batch_world import KEY

from tidemill.batch.contract import Answer, Ending, Status
from tidemill.batch.pbs import PbsBatchSystem
from tidemill.config.site import Cluster
from tidemill.model.state import AllocationState

pytestmark = pytest.mark.timing(batch={"UNKNOWN_S": 600, "WORD_S": 0.3})

WAITS = "tm-here-e1-9"


@pytest.fixture
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PbsWorld]:
    with world(request, tmp_path) as made:
        yield made


def hurried(pbs: PbsWorld) -> PbsBatchSystem:
    """A client on a file system that shows new files within 0.3 s."""
    config = Cluster(calls_per_min_max=100_000, launcher="fork")
    return PbsBatchSystem(pbs.directory, config, key=KEY)


def waits(status: Status) -> bool:
    return status.answer is Answer.FOUND and status.state is AllocationState.QUEUED


def test_what_others_delete_while_it_waits_is_canceled_before_it_is_lost(pbs: PbsWorld) -> None:
    batch = hurried(pbs)
    for number in range(pbs.nodes):
        batch.submit(submission("sleep 600", f"tm-here-e1-{number}"))
        wait(batch, f"tm-here-e1-{number}", runs)
    job = batch.submit(submission("sleep 600", WAITS))
    wait(batch, WAITS, waits)
    subprocess.run(["qdel", job], env=person(), check=True)
    status = wait(batch, WAITS, is_final)
    assert (status.state, status.ending) == (AllocationState.CANCELED, Ending.CANCELED)
    assert "while it waited" in status.reason


@pytest.mark.timing(batch={"UNKNOWN_S": 0.5})
def test_what_has_run_and_left_no_word_is_not_canceled(pbs: PbsWorld) -> None:
    batch = client(pbs)
    kill(batch)
    assert wait(batch, "tm-here-e1-1", lambda each: each.answer is Answer.GONE).answer is Answer.GONE
