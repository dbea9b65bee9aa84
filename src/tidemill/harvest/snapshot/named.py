"""Jobs that name the only host on which they may run, as on PBS (`host=n1`): which of them it is enough for. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tidemill.harvest.plan.situation import Waiting
from tidemill.harvest.snapshot.charges import NodeKind, charge
from tidemill.harvest.snapshot.occupancy import Occupancy
from tidemill.model.machine import Node, Queued, Snapshot

HOST = "host="
"""The beginning of a feature that one node has: its name follows (`batch.pbs.requests`)."""


class _OneNode(NamedTuple):
    """A node that is free without Tidemill, as a home of jobs."""

    kind: NodeKind
    cores: int
    memory_mb: int
    nodes: tuple[Node]
    is_usable: bool = True
    size: int = 1
    free: int = 1


class NamedHosts:
    """The hosts that waiting jobs name. None where the scheduler considers jobs in a known order: there such a job may
    wait for others, and its host is a pool like any other."""

    def __init__(
        self, snapshot: Snapshot, occupancy: Occupancy, *, reservation: str, left_out: frozenset[str]
    ) -> None:
        self._snapshot = msgspec.structs.replace(snapshot, nodes=[], queued=[])
        self._taken = occupancy
        self._reservation = reservation
        self._left_out = left_out
        self._jobs: dict[str, list[Queued]] = {}
        for job in [] if snapshot.is_order_known else snapshot.queued:
            if job.eligible and not job.ours and job.is_feature_list_exact:
                words = [word for word in job.features if word.startswith(HOST)]
                if words:
                    self._jobs.setdefault(words[0].removeprefix(HOST), []).append(job)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def first_start(self, node: Node, kind: NodeKind) -> Waiting | None:
        """The first of the jobs that name a node which this node alone is enough for, were it free, until it is closed.
        `kind`: without its name."""
        if node.name not in self._jobs:
            return None
        kind = msgspec.structs.replace(kind, features=(*kind.features, f"{HOST}{node.name}"))
        home = _OneNode(kind, node.cores, node.memory_mb, (node,))
        waiting = msgspec.structs.replace(self._snapshot, queued=self._jobs[node.name])
        queues = charge(waiting, [home], reservation=self._reservation, left_out=self._left_out)
        outages = self._taken.outages.get(node.name)
        for job in queues[id(home)]:
            if not outages or self._taken.now_s + job.walltime_s <= outages[0][0]:
                return job
        return None
