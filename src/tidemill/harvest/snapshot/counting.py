"""Nodes of a snapshot in figures, for people: idle, in use in part, full, away. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.model.figures.awaited import NodeCounts
from tidemill.model.machine import Node, NodeState, Snapshot


def held_nodes(snapshot: Snapshot) -> frozenset[str]:
    """The names of the nodes that Tidemill's allocations have."""
    return frozenset(name for job in snapshot.running if job.ours for name in job.nodes)


def count_nodes(nodes: Iterable[Node], held: frozenset[str], *, idle_max: int | None = None) -> NodeCounts:
    """The counts of these nodes, of which Tidemill has `held`. `idle_max`: at most this number of idle nodes can be
    used; the others are reserved, or kept in another way."""
    idle = full = ours = away = other = 0
    free: list[int] = []
    cores = 0
    number = 0
    for node in nodes:
        number += 1
        if node.name in held:
            ours += 1
        elif node.state is NodeState.IDLE:
            idle += 1
        elif node.state is NodeState.AWAY:
            away += 1
        elif node.state is NodeState.SHARED and node.cores_free > 0:
            free.append(node.cores_free)
            cores = max(cores, node.cores)
        elif node.state in (NodeState.SHARED, NodeState.BUSY):
            full += 1
        else:
            other += 1
    kept = max(0, idle - idle_max) if idle_max is not None else 0
    return NodeCounts(
        nodes=number,
        idle=idle - kept,
        shared=len(free),
        free_min=min(free, default=0),
        free_max=max(free, default=0),
        cores=cores,
        full=full,
        ours=ours,
        away=away,
        other=other + kept,
    )


def for_gpus(counts: NodeCounts) -> NodeCounts:
    """The counts of nodes with GPUs, for work that needs these."""
    return msgspec.structs.replace(counts, equipped=counts.nodes)


def with_away(counts: NodeCounts | None, away: int) -> NodeCounts | None:
    """The counts with nodes that are down or drained: they belong to no pool."""
    if counts is None or not away:
        return counts
    return msgspec.structs.replace(counts, away=counts.away + away, nodes=counts.nodes + away)


def with_pilots(counts: NodeCounts, *, begun: int, left: int) -> NodeCounts:
    """The counts after pilots have begun on `begun` nodes, and have left `left` others, which are not free yet."""
    gone = min(left, counts.ours)
    from_idle = min(begun, counts.idle)
    from_other = min(begun - from_idle, counts.other)
    return msgspec.structs.replace(
        counts,
        idle=counts.idle - from_idle,
        ours=counts.ours - gone + from_idle + from_other,
        other=counts.other - from_other + gone,
    )
