"""When to look at the machine: shortly before the scheduler's backfill cycle. Pure.

Nodes that a look gives back must be free when the cycle runs, else it gives idle nodes to jobs that would have had to
stand behind (docs/decisions/0008). So a look acts `death_s` and a second before the cycle. Slurm tells when its last
cycle began (`sdiag`, "Last cycle when").
"""

from __future__ import annotations

import math

MARGIN_S = 1.0
#: Cycles are known to the second and looks take a moment: a pause that is longer by as much is still one, not two.
LATE = 1.1


def lead(death_s: float) -> float:
    """How long before a cycle a look must have acted."""
    return death_s + MARGIN_S


def pause(poll_s: float, *, plan_age_s: float | None, cycle_s: float, lead_s: float) -> float:
    """Seconds from a look to the next one: the last time up to `poll_s` that is `lead_s` before a cycle.

    `plan_age_s`: age of the scheduler's last cycle at this look, None = not known, then `poll_s`. Where no such time
    lies in the second half of `poll_s` the way to the next one is gone in two steps, so that nobody waits longer for a
    look than `poll_s` says. Never less than half of `poll_s`, at most LATE longer.
    """
    if plan_age_s is None or cycle_s <= 0:
        return poll_s
    latest_s = poll_s * LATE
    aligned_s = math.floor((latest_s + lead_s + plan_age_s) / cycle_s) * cycle_s - lead_s - plan_age_s
    if aligned_s >= poll_s / 2:
        return aligned_s
    return min(poll_s, max(poll_s / 2, (aligned_s + cycle_s) / 2))
