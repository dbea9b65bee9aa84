"""Which regular jobs wait for Tidemill beside those that plans yield to. Pure.

A plan counts whole nodes of one pool, and each job in every pool where it could run. So where jobs wait for nodes of
two pools, both plans count the same first ones; and of jobs that would share a node a plan counts one. Enough nodes are
released all the same, one poll after the other. The estimate of harm has to count the others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tidemill.harvest.plan.situation import Decision, Situation, Waiting
from tidemill.harvest.snapshot.pools import Pool
from tidemill.model.machine import Queued

HOSTS_MAX = 200
QUEUE_MAX = 2000
"""Nodes with room for neighbours, and jobs that are tried there, of each pool: the first ones."""


def also_waiting(
    decided: Sequence[tuple[Pool, Decision]],
    queued: Iterable[Queued],
    decide: Callable[[Situation], Decision],
) -> dict[str, list[str]]:
    """Ids of jobs that could start now without Tidemill and that no plan yields to, by name of the pool. `decide`: what
    has made the decisions."""
    if not any(decision.yields_to for _, decision in decided):
        return {}
    asked = {job.id: job for job in queued if not job.ours}
    homes: dict[str, str] = {}
    for pool, decision in decided:
        _settle(homes, pool, decision.ready, asked)
    told = {name for _, decision in decided for name in decision.yields_to}
    found: dict[str, list[str]] = {}
    for pool, decision in decided:
        situation = pool.situation
        if not decision.yields_to or not situation.is_order_known:
            continue
        rest = [job for job in situation.queue if homes.get(job.id, pool.name) == pool.name]
        alone = msgspec.structs.replace(situation, queue=rest)
        if any(homes.get(name, pool.name) != pool.name for name in (*decision.ready, *decision.yields_to)):
            decision = decide(alone)
        blocked = [*decision.yields_to, *_neighbours(pool, rest, decision, asked)]
        _settle(homes, pool, blocked, asked)
        found[pool.name] = [name for name in blocked if name not in told]
    return found


def _settle(homes: dict[str, str], pool: Pool, names: Iterable[str], asked: Mapping[str, Queued]) -> None:
    """Note the jobs that this pool has enough nodes for: they need none of another."""
    widths = {job.id: job.width for job in pool.situation.queue}
    for name in names:
        if name in asked and widths.get(name, 0) >= asked[name].width:
            homes.setdefault(name, pool.name)


class _Host(msgspec.Struct):
    """What is left of a node beside the job that has it. `is_ours`: it has it without Tidemill only."""

    cores: int
    memory_mb: int
    walltime_s: float
    is_ours: bool


def _neighbours(
    pool: Pool, queue: Sequence[Waiting], decision: Decision, asked: Mapping[str, Queued]
) -> list[str]:
    """The jobs that would start beside those that the decision yields to, on the same nodes, and nowhere else."""
    blocked, starts = set(decision.yields_to), {*decision.yields_to, *decision.ready}
    hosts = [
        _Host(
            pool.cores - asked[job.id].cores,
            pool.memory_mb - asked[job.id].memory_mb_per_node,
            job.walltime_s,
            job.id in blocked,
        )
        for job in queue
        if job.id in starts and job.id in asked and _may_share(asked[job.id])
    ]
    hosts = sorted((each for each in hosts if each.cores > 0), key=lambda each: each.is_ours)[:HOSTS_MAX]
    found: list[str] = []
    is_stuck = False  #: a job before it waits: then it may start only where it ends with its host
    misfits: set[tuple[int, int, float]] = set()  #: what fits nowhere, and never will: room only shrinks
    for job in queue[:QUEUE_MAX] if hosts else ():
        wish = asked.get(job.id)
        if job.id in starts or wish is None:
            continue
        host, shape = None, (wish.cores, wish.memory_mb_per_node, job.walltime_s)
        if _may_share(wish) and shape not in misfits:
            host = next((each for each in hosts if _has_room(each, wish, job, is_stuck=is_stuck)), None)
            if host is None:
                misfits.add(shape)
        if host is None:
            is_stuck = True
            continue
        host.cores -= wish.cores
        host.memory_mb -= wish.memory_mb_per_node
        if host.is_ours:
            found.append(job.id)
    return found


def _may_share(job: Queued) -> bool:
    return job.width == 1 and job.cores > 0 and not job.whole


def _has_room(host: _Host, wish: Queued, job: Waiting, *, is_stuck: bool) -> bool:
    if wish.cores > host.cores or wish.memory_mb_per_node > max(0, host.memory_mb):
        return False
    return not is_stuck or job.walltime_s <= host.walltime_s
