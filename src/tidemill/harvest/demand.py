"""How many one-node allocations to ask for, and which waiting ones to give up. Pure: the simplest policy.

It asks for what the backlog can fill, up to the nodes that we may hold, and slows down when allocations do not start.
"""

from __future__ import annotations

import math

import msgspec

NODE_WORK_S_MIN = 30.0
"""A further node is asked for only if each has at least so much work; starting a pilot takes about a second."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What waits or runs, summed over jobs: events that are not done, their core-seconds, cores of the widest slot."""

    events: int
    core_s: float
    slot_cores: int


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What we hold or have asked for. `waiting`: names of queued allocations, newest first."""

    active: int
    waiting: list[str]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What we may hold. `starts_failed`: allocations in a row that ended before their pilot worked."""

    nodes_max: int
    machine_nodes: int
    cores_per_node: int
    starts_failed: int
    last_failed_s: float
    backoff_s: float
    backoff_max_s: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now; `waits_for` names what holds back more, for people."""

    submit: int
    cancel: list[str]
    waits_for: str | None


def plan(demand: Demand, held: Held, limits: Limits, *, now_s: float) -> Plan:
    """The allocations to submit and to cancel. `now_s` and `last_failed_s` are of the monotonic clock."""
    if demand.events == 0:
        return Plan(submit=0, cancel=held.waiting, waits_for=None)
    wanted = min(
        nodes_filled(demand, limits.cores_per_node),
        limits.nodes_max,
        limits.machine_nodes,
    )
    missing = wanted - held.active - len(held.waiting)
    if missing <= 0:
        return Plan(submit=0, cancel=held.waiting[:-missing] if missing else [], waits_for=None)
    pause_s = backoff(limits)
    if pause_s and now_s < limits.last_failed_s + pause_s:
        reason = (
            f"{limits.starts_failed} allocations in a row did not start work: next try after {pause_s:.0f} s"
        )
        return Plan(submit=0, cancel=[], waits_for=reason)
    if limits.starts_failed:
        missing = 1  # one to see whether it is better now
    return Plan(submit=missing, cancel=[], waits_for=None)


def nodes_filled(demand: Demand, cores_per_node: int) -> int:
    """Nodes that the demand keeps busy for a while, at least one."""
    slots_per_node = max(1, cores_per_node // max(1, demand.slot_cores))
    by_slots = math.ceil(demand.events / slots_per_node)
    by_work = math.ceil(demand.core_s / (cores_per_node * NODE_WORK_S_MIN))
    return max(1, min(by_slots, by_work))


def backoff(limits: Limits) -> float:
    """Seconds to wait after the last failed start: doubled each time, bounded."""
    if limits.starts_failed == 0:
        return 0.0
    doublings = min(limits.starts_failed - 1, 30)
    return float(min(limits.backoff_s * 2**doublings, limits.backoff_max_s))
