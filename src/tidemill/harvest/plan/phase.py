"""When to poll the machine: shortly before the scheduler's backfill cycle. Pure.

Nodes that a poll releases must be free when the cycle runs; otherwise the cycle gives idle nodes to jobs that should
have waited longer (docs/decisions/0008). So a poll acts `death_s` and a second before the cycle. Slurm reports when its
last cycle began (`sdiag`, "Last cycle when").
"""

from __future__ import annotations

import math

MARGIN_S = 1.0
LAST_CALL_S = 1.0
REACTION_S = 1.0
"""From a glance to what it leads to: a poll, a decision, a command."""

ONE_MORE = 0.1
"""A cycle that lacks so little of a whole number of pauses has that number of glances."""

SHORTEST_CYCLE = 2.0
"""Glances follow a cycle only if it is longer than the lead by this factor."""

#: Cycles are known to the second and polls take a moment: a pause up to this factor too long is still one, not two.
LATE = 1.1


def lead(death_s: float) -> float:
    """How long before a cycle a poll must have acted."""
    return death_s + MARGIN_S


def pause(poll_s: float, *, plan_age_s: float | None, cycle_s: float, lead_s: float) -> float:
    """Seconds from a poll to the next one: the last time up to `poll_s` that is `lead_s` before a cycle.

    `plan_age_s`: age of the scheduler's last cycle at this poll, None = not known, then `poll_s`. If no such time lies
    in the second half of `poll_s`, the pause until the next one is split in two, so that no job waits longer than
    `poll_s` for a poll. Never less than half of `poll_s`, at most `poll_s` times LATE.
    """
    if plan_age_s is None or cycle_s <= 0:
        return poll_s
    latest_s = poll_s * LATE
    aligned_s = math.floor((latest_s + lead_s + plan_age_s) / cycle_s) * cycle_s - lead_s - plan_age_s
    if aligned_s >= poll_s / 2:
        return aligned_s
    return min(poll_s, max(poll_s / 2, (aligned_s + cycle_s) / 2))


def glance_offsets(pause_s: float, *, cycle_s: float, lead_s: float) -> list[float]:
    """When what glances lead to is done, relative to a cycle: one `lead_s` before it, one LAST_CALL_S before it, the
    others between them, `pause_s` apart on average. Empty where cycles are too short for that.

    The first frees nodes in time for the cycle. The last has them about to be free when the cycle runs, so that the
    scheduler keeps what has ended since for the head of the queue, and does not backfill others into it.
    """
    number = math.floor(cycle_s / pause_s + ONE_MORE) if pause_s > 0 else 0
    if number < 1 or cycle_s < SHORTEST_CYCLE * lead_s:
        return []
    if number == 1 or lead_s <= LAST_CALL_S:
        return [-lead_s]
    step_s = (cycle_s - lead_s + LAST_CALL_S) / (number - 1)
    return [-lead_s, *(k * step_s - LAST_CALL_S for k in range(number - 1))]


def until_glance(pause_s: float, *, plan_age_s: float | None, cycle_s: float, lead_s: float) -> float:
    """Seconds from a poll or glance to the next glance: to the next of `glance_offsets`, or `pause_s` without any.

    `plan_age_s`: age of the scheduler's last cycle now, None = not known. A glance leads to something REACTION_S later.
    """
    offsets = glance_offsets(pause_s, cycle_s=cycle_s, lead_s=lead_s)
    if plan_age_s is None or not offsets:
        return pause_s
    waits = ((offset - REACTION_S - plan_age_s) % cycle_s for offset in offsets)
    return min((wait_s if wait_s > REACTION_S / 2 else wait_s + cycle_s) for wait_s in waits)
