"""What only the embedded batch system promises: its daemon may be killed, its files are private."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill import clock
from tidemill.batch import processes
from tidemill.batch.contract import Answer, BatchSubmission
from tidemill.batch.local import LocalBatchSystem, daemon_lives, read_table
from tidemill.config.site import LocalBatch, NodeUse
from tidemill.errors import SiteError
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

pytestmark = pytest.mark.timing(batch={"LOCAL_GRACE_S": 2})

DEADLINE_S = 20.0


class Bench:
    """A batch system of two one-core nodes, and words for what the tests wait for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "batch"
        self.config = LocalBatch(nodes=2)  # a shell that hears TERM has time to do its trap
        self.batch = LocalBatchSystem(self.directory, self.config, NodeUse(cores=1, memory_mb=100))
        self.names: list[str] = []

    def submit(self, name: str, script: str, *, nodes: int = 1, walltime_s: float = 60.0) -> str:
        self.names.append(name)
        submission = BatchSubmission(
            name=name,
            command=["/bin/sh", "-c", script],
            nodes=nodes,
            cores=1,
            memory_mb=100,
            walltime_s=walltime_s,
        )
        return self.batch.submit(submission)

    def state(self, name: str) -> AllocationState | None:
        status = self.batch.status([name])[name]
        return status.state if status.answer is Answer.FOUND else None

    def wait(self, name: str, *states: AllocationState) -> AllocationState:
        wait_for(lambda: self.state(name) in states, f"{name} is one of {states}")
        found = self.state(name)
        assert found is not None
        return found

    def wait_end(self, name: str) -> AllocationState:
        return self.wait(name, *ALLOCATION_FINAL)

    def noted(self, name: str) -> list[tuple[int, int]]:
        """The processes in the table: ACTIVE is durable before they start, they are after it."""
        table = read_table(self.directory)
        return [] if table is None else table.entries[name].processes

    def wait_noted(self, name: str) -> None:
        """Until it runs; the daemon, which forks to start it, is one process then."""
        self.wait(name, AllocationState.ACTIVE)
        wait_for(lambda: bool(self.noted(name)), f"the process of {name} is noted")

    def daemon_pid(self) -> int:
        directory = os.fsencode(self.directory)
        found = [
            pid
            for pid in processes.processes()
            if {b"tidemill.batch.local_daemon", directory} <= set(processes.words_of(pid))
        ]
        assert len(found) == 1
        return found[0]


def wait_for(done: Callable[[], bool], what: str) -> None:
    deadline = clock.monotonic_s() + DEADLINE_S
    while not done():
        if clock.monotonic_s() > deadline:
            pytest.fail(f"waited in vain: {what}")
        clock.sleep_s(0.005)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    it = Bench(tmp_path)
    yield it
    it.batch.cancel(it.names)
    it.batch.stop()
    wait_for(lambda: not daemon_lives(it.directory), "the daemon ends")


def test_command_that_fails_is_failed_with_status_and_last_words(bench: Bench) -> None:
    bench.submit("a", "echo no licence >&2; exit 7")
    assert bench.wait_end("a") is AllocationState.FAILED
    status = bench.batch.status(["a"])["a"]
    assert "7" in status.reason
    assert "no licence" in status.output_tail


def test_walltime_ends_with_term_and_then_kill(bench: Bench, tmp_path: Path) -> None:
    script = f"trap 'echo term > {tmp_path}/term' TERM; while :; do sleep 0.05; done"
    bench.submit("a", script, walltime_s=3)  # its shell has set the trap by then
    assert bench.wait_end("a") is AllocationState.COMPLETED
    assert "walltime" in bench.batch.status(["a"])["a"].reason
    assert (tmp_path / "term").read_text() == "term\n"


def test_allocation_that_cannot_ever_run_is_refused(bench: Bench) -> None:
    with pytest.raises(SiteError, match="3 nodes") as caught:
        bench.submit("a", "true", nodes=3)
    assert not caught.value.transient


def test_killed_daemon_finds_its_allocations_again(bench: Bench, tmp_path: Path) -> None:
    bench.submit("a", f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo done > {tmp_path}/done")
    bench.submit("b", "exec sleep 1000")
    bench.wait_noted("a")
    bench.wait_noted("b")
    os.kill(bench.daemon_pid(), signal.SIGKILL)
    wait_for(lambda: not daemon_lives(bench.directory), "the daemon is dead")
    bench.submit("c", "true")
    assert bench.state("a") is AllocationState.ACTIVE
    (tmp_path / "go").touch()
    assert bench.wait_end("a") is AllocationState.COMPLETED
    assert (tmp_path / "done").exists()
    bench.batch.cancel(["b"])
    assert bench.wait_end("b") is AllocationState.CANCELED
    assert bench.wait_end("c") is AllocationState.COMPLETED


def test_allocation_that_dies_with_its_daemon_is_not_forgotten(bench: Bench) -> None:
    bench.submit("a", "exec sleep 1000")
    bench.wait_noted("a")
    os.kill(bench.daemon_pid(), signal.SIGSTOP)
    ((pid, _),) = bench.noted("a")
    os.kill(bench.daemon_pid(), signal.SIGKILL)
    os.killpg(pid, signal.SIGKILL)
    wait_for(lambda: not daemon_lives(bench.directory), "the daemon is dead")
    assert bench.wait_end("a") is AllocationState.FAILED
    assert "killed" in bench.batch.status(["a"])["a"].reason


def test_others_cannot_reach_the_daemons_files(bench: Bench) -> None:
    bench.submit("a", "true")
    bench.wait_end("a")
    assert bench.directory.stat().st_mode & 0o777 == 0o700
    assert not any(path.is_socket() for path in bench.directory.rglob("*"))
