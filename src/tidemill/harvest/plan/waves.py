"""From gaps to submissions: as many nodes as are free for long enough, in as few submissions as possible. Pure.

A gap is filled in one tick, whatever its size. Whatever cuts the wave short is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from tidemill.harvest.plan.situation import Backlog, Limits, Situation, Submit


class Binding(StrEnum):
    """The one thing that holds back more nodes now."""

    NOTHING = ""
    IDLE = "idle"
    REGULAR = "regular"
    OURS = "ours"
    HEADROOM = "headroom"
    PAYBACK = "payback"
    LIMIT = "limit"
    BACKLOG = "backlog"
    SHORT = "short"
    LEARNING = "learning"
    NODES = "nodes"
    ALLOCATIONS = "allocations"
    WIDTH = "width"
    WAITING = "waiting"
    STARTS = "starts"
    SUBMITS = "submits"
    GRANT = "grant"
    HIDDEN = "hidden"
    SCHEDULER = "scheduler"
    CLOSED = "closed"


SENTENCES: dict[Binding, str] = {
    Binding.NOTHING: "nothing holds back more",
    Binding.IDLE: "no node is wholly idle",
    Binding.REGULAR: "all idle nodes are kept for regular jobs that may start there",
    Binding.OURS: "allocations of Tidemill that wait in the queue are meant for the idle nodes",
    Binding.HEADROOM: "the nodes left idle are kept for small jobs that usually come soon",
    Binding.PAYBACK: "no node is idle for long enough to pay for a start there",
    Binding.LIMIT: "the batch system's time limit for a job is too short for an allocation",
    Binding.BACKLOG: "there is no work for more nodes",
    Binding.SHORT: "the work that is left takes less than half a minute of one more node, by what events took so far",
    Binding.LEARNING: "the first events run on one node or a few, to learn how long an event takes",
    Binding.NODES: "the site holds, or has asked for, as many nodes as it may (`nodes_max`)",
    Binding.ALLOCATIONS: "the limit of allocations is reached",
    Binding.WIDTH: "fewer nodes are idle than an allocation must have (`width`)",
    Binding.WAITING: "enough allocations of Tidemill wait in the queue for the idle nodes",
    Binding.STARTS: "no more allocations may be started now",
    Binding.SUBMITS: "each allocation takes a command here: the rest is asked for at the next poll",
    Binding.GRANT: "the node-hours that Tidemill may use are used up, or reserved for what runs (`node_hours_max`, "
    "`[[accounts]]`)",
    Binding.HIDDEN: "the batch system hides other users' jobs, and no idle node is known that they do not need",
    Binding.SCHEDULER: "the batch system's scheduler starts no jobs now",
    Binding.CLOSED: "the partition is closed: it takes or starts no jobs now",
}
"""What people read where figures are not known: `sentences` makes sentences with figures."""

KEPT = 18
"""Allocations that one gap leaves for others where they are scarce."""


class Room(msgspec.Struct, kw_only=True):
    """What may still be asked for in this tick; used up while a wave is made."""

    nodes: int
    allocations: int
    waiting: int
    starts: int
    submits: int
    node_s: float
    nodes_binding: Binding  #: what it is that bounds `nodes`

    def allocations_left(self) -> tuple[int, Binding]:
        """How many more, and which bound it is."""
        bounds = (
            (self.allocations, Binding.ALLOCATIONS),
            (self.waiting, Binding.WAITING),
            (self.starts, Binding.STARTS),
            (self.submits, Binding.SUBMITS),
        )
        return min(bounds, key=lambda bound: bound[0])


def work_s(backlog: Backlog, limits: Limits) -> float:
    """Node-seconds of work for which one more node is worth its start."""
    return max(limits.payback * limits.startup_s, backlog.event_s, 1.0)


def nodes_for(backlog: Backlog, limits: Limits) -> int:
    """How many nodes the work is for, those that are held among them."""
    return min(backlog.nodes_max, int(min(backlog.node_s / work_s(backlog, limits), 1e12)))


def room_of(situation: Situation, *, running: tuple[int, int], waiting: tuple[int, int]) -> Room:
    """The room left beside Tidemill's running and waiting allocations: (nodes, allocations) each, after this tick."""
    limits, backlog = situation.limits, situation.backlog
    held = running[0] + waiting[0]
    wanted = nodes_for(backlog, limits)
    binding = Binding(backlog.bound_by) if wanted < limits.nodes_max else Binding.NODES
    return Room(
        nodes=min(wanted, limits.nodes_max) - held,
        allocations=limits.allocations_max - running[1] - waiting[1],
        waiting=int(min(limits.waiting_per_idle * situation.idle, 1e12)) - waiting[1],
        starts=limits.starts_left,
        submits=limits.submits_max,
        node_s=limits.node_s_left,
        nodes_binding=binding,
    )


