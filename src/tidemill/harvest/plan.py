"""The broker's policy: what to cancel, to shorten and to submit now. Pure; the simulator runs the same function.

`yield` works out what the queue would do if we were not here. Regular jobs that would start now get their nodes, the
cheapest of ours go; allocations that stand in the way of a planned start are shortened to end before it; what is idle
for long enough then is filled. A doubt is always decided for the regular job.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from tidemill.harvest.policies import capped, demand, preempt, titan, windows
from tidemill.harvest.situation import Decision, Situation
from tidemill.harvest.yielding import yields


class Policy(StrEnum):
    """How the broker behaves."""

    YIELD = "yield"  #: gives nodes back before others wait
    PREEMPT = "preempt"  #: limits fit the plan; the scheduler takes nodes back by itself
    CAPPED = "capped"  #: limits fit the gaps of the plan; never gives back
    TITAN = "titan"  #: some brokers with fixed jobs, sized to the backfill of the moment: the reference
    WINDOWS = "windows"  #: only what no plan needs; never in the way, gives nothing back
    DEMAND = "demand"  #: queues for what the backlog wants, like anybody else


POLICIES: dict[Policy, Callable[[Situation], Decision]] = {
    Policy.YIELD: yields,
    Policy.PREEMPT: preempt,
    Policy.CAPPED: capped,
    Policy.TITAN: titan,
    Policy.WINDOWS: windows,
    Policy.DEMAND: demand,
}


def decide(situation: Situation, policy: Policy) -> Decision:
    """What to do now in one pool.

    Nodes that are on their way to be free (cancelled, epilog) are no part of `idle` nor of a holding: they belong into
    `busy`, with the time when they should be free. A regular job that has had enough idle nodes for longer than the
    scheduler needs, and still does not start, waits for something that is not seen here: leave it out of `queue`.
    Where the plan is not known, every policy but `demand` behaves as `windows`.
    """
    if not situation.knows_plan and policy is not Policy.DEMAND:
        policy = Policy.WINDOWS
    return POLICIES[policy](situation)
