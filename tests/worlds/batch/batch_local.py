"""The embedded batch system in the conformance suite: two one-core nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from tests.worlds.batch.batch_world import BatchWorld, Can

from tidemill import clock
from tidemill.batch.contract import BatchSystem
from tidemill.batch.local import LocalBatchSystem, daemon_lives, read_table
from tidemill.config.site import LocalBatch, NodeUse

TIMING = {"batch": {"LOCAL_GRACE_S": 2}}
"""What `pytest.mark.timing` of the conformance suite is for this system."""


class LocalWorld:
    """The daemon is ours, so nobody else has jobs in it."""

    can = frozenset(Can) - {Can.AWAY, Can.FEATURES, Can.FOREIGN, Can.FORGET, Can.GLANCE}
    nodes = 2
    cores = 1
    short_s = 4.0
    deadline_s = 20.0
    features = ("", "")

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "batch"
        self.space = directory / "space"
        self.space.mkdir()
        # a shell that hears TERM has time to do its trap, on a busy machine too
        self.config = LocalBatch(nodes=self.nodes)

    def open(self) -> BatchSystem:
        return self._client()

    def _client(self) -> LocalBatchSystem:
        return LocalBatchSystem(self.directory, self.config, NodeUse(cores=1, memory_mb=100))

    def plant(self, *, name: str, comment: str, stranger: bool) -> str:
        raise NotImplementedError(f"{name} {comment} {stranger}")

    def lives(self, number: str) -> bool:
        raise NotImplementedError(number)

    def has_lost_kill(self, number: str) -> bool:
        return False

    def away(self) -> AbstractContextManager[None]:
        return nullcontext()

    def picture(self) -> str:
        return str(read_table(self.directory))

    def stop(self) -> None:
        """Every allocation and the daemon end."""
        table = read_table(self.directory)
        client = self._client()
        client.cancel(list(table.entries) if table else [])
        client.stop()
        deadline = clock.monotonic_s() + self.deadline_s
        while daemon_lives(self.directory):
            if clock.monotonic_s() > deadline:
                pytest.fail("the local batch daemon does not end")
            clock.sleep_s(0.01)


@contextmanager
def world(request: pytest.FixtureRequest, directory: Path) -> Iterator[BatchWorld]:
    made = LocalWorld(directory)
    yield made
    made.stop()
