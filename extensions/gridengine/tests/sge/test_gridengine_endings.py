"""A real Grid Engine of one node: what is lost, refused, killed or deleted by others ends in one named state."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from extensions.gridengine.tests.sge.batch_gridengine import enter
from tests.worlds.batch.batch_world import KEY

from tidemill import clock
from tidemill.batch.contract import Answer, BatchSubmission, Ending, Status
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill_gridengine.adapter import GridEngineBatchSystem
from tidemill_gridengine.settings import GridEngineSettings

DEADLINE_S = 120.0  #: on a busy machine a test of some seconds took 42
pytestmark = [pytest.mark.timeout(400), pytest.mark.timing(batch={"UNKNOWN_S": 0.5})]


@pytest.fixture
def batch(gridengine_here: Path, tmp_path: Path) -> Iterator[GridEngineBatchSystem]:
    enter(gridengine_here)
    made = client(tmp_path)
    yield made
    subprocess.run(["qdel", "-u", "*"], capture_output=True, check=False)
    deadline_s = clock.monotonic_s() + DEADLINE_S
    while subprocess.run(["qstat", "-u", "*"], capture_output=True, check=False).stdout.strip():
        assert clock.monotonic_s() < deadline_s, "jobs of a test that is over do not leave the machine"
        clock.sleep_s(0.2)


def client(folder: Path, **changes: Any) -> GridEngineBatchSystem:
    config = msgspec.structs.replace(Cluster(calls_per_min_max=100_000), **changes)
    own = GridEngineSettings(parallel_environment="node")
    return GridEngineBatchSystem(folder / "batch", config, key=KEY, own=own)


def submission(script: str, number: int = 1) -> BatchSubmission:
    return BatchSubmission(
        name=f"tm-here-e1-{clock.now_us()}{number}",
        command=["/bin/sh", "-c", script],
        nodes=1,
        cores=1,
        memory_mb=0,
        walltime_s=600,
    )


def wait(batch: GridEngineBatchSystem, name: str, done: Callable[[Status], bool]) -> Status:
    deadline_s = clock.monotonic_s() + DEADLINE_S
    while not done(status := batch.status([name])[name]):
        assert clock.monotonic_s() < deadline_s, f"waited in vain: {status}"
        clock.sleep_s(0.1)
    return status


def is_final(status: Status) -> bool:
    return status.answer is Answer.FOUND and status.state in ALLOCATION_FINAL


def runs(status: Status) -> bool:
    return status.state is AllocationState.ACTIVE


def test_submission_whose_reply_was_lost_is_found_by_name(
    batch: GridEngineBatchSystem, tmp_path: Path
) -> None:
    wanted = submission("sleep 600")
    number = batch.submit(wanted)
    (tmp_path / "batch" / "scripts" / f"{wanted.name}.id").unlink()
    assert client(tmp_path).submit(wanted) == number


@pytest.mark.timing(batch={"UNKNOWN_S": 120})
def test_job_whose_shell_was_killed_is_told_by_the_accounting(
    batch: GridEngineBatchSystem, tmp_path: Path
) -> None:
    wanted = submission("kill -9 $PPID; sleep 600")
    patient = client(tmp_path)
    patient.submit(wanted)
    status = wait(patient, wanted.name, is_final)
    assert status.ending is Ending.CANCELED
    assert "failed 100" in status.reason


def test_job_that_cannot_be_started_has_failed_to_launch(
    batch: GridEngineBatchSystem, tmp_path: Path
) -> None:
    wanted = submission("true")
    broken = client(tmp_path, directives=["-o /nowhere/at/all"])
    broken.submit(wanted)
    status = wait(broken, wanted.name, is_final)
    assert status.ending is Ending.LAUNCH
    assert "E" in status.reason
    for _ in range(3):  # it is deleted, and stays failed
        assert wait(broken, wanted.name, is_final).ending is Ending.LAUNCH


def test_waiting_job_that_somebody_else_deletes_is_unclear_and_then_gone(
    batch: GridEngineBatchSystem,
) -> None:
    holder, wanted = submission("sleep 600"), submission("true", 2)
    batch.submit(msgspec.structs.replace(holder, cores=4))
    wait(batch, holder.name, runs)
    number = batch.submit(wanted)
    assert batch.status([wanted.name])[wanted.name].state is AllocationState.QUEUED
    subprocess.run(["qdel", number], check=True, capture_output=True)
    assert batch.status([wanted.name])[wanted.name].answer is Answer.UNCLEAR
    wait(batch, wanted.name, lambda each: each.answer is Answer.GONE)


def test_limit_cannot_be_shortened_and_this_is_said(batch: GridEngineBatchSystem) -> None:
    wanted = submission("sleep 600")
    batch.submit(wanted)
    wait(batch, wanted.name, runs)
    assert batch.shorten({wanted.name: clock.now_s() + 60.0}) == {}
    assert any("cannot be lowered" in note for note in batch.facts().notes)


def test_held_job_says_so(batch: GridEngineBatchSystem) -> None:
    holder, wanted = submission("sleep 600"), submission("true", 2)
    batch.submit(msgspec.structs.replace(holder, cores=4))
    wait(batch, holder.name, runs)
    number = batch.submit(wanted)
    subprocess.run(["qhold", "-h", "o", number], check=True, capture_output=True)
    status = wait(batch, wanted.name, lambda each: bool(each.held))
    assert status.state is AllocationState.QUEUED


def test_reservations_and_shared_nodes_are_in_the_snapshot(batch: GridEngineBatchSystem) -> None:
    later = "0101" if clock.utc_text(clock.now_us())[5:7] != "01" else "0201"
    words = ["qrsub", "-a", f"{later}0000", "-d", "600", "-pe", "node", "4", "-N", "kept"]
    year = int(clock.utc_text(clock.now_us())[:4]) + 1
    words[2] = f"{year}{later}0000"
    made = subprocess.run(words, check=True, capture_output=True, text=True)
    wanted = submission("sleep 600")
    batch.submit(wanted)
    wait(batch, wanted.name, runs)
    machine = batch.snapshot()
    (node,) = machine.nodes
    assert (node.state.value, node.cores, node.cores_free) == ("shared", 4, 3)
    (kept,) = machine.reservations
    assert (kept.name, kept.nodes, kept.end_s - kept.start_s) == ("kept", (node.name,), 600)
    subprocess.run(["qrdel", made.stdout.split()[3]], check=True, capture_output=True)


def test_unknown_resource_is_refused_for_good(batch: GridEngineBatchSystem, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="nosuch") as caught:
        client(tmp_path, directives=["-l nosuch=1"]).submit(submission("true"))
    assert not caught.value.transient
