"""Which regular jobs are charged to which nodes, and how many nodes of each kind they need. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import msgspec

from tidemill.harvest.plan.situation import Waiting
from tidemill.harvest.snapshot.occupancy import FAR_S
from tidemill.harvest.snapshot.windows import can_use, is_named
from tidemill.model.machine import JobChunk, Node, NodeState, Queued, Snapshot


class NodeKind(msgspec.Struct, frozen=True):
    """What jobs in the queue can tell nodes apart by."""

    partitions: tuple[str, ...]
    features: tuple[str, ...]
    cores: int
    memory_mb: int  #: the largest request that fits


class JobHome(Protocol):
    """Nodes that are alike, where jobs may run."""

    @property
    def kind(self) -> NodeKind:
        """What jobs can tell them apart by."""

    @property
    def is_usable(self) -> bool:
        """Whether Tidemill may use them."""

    @property
    def cores(self) -> int:
        """Cores of each node."""

    @property
    def memory_mb(self) -> int:
        """Memory of each node, at least; 0 = not known."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes where the job may run."""

    @property
    def size(self) -> int:
        """Nodes that are not unavailable."""

    @property
    def free(self) -> int:
        """Nodes that a regular job could have now without Tidemill."""


class _Room(NamedTuple):
    """A group in figures: all of its nodes, those that are free without Tidemill, and what each of them has, at least
    and at most. 0 MB: not known."""

    size: int
    free: int
    cores: int
    memory_mb: int
    memory_max_mb: int
    stock: Mapping[str, tuple[int, int]] = {}


def charge(
    snapshot: Snapshot, groups: Sequence[JobHome], *, reservation: str, left_out: frozenset[str]
) -> dict[int, list[Waiting]]:
    """The queue of each usable group, by `id`, in the scheduler's order. `left_out`: ids of jobs that do not take the
    nodes that they are given; where the order of jobs is not known, others that ask for the same wait for the same."""
    queues: dict[int, list[Waiting]] = {id(group): [] for group in groups if group.is_usable}
    homes: dict[tuple[object, ...], list[JobHome]] = {}
    rooms = {id(group): _room(group) for group in groups}
    widths = _Widths([node for node in snapshot.nodes if node.state is NodeState.SHARED])
    alike = set() if snapshot.is_order_known else {_wish(j) for j in snapshot.queued if j.id in left_out}
    for job in snapshot.queued:
        if job.ours or not job.eligible or not is_named(job.reservation, reservation):
            continue
        if job.id in left_out or (alike and _wish(job) in alike):
            continue
        cores = _cores_at_once(job)
        kind = (job.partitions, job.features, job.is_feature_list_exact, job.memory_mb_per_node, cores)
        home = homes.get(kind)
        if home is None:
            home = [group for group in groups if _can_use(job, cores, group.kind)]
            # `--ntasks 128` alone may be shown as one node: then it needs as many as its cores fill.
            if not home and not job.chunks:
                home = [group for group in groups if _can_use(job, 0, group.kind)]
            homes[kind] = home
        free = sum(rooms[id(group)].free for group in home)
        walltime_s = job.walltime_s if job.walltime_s > 0 else FAR_S
        submitted_s = job.submitted_s or 0.0
        for group in home:
            if group.is_usable:
                room = rooms[id(group)]
                width = _width(job, cores, room)
                if job.chunks and 0 < free < width:
                    width = widths.least((kind, id(group)), job, width, room, free=free)
                width = _share(width, size=room.size, free=room.free, total=free if len(home) > 1 else 0)
                if width:
                    queues[id(group)].append(Waiting(job.id, width, walltime_s, submitted_s))
    return queues


def _room(group: JobHome) -> _Room:
    stock: dict[str, tuple[int, int]] = {}
    for name, amount in set(chain.from_iterable({node.stock for node in group.nodes})):
        least, most = stock.get(name, (amount, amount))
        stock[name] = (min(least, amount), max(most, amount))
    memory_max_mb = max(node.memory_mb for node in group.nodes)
    return _Room(group.size, group.free, group.cores, group.memory_mb, memory_max_mb, stock)


