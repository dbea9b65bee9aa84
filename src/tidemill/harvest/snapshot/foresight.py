"""Uses the predicted schedule, where the prediction is reliable, instead of node counts. Pure.

A count shows whether a job fits beside a planned one: enough nodes are free for long enough. But the scheduler has
chosen specific nodes for the planned job. If the other job needs some of these, it does not start, with Tidemill or
without, and nodes released for it stay idle until the patience with it ends (`harvest.plan.patience`). Or the planned
job gets other nodes, since the scheduler groups ends in windows of half a minute and more: then the other job could
start although the count shows no room, and would wait for as long as Tidemill holds the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.harvest.plan.profile import ahead, play
from tidemill.harvest.plan.situation import Outage
from tidemill.harvest.snapshot.placement import Layout
from tidemill.harvest.snapshot.pools import Pool
from tidemill.model.machine import Queued


def foreseen(pool: Pool, layout: Layout, queued: Iterable[Queued]) -> Pool:
    """The pool, with waiting jobs turned into outages at their planned starts, where the counts would start other jobs
    now than the scheduler would without Tidemill.

    Applies only if the calculation reproduces the scheduler's reported plan for the present machine; otherwise the
    counts are used.
    """
    situation = pool.situation
    if not situation.is_order_known:
        return pool
    ours = sum(each.count * each.width for each in situation.holdings if not each.waiting)
    free = situation.idle + situation.ending + ours
    profile = ahead(situation.now_s, free, situation.busy, situation.outages)
    outlook = play(profile, situation.queue, situation.limits.reservations)
    if not outlook.planned or not foretold(layout, queued):
        return pool
    plans = layout.without_us()
    counted = {job.id for job in outlook.starts}
    if all((plan.at_s <= layout.now_s) == (name in counted) for name, plan in plans.items()):
        return pool
    later = {
        job.id: Outage(job.width, plan.at_s, plan.at_s + job.walltime_s)
        for job in situation.queue
        if (plan := plans.get(job.id)) is not None and plan.at_s > layout.now_s
    }
    replace = msgspec.structs.replace
    queue = [job for job in situation.queue if job.id not in later]
    return replace(
        pool, situation=replace(situation, queue=queue, outages=[*situation.outages, *later.values()])
    )


def foretold(layout: Layout, queued: Iterable[Queued]) -> bool:
    """Whether the scheduler reports planned starts, and all of them are on the predicted nodes."""
    waits = {job.id for job in layout.queue}
    told = {
        job.id: frozenset(layout.places.get(name, -1) for name in job.planned_nodes)
        for job in queued
        if job.id in waits and job.planned_nodes
    }
    if not told:
        return False
    plans = layout.after([], {})
    return all(name in plans and plans[name].places == places for name, places in told.items())
