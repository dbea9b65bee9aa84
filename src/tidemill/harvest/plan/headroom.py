"""Idle nodes that are left idle for the small jobs that will come before the next poll or glance. Pure.

The headroom is learned from arrivals: how many nodes small jobs that could start at once requested between two polls.
A node is kept while the wait that it saves, at `WORTH` node-seconds a second, is worth more than the node-seconds that
it stays idle. No allocation is canceled for it. Two rates record how often each number of nodes was requested: one over
the last minutes, for bursts, and one for this hour of the day. After a restart the first is learned again within
minutes, the second within days. Until then a small job waits for a glance, as it does where the headroom is 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from tidemill.harvest.plan.situation import Decision, Situation

WORTH = 10.0
"""Seconds of an idle node that are worth one second of a regular job's wait for a node."""

RECENT_S = 900.0
"""Time for which an arrival counts as part of a burst."""

DAY_WEIGHT = 0.3
"""Weight of the newest day in the rate of an hour of the day."""

SMALL_SHARE = 1 / 64
"""Small jobs want at most this share of a pool's nodes, or one node."""

SHARE_MAX = 0.01
"""At most this share of the nodes without regular jobs is kept idle, or one node."""

POOLS_MAX = 100
"""Pools whose rates are kept, those first that are there now: their names change with what jobs ask for."""

FREE_MIN = 4
"""Where fewer nodes are without regular jobs, none is kept."""

STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of nodes that rates are kept for."""


def small_width(nodes: int) -> int:
    """The widest job that headroom is kept for, in a pool of `nodes`."""
    return max(1, int(nodes * SMALL_SHARE))


class Headroom:
    """What small jobs wanted, and what to keep for the next ones. One for each pool."""

    def __init__(self) -> None:
        self._recent = [0.0] * len(STEPS)
        self._at_s = 0.0
        self._hour: int | None = None  #: hours since 1970 that `_counts` is of
        self._counts = [0] * len(STEPS)
        self._daily: dict[int, list[float]] = {}  #: hour of the day -> events a second

    def note(self, now_s: float, nodes: int) -> None:
        """Since the last poll, small jobs that could start at once wanted `nodes` nodes; 0 = none has come."""
        self._turn(now_s)
        if nodes <= 0:
            return
        fade = math.exp(-max(0.0, now_s - self._at_s) / RECENT_S)
        for k, step in enumerate(STEPS):
            self._recent[k] = self._recent[k] * fade + (step <= nodes) / RECENT_S
            self._counts[k] += step <= nodes
        self._at_s = now_s

    def nodes(self, now_s: float, *, free: int, look_s: float, death_s: float) -> int:
        """Nodes to leave idle until the next poll or glance, of `free` that regular jobs do not hold.

        The k-th one saves half of `look_s` and the death time each time that k nodes are requested.
        """
        if free < FREE_MIN:
            return 0
        least = 1.0 / (WORTH * max(1e-3, look_s / 2 + death_s))
        fade = math.exp(-max(0.0, now_s - self._at_s) / RECENT_S)
        daily = self._daily.get(int(now_s // 3600) % 24, [])
        kept = 0
        for k, step in enumerate(STEPS):
            rate = max(self._recent[k] * fade, daily[k] if daily else 0.0)
            if rate < least:
                break
            kept = step
        return min(kept, max(1, int(free * SHARE_MAX)))

    def _turn(self, now_s: float) -> None:
        """At the end of an hour its counts go into the rate of that hour of the day."""
        hour = int(now_s // 3600)
        if self._hour is None:
            self._hour = hour
        if hour == self._hour:
            return
        for past in range(self._hour, min(hour, self._hour + 24)):
            rates = [count / 3600 for count in self._counts]
            known = self._daily.get(past % 24)
            self._daily[past % 24] = (
                rates
                if known is None
                else [(1 - DAY_WEIGHT) * a + DAY_WEIGHT * b for a, b in zip(known, rates, strict=True)]
            )
            self._counts = [0] * len(STEPS)
        self._hour = hour


class Headrooms:
    """The headroom of each pool of a machine, and which jobs were there at the last poll."""

    def __init__(self) -> None:
        self._pools: dict[str, Headroom] = {}
        self._known: dict[str, frozenset[str]] = {}

    def nodes(self, pool: str, situation: Situation, *, look_s: float) -> int:
        """Nodes to leave idle in a pool until the next poll or glance, `look_s` from now."""
        headroom = self._pools.get(pool)
        if headroom is None:
            return 0
        busy = sum(each.width for each in situation.busy)
        return headroom.nodes(
            situation.now_s,
            free=min(situation.nodes - busy, situation.idle + held_nodes(situation)),
            look_s=look_s,
            death_s=situation.limits.death_s,
        )

    def retain(self, pools: Collection[str]) -> None:
        """Forget which jobs were in pools that are no longer there, and the rates of the pools that left first."""
        for name in self._known.keys() - set(pools):
            del self._known[name]
        for name in pools:
            if name in self._pools:  # to the end: the newest
                self._pools[name] = self._pools.pop(name)
        while len(self._pools) > max(POOLS_MAX, len(pools)):
            del self._pools[next(iter(self._pools))]

    def learn(
        self, pool: str, situation: Situation, decision: Decision, *, present: Mapping[str, int]
    ) -> None:
        """Note which jobs have come since the last poll. `present`: id -> width of the regular jobs that run.

        The first poll of a pool only records which jobs are there.
        """
        widths = {job.id: job.width for job in situation.queue} | dict(present)
        before, self._known[pool] = self._known.get(pool), frozenset(widths)
        headroom = self._pools.setdefault(pool, Headroom())
        if before is None:
            return
        could = {*present, *decision.yields_to, *decision.ready}
        widest = small_width(situation.nodes)
        wanted = sum(
            widths[name] for name in could if name in widths and name not in before and widths[name] <= widest
        )
        headroom.note(situation.now_s, wanted)


def held_nodes(situation: Situation) -> int:
    """Nodes on which Tidemill's allocations run."""
    return sum(each.width * each.count for each in situation.holdings if not each.waiting)
