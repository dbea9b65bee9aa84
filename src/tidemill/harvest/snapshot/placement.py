"""Which nodes to release: those that the scheduler would have given to the job without Tidemill. Pure.

Any of Tidemill's nodes would do for the job that starts now. But its place decides which nodes stay together, and so
which of the next jobs can start beside those that the scheduler has planned. Releasing exactly the nodes that the job
would have had keeps the schedule as it would have been. And beside a job that waits for more nodes than are free, only
few nodes help at all: the scheduler plans that job anew each time, on the nodes that are free then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tidemill.harvest.plan.situation import Waiting
from tidemill.harvest.snapshot.backfill import NodesRelease, Planned, chosen, planned
from tidemill.harvest.snapshot.pools import Pool
from tidemill.model.machine import NodeState, Running, Snapshot


class Homes(NamedTuple):
    """Tidemill's allocations on nodes that jobs would have without it. `now`: for each job that starts, in order;
    `later_s`: those on nodes that blocked jobs before it would have, and from when on."""

    now: dict[str, list[str]]
    later_s: dict[str, float]


class Layout(NamedTuple):
    """A pool by its nodes, each a place in the batch system's order."""

    now_s: float
    places: Mapping[str, int]
    idle: frozenset[int]
    ours: dict[str, NodesRelease]  #: running allocations of one node, by name
    others: list[NodesRelease]
    queue: list[Waiting]

    def without_us(self) -> dict[str, Planned]:
        """What the scheduler would plan if Tidemill's nodes were free, too."""
        return planned(
            self.idle.union(*(each.places for each in self.ours.values())),
            self.others,
            self.queue,
            self.now_s,
        )

    def after(self, cancel: Collection[str], ends_s: Mapping[str, float]) -> dict[str, Planned]:
        """What the scheduler will plan after the allocations in `cancel` end and those in `ends_s` are shortened."""
        gone = self.ours.keys() & cancel
        stay = [
            NodesRelease(ends_s.get(name, each.ends_s), each.places)
            for name, each in self.ours.items()
            if name not in gone
        ]
        free = self.idle.union(*(self.ours[name].places for name in gone))
        return planned(free, [*self.others, *stay], self.queue, self.now_s)

    def homes(self, starting: Collection[str]) -> Homes:
        """Tidemill's allocations on the nodes where these jobs, and those before them, would run without Tidemill."""
        holder = {place: name for name, each in self.ours.items() for place in each.places}
        plans = self.without_us()
        left = set(self.idle | holder.keys())
        result = Homes({}, {})
        for job in self._until_last(starting):
            plan = plans.get(job.id)
            starts = plan is not None and plan.at_s <= self.now_s
            if job.id in starting:
                taken = plan.places if plan and starts and plan.places <= left else chosen(left, job.width)
                left.difference_update(taken)
                result.now[job.id] = [holder[place] for place in sorted(taken) if place in holder]
            elif plan and not starts:
                for place in plan.places & holder.keys():
                    result.later_s.setdefault(holder[place], plan.at_s)
        return result

    def late(
        self, starting: Collection[str], cancel: Collection[str], ends_s: Mapping[str, float]
    ) -> list[str]:
        """Those of `starting` that the scheduler would not start now after these have gone and those were shortened."""
        plans = self.after(cancel, ends_s)
        return [
            job.id
            for job in self.queue
            if job.id in starting and (job.id not in plans or plans[job.id].at_s > self.now_s)
        ]

    def _until_last(self, starting: Collection[str]) -> list[Waiting]:
        last = max((at for at, job in enumerate(self.queue) if job.id in starting), default=-1)
        return self.queue[: last + 1]


def layout_of(snapshot: Snapshot, pool: Pool) -> Layout:
    """The pool as it is."""
    places = {node.name: at for at, node in enumerate(snapshot.nodes) if node.name in pool.nodes}
    ours: dict[str, NodesRelease] = {}
    others: list[NodesRelease] = []
    for job in snapshot.running:
        if each := _ending(job, places):
            if job.ours and len(job.nodes) == 1:
                ours[job.name] = each
            else:
                others.append(each)
    return Layout(
        now_s=snapshot.at_s,
        places=places,
        idle=frozenset(
            places[node.name]
            for node in snapshot.nodes
            if node.state is NodeState.IDLE and node.name in places
        ),
        ours=ours,
        others=others,
        queue=pool.situation.queue,
    )


def _ending(job: Running, places: Mapping[str, int]) -> NodesRelease | None:
    found = frozenset(places[name] for name in job.nodes if name in places)
    return NodesRelease(job.ends_s, found) if found else None
