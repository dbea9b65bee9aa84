"""Tidemill's allocations as the broker sees them: matched with a snapshot, and grouped if alike. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from tidemill.harvest.plan.ours import Held, Holding
from tidemill.model.machine import NodeState, Snapshot

LOSS_STEPS_PER_EVENT = 4
"""Allocations whose losses differ by less than a quarter of an event count as alike."""


def matched(snapshot: Snapshot, held: Sequence[Held]) -> list[Held]:
    """Our allocations with what the snapshot says of them, their nodes among it.

    What runs by the snapshot runs, also if the agent does not know it yet (or no more). What the agent takes for
    running and the snapshot does not show has ended, and so has what holds only nodes that are being cleaned up. What
    waits by the agent waits: it may be younger than the snapshot.
    """
    ending = {node.name for node in snapshot.nodes if node.state is NodeState.ENDING}
    known = {each.name: each for each in held}
    placed = []
    for job in snapshot.running:
        if not job.ours:
            continue
        mine = known.pop(job.name, None) or Held(name=job.name, width=job.width, is_waiting=False)
        if job.nodes and ending.issuperset(job.nodes):
            continue
        ends_s = min(job.ends_s, mine.ends_s or job.ends_s)
        placed.append(
            msgspec.structs.replace(
                mine,
                width=job.width,
                is_waiting=False,
                started_s=job.started_s,
                ends_s=ends_s,
                nodes=job.nodes,
            )
        )
    for each in known.values():
        if each.is_waiting:
            ends_s = snapshot.at_s + each.walltime_s
            placed.append(msgspec.structs.replace(each, ends_s=ends_s))
    return placed


def gather(ours: Iterable[Held], *, event_s: float) -> list[Holding]:
    """Holdings of allocations that are alike, the cheapest first, as their names are.

    Alike: width, the second of their end, and nearly the same loss.
    """
    step_s = max(event_s, 1.0) / LOSS_STEPS_PER_EVENT
    groups: dict[tuple[bool, int, int, int], list[Held]] = {}
    for each in ours:
        loss = 0 if each.is_waiting else math.floor(each.loss_s / max(1, each.width) / step_s)
        groups.setdefault((not each.is_waiting, loss, each.width, int(each.ends_s)), []).append(each)
    holdings: list[Holding] = []
    for key, (_, group) in enumerate(sorted(groups.items())):
        group.sort(key=lambda each: (each.loss_s, -each.started_s, each.name))
        first = group[0]
        holdings.append(
            Holding(
                key=key,
                width=first.width,
                count=len(group),
                waiting=first.is_waiting,
                started_s=max(each.started_s for each in group),
                ends_s=max(each.ends_s for each in group),
                loss_s=sum(each.loss_s for each in group) / len(group),
                names=tuple(each.name for each in group),
            )
        )
    return holdings
