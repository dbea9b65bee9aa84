"""What holds each node of a snapshot, and until when: regular jobs, Tidemill's jobs, reservations. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tidemill.harvest.plan.ours import Held
from tidemill.harvest.snapshot.windows import is_open
from tidemill.model.machine import Snapshot

FAR_S = 4e9
"""Stands for an unknown end: beyond any plan, in the year 2096."""


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """What holds each node, by its name."""

    now_s: float
    slack_s: float
    ends_s: dict[str, float]  #: of regular jobs; of several on one node the last
    ours: set[str]  #: nodes that we hold
    outages: dict[str, list[tuple[float, float]]]  #: reservations that are not for us, in order, apart
    opened: set[str]  #: nodes of the reservation in which we run, while it is open
    elsewhere: list[
        tuple[float, int, str]
    ]  #: end, nodes and partition of regular jobs whose nodes are hidden


def occupancy(snapshot: Snapshot, placed: Collection[Held], *, reservation: str, slack_s: float) -> Occupancy:
    """What holds each node. A regular job ends at its limit, as the scheduler plans; one over time ends in `slack_s`.

    With later ends than the scheduler's, Tidemill's allocations would outlast the planned starts. The scheduler would
    postpone these, and backfill jobs that would not have fitted without Tidemill.
    """
    now_s = snapshot.at_s
    ends: dict[str, float] = {}
    elsewhere = []
    for job in snapshot.running:
        if job.ours:
            continue
        end_s = job.ends_s if job.ends_s > now_s else now_s + slack_s
        if not job.nodes:
            elsewhere.append((end_s, job.width, job.partition))
        for name in job.nodes:
            if end_s > ends.get(name, 0.0):
                ends[name] = end_s
    opened, spans = _reservations(snapshot, reservation)
    return Occupancy(
        now_s=now_s,
        slack_s=slack_s,
        ends_s=ends,
        ours={name for each in placed for name in each.nodes},
        outages={name: _apart(found) for name, found in spans.items()},
        opened=opened,
        elsewhere=elsewhere,
    )


def _reservations(
    snapshot: Snapshot, reservation: str
) -> tuple[set[str], dict[str, list[tuple[float, float]]]]:
    """The nodes that are open to us in our reservation, and when each node is closed to us."""
    now_s = snapshot.at_s
    opened: set[str] = set()
    spans: dict[str, list[tuple[float, float]]] = {}
    for each in snapshot.reservations:
        if each.end_s <= now_s:
            continue
        if is_open(each, reservation, now_s):
            opened.update(each.nodes)
            span = (each.end_s, FAR_S)
        else:
            span = (max(each.start_s, now_s), each.end_s)
        for name in each.nodes:
            spans.setdefault(name, []).append(span)
    return opened, spans


def _apart(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans in order, those that touch or overlap joined."""
    if len(spans) == 1:
        return spans
    joined: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if joined and since <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], until))
        else:
            joined.append((since, until))
    return joined
