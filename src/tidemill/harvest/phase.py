"""When to look at the machine: shortly before the scheduler's backfill cycle. Pure.

Nodes that a look gives back must be free when the cycle runs, else it gives idle nodes to jobs that would have had to
stand behind (docs/decisions/0008). So a look acts `death_s` and a second before the cycle. Slurm tells when its last
cycle began (`sdiag`, "Last cycle when").
"""

from __future__ import annotations

import math

MARGIN_S = 1.0


def lead(death_s: float) -> float:
    """How long before a cycle a look must have acted."""
    return death_s + MARGIN_S


def pause(poll_s: float, *, plan_age_s: float | None, cycle_s: float, lead_s: float) -> float:
    """Seconds from a look to the next one: about `poll_s`, and `lead_s` before a cycle.

    `plan_age_s`: age of the scheduler's last cycle at this look, None = not known, then `poll_s`. Never less than half
    of `poll_s`, and at most one cycle more than `poll_s`.
    """
    if plan_age_s is None or cycle_s <= 0:
        return poll_s
    least_s = poll_s / 2
    cycles = math.ceil((least_s + lead_s + plan_age_s) / cycle_s)
    first_s = cycles * cycle_s - lead_s - plan_age_s
    further = max(0, round((poll_s - first_s) / cycle_s))
    return first_s + further * cycle_s
