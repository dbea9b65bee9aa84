"""Which small files of allocations that ended long ago may go: scripts, what they printed, notes of their end. Pure.

Names come from our own records only, and no directory is ever listed. A few names are given out at a time; the batch
system's adapter knows which files that means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

import msgspec

from tidemill.batch.contract import element_name
from tidemill.harvest.account.broker_log import Submitted
from tidemill.model.state import ALLOCATION_FINAL
from tidemill.site.state.site_state import Allocation

KEPT_S = 86400.0
"""Files stay for this time, for people who search for a reason."""

KEPT_MAX = 10_000
"""Beyond that the oldest go earlier."""

BATCH = 50
"""Allocations whose files go at once: some six metadata operations each, below a second on a slow file system."""


class Over(msgspec.Struct, frozen=True):
    """An allocation that has ended, and what it was asked for with."""

    name: str
    submission: str
    ended_us: int


class ExpiredFiles(msgspec.Struct, frozen=True):
    """Files of these may go now. `submissions`: those of which nothing lives."""

    names: list[str]
    submissions: list[str]


class Leftovers:
    """Allocations that have ended, the oldest first."""

    def __init__(self, allocations: Iterable[Allocation] = ()) -> None:
        over = [
            Over(a.name, a.submission or a.name, a.ended_us)
            for a in allocations
            if a.state in ALLOCATION_FINAL
        ]
        self._over = deque(sorted(over, key=lambda each: each.ended_us))

    def __len__(self) -> int:
        return len(self._over)

    def ended(self, allocation: Allocation) -> None:
        """Remember an allocation that has ended now."""
        self._over.append(
            Over(allocation.name, allocation.submission or allocation.name, allocation.ended_us)
        )

    def restore(self, submitted: Iterable[Submitted], known: Collection[str], now_us: int) -> None:
        """Take up what earlier agents asked for and our state has forgotten: those have ended by their limit."""
        missed = [
            Over(name, each.name, min(now_us, int((each.at_s + each.walltime_s) * 1e6)))
            for each in submitted
            for name in (element_name(each.name, index, each.count) for index in range(each.count))
            if name not in known
        ]
        self._over = deque(sorted([*missed, *self._over], key=lambda each: each.ended_us))

    def next_expired(self, living: Iterable[Allocation], now_us: int) -> ExpiredFiles | None:
        """The next few; None where none is due. What lives again after it was lost stays."""
        before_us = now_us - int(KEPT_S * 1e6)
        if not (self._over and (self._over[0].ended_us <= before_us or len(self._over) > KEPT_MAX)):
            return None
        alive = {a.name: a.submission or a.name for a in living}
        needed = set(alive.values())
        taken: list[Over] = []
        while len(taken) < BATCH and self._over:
            if self._over[0].ended_us > before_us and len(self._over) <= KEPT_MAX:
                break
            taken.append(self._over.popleft())
        return ExpiredFiles(
            [each.name for each in taken if each.name not in alive],
            list(dict.fromkeys(each.submission for each in taken if each.submission not in needed)),
        )
