"""What the broker decides on, and what it decides: counts of nodes in one pool. Pure data, no nodes by name.

A pool is a set of nodes that are alike for us and for the scheduler (`pools` cuts a snapshot into pools); the simulator
builds the same records from a trace. Times are seconds on one clock, `now_s` among them; a limit that is not known is
far in the future. All figures are of whole nodes.
"""

from __future__ import annotations

import msgspec

from tidemill.harvest.plan.ours import EndOrder, Holding

STARTS_PER_HOUR_MIN = 60
"""Starts that each machine may see in an hour, however few nodes it has: a scheduler does not notice one a minute. A
person who tries Tidemill on 4 nodes, with campaigns of a minute and restarts, caused 24 within 16 minutes."""


class Busy(msgspec.Struct, frozen=True, gc=False):
    """Regular jobs that hold nodes: `width` nodes until `ends_s` at the latest (their limit)."""

    width: int
    ends_s: float


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """An eligible regular job in the queue. The list has the order in which the scheduler considers the jobs."""

    id: str
    width: int
    walltime_s: float
    submitted_s: float = 0.0


class Outage(msgspec.Struct, frozen=True, gc=False):
    """`width` nodes that Tidemill may not use from `start_s` to `end_s`: reservation, maintenance."""

    width: int
    start_s: float
    end_s: float


class Backlog(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Work that there is. `node_s`: node-seconds by measured rates; `nodes_max`: nodes that could be busy at once."""

    node_s: float
    nodes_max: int
    event_s: float  #: seconds of a typical range on a slot: what a kill throws away
    bound_by: str = "backlog"  #: the `waves.Binding` because of which `nodes_max` is not more
    on_gpus: Backlog | None = (
        None  #: of a whole site: besides, work that needs nodes with GPUs; None = there is none
    )


class Limits(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What Tidemill may do at a machine; each limit is a setting of the site."""

    nodes_max: int
    allocations_max: int  #: running and waiting together
    width_min: int = 1  #: nodes of one allocation, at least
    width_max: int = 1
    walltime_max_s: float = 86400.0
    walltime_min_s: float = 60.0
    walltime_step_s: float = 60.0  #: limits come in multiples of this
    startup_s: float = 10.0  #: prolog, epilog and start of a pilot until it works
    payback: float = 3.0  #: an allocation must be able to work this multiple of `startup_s`
    waiting_per_idle: float = 2.0  #: pending allocations per idle node, at most
    starts_per_node_hour: float = 6.0  #: but `STARTS_PER_HOUR_MIN` in all at least
    starts_left: int = 1_000_000_000  #: starts that the hourly bound still allows now
    submits_max: int = 1_000_000_000  #: allocations submitted in one tick
    closed_by: str = ""  #: the `waves.Binding` because of which nothing starts here now; empty = jobs start
    poll_s: float = 30.0  #: until we decide again
    cycle_s: float = 30.0  #: of the scheduler's backfill
    death_s: float = 5.0  #: from cancel to free nodes
    reservations: int = (
        100  #: blocked jobs that the scheduler's plan reserves nodes for: Slurm and PBS many, EASY 1
    )
    node_s_left: float = (
        1e18  #: node-seconds that the grant still allows (settled, in flight and committed taken off)
    )


class Situation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One pool now. `nodes` = idle + ending + held by regular jobs + held by us + unusable."""

    now_s: float
    nodes: int
    idle: int  #: free for any job now
    busy: list[Busy]
    queue: list[Waiting]
    outages: list[Outage]
    holdings: list[Holding]
    backlog: Backlog
    limits: Limits
    is_order_known: bool = True  #: False: the scheduler may start the jobs of `queue` in any order
    knows_plan: bool = True  #: False: only `windows` can be relied on
    are_others_hidden: bool = False  #: why: regular jobs are not shown
    planned_gaps: list[tuple[int, float]] | None = None
    """Staircase (nodes, seconds) of idle nodes by the scheduler's own plan, which names nodes; empty = it has planned
    them all, None = not known."""
    windows: list[
        tuple[int, float]
    ] = []  #: staircase (nodes, seconds) of idle nodes where the plan is hidden or PBS's own
    headroom: int = 0  #: idle nodes that are left for small jobs to come (`harvest.plan.headroom`)
    ending: int = 0
    """Nodes of Tidemill's allocations that were canceled and are not free yet. Regular jobs have them as they have idle
    ones, so that no other allocation ends for the job that these nodes were released for."""


class Submit(msgspec.Struct, frozen=True, gc=False):
    """Ask for `count` allocations of `width` nodes for `walltime_s`."""

    width: int
    count: int
    walltime_s: float


class Decision(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What to do now, in this order: cancel, shorten, submit. `yields_to`: ids of regular jobs that could start now
    were we not here. `waits_for` names the one thing that holds back more; `why` says it in figures."""

    cancel: list[EndOrder] = []
    shorten: list[EndOrder] = []
    submit: list[Submit] = []
    yields_to: list[str] = []
    ready: list[str] = []  #: ids of regular jobs that could start now on idle nodes alone
    waits_for: str = ""
    why: str = ""
    next_s: float | None = None  #: nothing changes before this time unless the inputs change


def starts_per_hour(nodes: int, per_node_hour: float) -> int:
    """Starts that a machine of `nodes` nodes may see in an hour, at most."""
    return max(STARTS_PER_HOUR_MIN, int(per_node_hour * nodes))
