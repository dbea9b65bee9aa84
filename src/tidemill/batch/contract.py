"""What every batch system does for us. An implementation knows command lines and names, nothing of jobs or fleets."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from tidemill.model.state import AllocationState


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation to ask for. `command` runs once on each node; what it prints goes to small files."""

    name: str  #: unique for ever: the batch system is asked by it, never by its own number
    command: list[str]
    nodes: int
    cores: int  #: of each node
    memory_mb: int  #: of each node
    walltime_s: float
    environment: dict[str, str] = {}


class Answer(StrEnum):
    """What a batch system can say of an allocation. That it cannot tell must never be taken for `GONE`."""

    FOUND = "found"
    GONE = "gone"
    UNCLEAR = "unclear"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The word on one allocation. `reason` is the batch system's own where it gives one."""

    answer: Answer
    state: AllocationState = AllocationState.LOST  #: where found
    batch_id: str = ""
    reason: str = ""
    output_tail: str = ""  #: the last lines that a failed command printed


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine as it is now."""

    nodes: int
    nodes_free: int
    cores_per_node: int
    memory_mb_per_node: int
    devices_per_node: dict[str, int] = {}
    queued: int = 0


class BatchSystem(Protocol):
    """A batch system. Every call is bounded in time and raises SiteError (transient or not) when it cannot do it."""

    def submit(self, submission: Submission) -> str:
        """Ask for an allocation; its number in the batch system. The same name again is the same allocation."""

    def status(self, names: Collection[str]) -> dict[str, Status]:
        """The word on each of these allocations, by one query whatever their number."""

    def cancel(self, names: Collection[str]) -> None:
        """End these allocations, TERM first; those that have ended or are unknown are passed over."""

    def machine(self) -> Machine:
        """What there is and what is free."""

    def output(self, name: str) -> Path:
        """The file that holds what the allocation printed."""
