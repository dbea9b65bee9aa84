"""Which of our nodes to give back: those that the scheduler would have given to the job had we not been there. Pure.

Any of ours would do for the job that starts now. But where it lands decides which nodes stay together, and so which of
the next jobs can start beside those that the scheduler has planned for. Giving back the very nodes keeps the schedule
as it would have been. And beside a job that waits for more nodes than are free, few nodes help at all: the scheduler
plans that job anew each time, on whatever is free then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tidemill.harvest.backfill import Ending, Planned, chosen, planned
from tidemill.harvest.pools import Pool
from tidemill.harvest.situation import Decision, Waiting
from tidemill.model.machine import NodeState, Running, Snapshot


class Homes(NamedTuple):
    """Allocations of ours on nodes that jobs would have without us. `now`: for each job that starts, in order;
    `later_s`: those on nodes that blocked jobs before it would have, and since when."""

    now: dict[str, list[str]]
    later_s: dict[str, float]


class Layout(NamedTuple):
    """A pool by its nodes, as places in the batch system's order, and the jobs that are to start on them now."""

    now_s: float
    idle: frozenset[int]
    ours: dict[str, Ending]  #: running allocations of one node, by name
    others: list[Ending]
    queue: list[Waiting]  #: up to the last one that starts
    starting: frozenset[str]

    def homes(self) -> Homes:
        """Which of ours are where the scheduler would have these jobs were ours free, too."""
        holder = {place: name for name, each in self.ours.items() for place in each.places}
        free = self.idle | holder.keys()
        plans = planned(free, self.others, self.queue, self.now_s)
        left = set(free)
        found = Homes({}, {})
        for job in self.queue:
            plan = plans.get(job.id)
            starts = plan is not None and plan.at_s <= self.now_s
            if job.id in self.starting:
                taken = plan.places if plan and starts and plan.places <= left else chosen(left, job.width)
                left.difference_update(taken)
                found.now[job.id] = [holder[place] for place in sorted(taken) if place in holder]
            elif plan and not starts:
                for place in plan.places & holder.keys():
                    found.later_s.setdefault(holder[place], plan.at_s)
        return found

    def late(self, cancel: Collection[str], ends_s: Mapping[str, float]) -> list[str]:
        """Those of `starting` that the scheduler would not start now after these have gone and those were shortened."""
        gone = {place for name in cancel if name in self.ours for place in self.ours[name].places}
        stay = [
            Ending(ends_s.get(name, each.ends_s), each.places)
            for name, each in self.ours.items()
            if name not in cancel
        ]
        plans = planned(self.idle | gone, [*self.others, *stay], self.queue, self.now_s)
        never = Planned(float("inf"), frozenset())
        return [
            job.id
            for job in self.queue
            if job.id in self.starting and plans.get(job.id, never).at_s > self.now_s
        ]


def layout_of(snapshot: Snapshot, pool: Pool, decision: Decision) -> Layout | None:
    """The pool as it is where jobs start on it now; None where none does."""
    starting = frozenset({*decision.ready, *decision.yields_to})
    last = max((at for at, job in enumerate(pool.situation.queue) if job.id in starting), default=None)
    if last is None:
        return None
    place = {node.name: at for at, node in enumerate(snapshot.nodes) if node.name in pool.nodes}
    ours: dict[str, Ending] = {}
    others: list[Ending] = []
    for job in snapshot.running:
        if each := _ending(job, place):
            if job.ours and len(job.nodes) == 1:
                ours[job.name] = each
            else:
                others.append(each)
    return Layout(
        now_s=snapshot.at_s,
        idle=frozenset(
            place[node.name] for node in snapshot.nodes if node.state is NodeState.IDLE and node.name in place
        ),
        ours=ours,
        others=others,
        queue=pool.situation.queue[: last + 1],
        starting=starting,
    )


def _ending(job: Running, place: Mapping[str, int]) -> Ending | None:
    places = frozenset(place[name] for name in job.nodes if name in place)
    return Ending(job.ends_s, places) if places else None