def _cores_at_once(job: Queued) -> int:
    """Cores that a node must have to be of use to a job."""
    if job.chunks:
        return min(chunk.cores for chunk in job.chunks)
    return -(-job.cores // max(1, job.width))


def _wish(job: Queued) -> tuple[object, ...]:
    """What makes two jobs wait for the same: one user asks for the same, and the batch system gives the same reason,
    but for figures. Elements of an array are alike."""
    reason = re.sub(r"[0-9]+", "", job.reason)
    wanted = (job.partitions, job.features, job.is_feature_list_exact, job.chunks, job.memory_mb_per_node)
    return (job.user, reason, job.width, job.cores, job.walltime_s, *wanted)


# ---- how many nodes ------------------------------------------------------------------------------


def _width(job: Queued, cores: int, room: _Room) -> int:
    """Nodes of a group that are enough for a job, whatever else runs."""
    if not job.chunks:
        return job.width if cores <= room.cores else -(-job.cores // max(1, room.cores))
    if job.is_scattered:
        return sum(chunk.count for chunk in job.chunks)
    return sum(-(-chunk.count // _chunks_per_node(chunk, room)) for chunk in job.chunks)


class _Part(NamedTuple):
    """What is free of a node in part use."""

    memory_mb: int
    cores: int
    stock: tuple[tuple[str, int], ...]

    def chunks(self, chunk: JobChunk) -> int:
        """How many chunks fit there; none of those that ask for what is not known to be free."""
        fits = self.cores // max(1, chunk.cores)
        if fits and chunk.memory_mb:
            fits = min(fits, self.memory_mb // chunk.memory_mb)
        if fits and chunk.amounts:
            stock = dict(self.stock)
            fits = min(fits, *(stock.get(name, 0) // amount for name, amount in chunk.amounts))
        return fits


class _Widths:
    """Widths of jobs that nodes in part use take some chunks of; each request walks all of these nodes that differ, and
    that it can use, once."""

    def __init__(self, shared: Sequence[Node]) -> None:
        self._shared = shared
        self._found: dict[tuple[object, ...], int] = {}
        self._parts: dict[tuple[object, ...], list[tuple[_Part, int]]] = {}

    def least(self, where: tuple[object, ...], job: Queued, width: int, room: _Room, *, free: int) -> int:
        """Nodes for a job that needs more whole ones than are free: nodes in part use may take some of its chunks, and
        chunks of several kinds may share a node. All that are free where it might do with them, but it is not clear
        with how many. `width` where even that is too much, or where it would need no node, as it then would run by
        now. `where`: what decides with `job`'s chunks and place; the same gives the same."""
        request = (*where, job.chunks, job.is_scattered, job.whole)
        if request not in self._found:
            parts = self._free_parts(where, job)
            least = math.ceil(_whole_nodes(job, room, parts, at_best=False))
            if least > free and 0 < math.ceil(_whole_nodes(job, room, parts, at_best=True)) <= free:
                least = free
            self._found[request] = least if 0 < least <= free else width
        return self._found[request]

    def _free_parts(self, where: tuple[object, ...], job: Queued) -> list[tuple[_Part, int]]:
        """What is free of nodes that the job can use, and on how many of them, those with most memory first."""
        if job.whole:
            return []
        if where not in self._parts:
            cores = max(1, _cores_at_once(job))
            alike = Counter(
                _Part(node.memory_free_mb, node.cores_free, node.stock_free)
                for node in self._shared
                if node.cores_free >= cores and can_use(job, node)
            )
            self._parts[where] = sorted(alike.items(), reverse=True)
        return self._parts[where]


def _whole_nodes(job: Queued, room: _Room, parts: Sequence[tuple[_Part, int]], *, at_best: bool) -> float:
    result = 0.0
    for chunk in job.chunks:
        is_alone = job.is_scattered or not (chunk.may_share or at_best)
        each = 1 if is_alone else _chunks_per_node(chunk, room, at_best=at_best)
        result += (chunk.count - _elsewhere(chunk, parts, is_alone=is_alone)) / each
    return result


def _elsewhere(chunk: JobChunk, parts: Sequence[tuple[_Part, int]], *, is_alone: bool) -> int:
    """How many of the chunks nodes in part use take, those with most memory first."""
    found = 0
    for part, count in parts:
        if found >= chunk.count or part.memory_mb < chunk.memory_mb:
            break
        fits = part.chunks(chunk)
        found += count * (min(1, fits) if is_alone else fits)
    return min(found, chunk.count)


def _chunks_per_node(chunk: JobChunk, room: _Room, *, at_best: bool = False) -> int:
    """`at_best`: on the nodes of the group that have most, and if those that are not clear can share one."""
    if not (chunk.may_share or at_best):
        return 1
    fits = room.cores // max(1, chunk.cores)
    memory_mb = room.memory_max_mb if at_best else room.memory_mb
    if chunk.memory_mb and memory_mb:
        fits = min(fits, memory_mb // chunk.memory_mb)
    for name, amount in chunk.amounts:
        if name in room.stock:
            fits = min(fits, room.stock[name][at_best] // amount)
    return max(1, fits)


def _share(width: int, *, size: int, free: int, total: int) -> int:
    """Nodes that a job is charged to one group; `total`: what is free in all groups that it could use.

    Where it could start now with nodes of several groups, each is charged with all that it can give: together that is
    enough, and it starts now. Where it could not, it counts only in groups that can hold it whole: in others it would
    seem to start although it cannot.
    """
    if width > free and total >= width:
        return min(width, free)
    return width if width <= size else 0


def _can_use(job: Queued, cores: int, kind: NodeKind) -> bool:
    if job.partitions and kind.partitions and set(job.partitions).isdisjoint(kind.partitions):
        return False
    if job.partitions and not kind.partitions:
        return False
    if job.is_feature_list_exact and not set(job.features) <= set(kind.features):
        return False
    return cores <= kind.cores and job.memory_mb_per_node <= kind.memory_mb
