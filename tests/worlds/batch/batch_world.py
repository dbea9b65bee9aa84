"""What the conformance suite of batch systems needs to know of each one.

Every file `batch_NAME.py` beside this one, or among an extension's tests, has `def world(request, directory) ->
Iterator[BatchWorld]` (a context manager), with which its `test_batch_contract.py` runs the suite (batch_contract.py). A
world has two nodes or
more that nobody uses when it is handed over; it may be one that other tests use later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from tidemill import clock
from tidemill.batch.contract import Answer, BatchSubmission, BatchSystem, Status, element_name
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

KEY = "0123456789abcdef"
"""Of the site directory that the worlds' adapters serve."""


class Can(StrEnum):
    """What not every batch system can do, or not here; a test that needs it is left out where it is missing."""

    ARRAYS = "arrays"
    AWAY = "away"  #: the world can make the batch system's daemons go away and come back
    CONTAIN = "contain"  #: no process of an allocation survives it, whatever it did
    EXCLUDE = "exclude"
    FEATURES = "features"  #: the world's first node has one that the second has not: `BatchWorld.features`
    GLANCE = "glance"  #: one short query shows counts of jobs
    FORGET = "forget"  #: files of what has ended are deleted when told
    FOREIGN = "foreign"  #: the world can plant jobs that are not ours
    NAMES = "names"  #: names that would break something are refused
    NODE_COUNTS = "node counts"  #: an allocation may have fewer nodes than asked for
    ORDER = "order"  #: what waits starts in the order of submission
    REFUSE = "refuse"  #: what can never run is refused at submission
    SHORTEN = "shorten"
    SIGNAL = "signal"  #: USR1 comes before the end
    SNAPSHOT = "snapshot"
    START_BY = "start by"
    WALLTIME = "walltime"  #: a limit of `short_s` ends an allocation within the deadline


class BatchWorld(Protocol):
    """A batch system under test."""

    can: frozenset[Can]
    nodes: int
    cores: int  #: of a node, what submissions of the suite ask for
    space: Path  #: a folder where jobs and tests may write
    short_s: float  #: a short walltime that the batch system can keep
    deadline_s: float  #: any step of a test takes less
    features: tuple[
        str, str
    ]  #: of the first and the second half of the nodes; empty texts where Can.FEATURES is missing

    def open(self) -> BatchSystem:
        """A new client on the same directory, as a restarted agent has. The first one is also got so."""

    def plant(self, *, name: str, comment: str, stranger: bool) -> str:
        """Start a job that sleeps, by other means than ours, of another user (`stranger`) or of ours; its number."""

    def lives(self, number: str) -> bool:
        """Whether that job waits or runs."""

    def has_lost_kill(self, number: str) -> bool:
        """Whether the batch system itself will never end that job, whose command does not hear TERM."""

    def away(self) -> AbstractContextManager[None]:
        """While this lasts, the batch system does not answer."""

    def picture(self) -> str:
        """Its jobs and nodes as it shows them now, for the message of a test that fails."""


class Bench:
    """A world, with words for what the tests do. Names are unique for ever: `a` becomes `tm-contract-e1-...`."""

    def __init__(self, world: BatchWorld) -> None:
        self.world = world
        self.batch = world.open()
        self.names: list[str] = []
        self._stamp = clock.now_us()

    def name(self, short: str) -> str:
        """The whole name of allocation `short`, of `a.2` too."""
        base, dot, index = short.partition(".")
        number = self._stamp * 100 + sum(ord(c) * (i + 1) for i, c in enumerate(base)) % 100
        return f"tm-contract.{base}-e1-{number}{dot}{index}"

    def submission(self, short: str, script: str, **changes: Any) -> BatchSubmission:
        """One that runs `script` by a shell, `$0` being the allocation's name."""
        plain = BatchSubmission(
            name=self.name(short),
            command=["/bin/sh", "-c", script, "{allocation}"],
            nodes=1,
            cores=self.world.cores,
            memory_mb=0,
            walltime_s=600.0,
            comment="contract contact=ops@example.org",
        )
        return msgspec.structs.replace(plain, **changes)

    def submit(self, short: str, script: str, **changes: Any) -> str:
        """The batch system's number for it."""
        submission = self.submission(short, script, **changes)
        self.names += [element_name(submission.name, i, submission.count) for i in range(submission.count)]
        return self.batch.submit(submission)

    def status(self, short: str) -> Status:
        """The word on it."""
        name = self.name(short)
        return self.batch.status([name])[name]

    def state(self, short: str) -> AllocationState | None:
        """Its state, None unless it is found."""
        status = self.status(short)
        return status.state if status.answer is Answer.FOUND else None

    def wait(self, short: str, *states: AllocationState) -> Status:
        """The word on it once it is in one of these states."""
        found: list[Status] = []

        def arrived() -> bool:
            found[:] = [self.status(short)]
            return found[0].answer is Answer.FOUND and found[0].state in states

        self.until(arrived, f"{short} is one of {[str(each) for each in states]}", found)
        return found[0]

    def wait_end(self, short: str) -> Status:
        """The last word on it."""
        return self.wait(short, *ALLOCATION_FINAL)

    def until(self, done: Callable[[], bool], what: str, seen: object = "") -> None:
        """Ask until it is so."""
        deadline = clock.monotonic_s() + self.world.deadline_s
        while not done():
            if clock.monotonic_s() > deadline:
                pytest.fail(f"waited in vain: {what} {seen or ''}\n{self.world.picture()}")
            clock.sleep_s(0.02)

    def until_file(self, name: str, text: str) -> None:
        """Wait until a file in the world's space holds this."""
        path = self.world.space / name
        self.until(lambda: path.exists() and path.read_text() == text, f"{name} holds {text!r}")

    def path(self, name: str) -> Path:
        """A file in the world's space."""
        return self.world.space / name
