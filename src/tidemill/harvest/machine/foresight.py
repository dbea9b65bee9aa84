"""Where the scheduler's plan is foretold, counts are not asked. Pure.

Our count says whether a job fits beside one that is planned: so many nodes are free for so long. The scheduler has
chosen nodes for the planned one. The job may want some of these: then it does not start, with us or without, and what
we gave back for it would be idle until our patience with it ends (`harvest.plan.patience`). Or the planned one has
others, since the scheduler looks at ends half a minute and more at a time: then the job starts where we count no room,
and would wait for as long as we are there.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.harvest.machine.placement import Layout
from tidemill.harvest.machine.pools import Pool
from tidemill.harvest.plan.profile import ahead, play
from tidemill.harvest.plan.situation import Outage
from tidemill.model.machine import Queued


def foreseen(pool: Pool, layout: Layout, queued: Iterable[Queued]) -> Pool:
    """The pool, in which jobs that wait have become outages at the time of their planned start, where by counts alone
    others would start now than the scheduler would start, had we not been there.

    Only where our calculation gives what the scheduler has told about the machine as it is; else counts are believed.
    """
    situation = pool.situation
    if not situation.is_order_known:
        return pool
    ours = sum(each.count * each.width for each in situation.holdings if not each.waiting)
    profile = ahead(situation.now_s, situation.idle + ours, situation.busy, situation.outages)
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
    """Whether each planned start that the scheduler tells is on the nodes that we would have foretold, one at least."""
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