def walltime_least_s(situation: Situation) -> float:
    """A shorter allocation does not pay back its start."""
    limits = situation.limits
    return max(limits.walltime_min_s, limits.startup_s * (1.0 + limits.payback))


def wave(
    situation: Situation, gaps: Sequence[tuple[float, int]], room: Room, *, idle: int
) -> tuple[list[Submit], Binding]:
    """What to submit into `gaps` (seconds, nodes: ever longer, ever fewer), at most `idle` nodes; what held back more.

    The longest gaps are used first. An allocation may wait one cycle of the scheduler before it starts, and its nodes
    are free only `death_s` after it ends: both are taken off, so that it is over when its gap is.
    """
    limits = situation.limits
    if limits.closed_by:
        return [], Binding(limits.closed_by)
    least_s = walltime_least_s(situation)
    submits: list[Submit] = []
    given = 0
    binding = Binding.IDLE if idle <= 0 or not gaps else Binding.NOTHING
    for seconds, nodes in reversed(gaps):
        missing = min(nodes, idle) - given
        if missing <= 0:
            continue
        walltime_s = rounded(min(seconds - limits.cycle_s - limits.death_s, limits.walltime_max_s), situation)
        if walltime_s < least_s:
            binding = Binding.LIMIT if limits.walltime_max_s < least_s else Binding.PAYBACK
            break
        taken, binding = _cut(submits, (missing, walltime_s), room, situation)
        given += taken
        if (
            taken < missing and binding is not Binding.WIDTH
        ):  # a rest that is too narrow fits into shorter gaps
            break
    return merged(submits), binding


def _cut(
    submits: list[Submit], gap: tuple[int, float], room: Room, situation: Situation
) -> tuple[int, Binding]:
    """Fill one gap (nodes, walltime) as far as there is room: nodes given, and what held back more."""
    nodes, walltime_s = gap
    limits = situation.limits
    binding = Binding.NOTHING
    if nodes > room.nodes:
        nodes, binding = max(0, room.nodes), room.nodes_binding
    if nodes * walltime_s > room.node_s:
        least_s = max(walltime_least_s(situation), limits.walltime_step_s)
        walltime_s = max(rounded(room.node_s / max(1, nodes), situation), least_s)
        affordable = int(max(0.0, room.node_s) // walltime_s)
        if affordable < nodes:
            nodes, binding = affordable, Binding.GRANT
    if nodes < limits.width_min:
        return 0, binding or Binding.WIDTH
    allocations, bound = room.allocations_left()
    given = 0
    for width, count in pieces(nodes, allocations, limits.width_min, limits.width_max):
        submits.append(Submit(width, count, walltime_s))
        given += width * count
        room.allocations -= count
        room.waiting -= count
        room.starts -= count
        room.submits -= count
    room.nodes -= given
    room.node_s -= given * walltime_s
    if given < nodes and not binding:
        binding = bound if nodes - given >= limits.width_min else Binding.WIDTH
    return given, binding


def pieces(nodes: int, allocations: int, width_min: int, width_max: int) -> list[tuple[int, int]]:
    """`nodes` cut into at most `allocations` pieces of legal width: (width, count), as narrow as that number allows.

    Where they are too few for the narrowest width, `KEPT` of them are kept for later gaps, at most nine tenths: with 20
    in all, using half of them for each gap reached 0.90 on theta-2023h2, a tenth 0.945 (one replica).
    """
    if allocations <= 0 or nodes < width_min:
        return []
    width_max = max(width_min, width_max)
    used = allocations
    if nodes > allocations * width_min:
        used = max(-(-allocations // 10), allocations - KEPT)
    width = min(max(width_min, math.ceil(nodes / used)), width_max)
    count = min(nodes // width, allocations)
    result = [(width, count)] if count else []
    rest = min(nodes - count * width, width_max)
    if rest >= width_min and count < allocations:
        result.append((rest, 1))
    return result


def rounded(seconds: float, situation: Situation) -> float:
    """`seconds` down to a whole number of the steps that limits come in."""
    step = situation.limits.walltime_step_s
    return math.floor(seconds / step) * step if step > 0 else seconds


def merged(submits: Sequence[Submit]) -> list[Submit]:
    """The same allocations in as few submissions as possible."""
    counts: dict[tuple[int, float], int] = {}
    for each in submits:
        key = (each.width, each.walltime_s)
        counts[key] = counts.get(key, 0) + each.count
    return [Submit(width, count, walltime_s) for (width, walltime_s), count in counts.items()]
