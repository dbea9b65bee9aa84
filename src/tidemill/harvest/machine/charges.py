"""Which regular jobs are charged to which nodes, and how many nodes of each kind they need. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tidemill.harvest.machine.occupancy import FAR_S
from tidemill.harvest.plan.situation import Waiting
from tidemill.model.machine import Queued, Snapshot


class Kind(msgspec.Struct, frozen=True):
    """What jobs in the queue can tell nodes apart by."""

    partitions: tuple[str, ...]
    features: tuple[str, ...]
    cores: int
    memory_mb: int  #: the largest request that fits


class Home(Protocol):
    """Nodes that are alike, where jobs may run."""

    @property
    def kind(self) -> Kind:
        """What jobs can tell them apart by."""

    @property
    def is_usable(self) -> bool:
        """Whether Tidemill may use them."""

    @property
    def cores(self) -> int:
        """Of each."""

    @property
    def size(self) -> int:
        """Nodes that are not unavailable."""

    @property
    def free(self) -> int:
        """Nodes that a regular job could have now without Tidemill."""


def charge(
    snapshot: Snapshot, groups: Sequence[Home], *, reservation: str, left_out: frozenset[str]
) -> dict[int, list[Waiting]]:
    """The queue of each usable group, by `id`, in the scheduler's order."""
    queues: dict[int, list[Waiting]] = {id(group): [] for group in groups if group.is_usable}
    homes: dict[tuple[object, ...], list[Home]] = {}
    sizes = {id(group): (group.size, group.free) for group in groups}
    for job in snapshot.queued:
        if job.ours or not job.eligible or job.reservation != reservation or job.id in left_out:
            continue
        cores = -(-job.cores // max(1, job.width))
        kind = (job.partitions, job.features, job.is_feature_list_exact, job.memory_mb_per_node, cores)
        home = homes.get(kind)
        if home is None:
            home = [group for group in groups if _can_use(job, cores, group.kind)]
            # `--ntasks 128` alone may be shown as one node: then it needs as many as its cores fill.
            home = homes[kind] = home or [group for group in groups if _can_use(job, 0, group.kind)]
        total = sum(sizes[id(group)][1] for group in home) if len(home) > 1 else 0
        walltime_s = job.walltime_s if job.walltime_s > 0 else FAR_S
        submitted_s = job.submitted_s or 0.0
        for group in home:
            if group.is_usable:
                size, free = sizes[id(group)]
                width = job.width if cores <= group.cores else -(-job.cores // group.cores)
                width = _share(width, size=size, free=free, total=total)
                if width:
                    queues[id(group)].append(Waiting(job.id, width, walltime_s, submitted_s))
    return queues


def _share(width: int, *, size: int, free: int, total: int) -> int:
    """Nodes that a job is charged to one group; `total`: what is free in all groups that it could use.

    Where it could start now with nodes of several groups, each is charged with all that it can give: together that is
    enough, and it starts now. Where it could not, it counts only in groups that can hold it whole: in others it would
    seem to start although it cannot.
    """
    if width > free and total >= width:
        return min(width, free)
    return width if width <= size else 0


def _can_use(job: Queued, cores: int, kind: Kind) -> bool:
    if job.partitions and kind.partitions and set(job.partitions).isdisjoint(kind.partitions):
        return False
    if job.partitions and not kind.partitions:
        return False
    if job.is_feature_list_exact and not set(job.features) <= set(kind.features):
        return False
    return cores <= kind.cores and job.memory_mb_per_node <= kind.memory_mb
