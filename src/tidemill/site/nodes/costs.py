"""What ending an allocation would throw away, and what starting one costs, from what pilots record. Knows no clock.

Both are kept in memory: after a restart of the agent losses count from the allocation's start, and the start-up is the
configured one until another start is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from tidemill.node.journal import allocation_of
from tidemill.site.state.site_state import Allocation
from tidemill.wire.node import Done, Ended, Failed, Noted, Record, Returned, Started

FADE = 0.2
"""Weight of the newest start in the mean of start-ups."""

STARTUP_S_MAX = 600.0
"""A start-up beyond this is an accident, not a cost to plan with."""

UNKNOWN = ""
"""The owner of a job that is not here any more."""

EVENTS_LOST_MAX = 2.0
"""A slot loses at most this multiple of the typical range: longer silence means that it has nothing to do."""


class _Pilot(msgspec.Struct):
    """What was heard from the pilots of one allocation. `slots`: when each slot was last heard."""

    started_us: int
    first_done_us: int = 0
    done: int = 0
    failed: int = 0
    why_failed: str = ""
    owners: set[str] = set()  #: whose payloads failed
    slots: dict[int, int] = {}


class Costs:
    """Losses and start-ups as far as records show them."""

    def __init__(self, startup_s: float) -> None:
        self.startup_s = (
            startup_s  #: prolog, start of the pilot and first payload: measured, old starts fading
        )
        self._is_measured = False
        self._pilots: dict[str, _Pilot] = {}
        self._first: dict[str, int] = {}

    def on_records(
        self,
        records: Iterable[Record],
        allocations: dict[str, Allocation],
        owner_of: Callable[[int], str] = lambda _: UNKNOWN,
    ) -> None:
        """Take records of a fleet; `allocations`: by name, with their start in the batch system; `owner_of`: a job."""
        for record in records:
            if type(record) is Started:
                if record.rank == 0 or record.allocation not in self._pilots:
                    self._pilots[record.allocation] = _Pilot(record.at_us)
            elif type(record) is Done:
                self._worked(record, allocations)
            elif type(record) is Failed:
                self._note_slot(record.p, record.slot, record.at_us)
                pilot = self._pilots.get(allocation_of(record.p))
                if pilot is not None:
                    pilot.failed += 1
                    pilot.why_failed = record.message
                    pilot.owners.add(owner_of(record.job))
            else:
                assert type(record) in (Returned, Ended, Noted)

    def loss_s(self, allocation: Allocation, now_us: int, range_s: float) -> float:
        """Node-seconds lost by ending it now: work in flight, and the start-up that has not paid back yet."""
        if not allocation.started_us:
            return 0.0
        pilot = self._pilots.get(allocation.name)
        began_us = pilot.first_done_us if pilot is not None and pilot.first_done_us else 0
        if not began_us:
            return allocation.nodes * self.startup_s
        since = list(pilot.slots.values()) if pilot is not None else []
        bound_s = EVENTS_LOST_MAX * range_s
        flying_s = sum(min(max(0, now_us - at) / 1e6, bound_s) for at in since) / max(1, len(since))
        unpaid_s = max(0.0, self.startup_s - (now_us - began_us) / 1e6)
        return allocation.nodes * (flying_s + unpaid_s)

    def outcomes(self, name: str) -> tuple[int, int]:
        """How many records of the allocation report work done, and work failed."""
        pilot = self._pilots.get(name)
        return (pilot.done, pilot.failed) if pilot is not None else (0, 0)

    def owners_of_failed(self, name: str) -> Collection[str]:
        """Whose payloads failed in the allocation; empty = that is not known."""
        pilot = self._pilots.get(name)
        return () if pilot is None or UNKNOWN in pilot.owners else pilot.owners

    def why_failed(self, name: str) -> str:
        """What the last failure of a payload in the allocation was; empty = none failed."""
        pilot = self._pilots.get(name)
        return pilot.why_failed if pilot is not None else ""

    def take_first(self) -> list[tuple[str, int]]:
        """Allocations whose first work was heard of since this was asked last, and when it ended there."""
        first, self._first = list(self._first.items()), {}
        return first

    def forget(self, name: str) -> None:
        """The allocation has ended."""
        self._pilots.pop(name, None)
        self._first.pop(name, None)

    def _worked(self, record: Done, allocations: dict[str, Allocation]) -> None:
        self._note_slot(record.p, record.slot, record.ended_us)
        name = allocation_of(record.p)
        pilot = self._pilots.get(name)
        if pilot is None:
            return
        pilot.done += 1
        if pilot.first_done_us:
            return
        pilot.first_done_us = max(record.ended_us, 1)
        self._first[name] = pilot.first_done_us
        allocation = allocations.get(name)
        if allocation is None:
            return
        began_us = min(allocation.started_us or pilot.started_us, pilot.started_us)
        cost_s = (record.started_us - began_us + record.setup_us) / 1e6
        if not 0 <= cost_s <= STARTUP_S_MAX:
            return  # clocks of hosts differ
        self.startup_s = (1 - FADE) * self.startup_s + FADE * cost_s if self._is_measured else cost_s
        self._is_measured = True

    def _note_slot(self, pilot: str, slot: int, at_us: int) -> None:
        known = self._pilots.get(allocation_of(pilot))
        if known is not None:
            known.slots[slot] = max(at_us, known.slots.get(slot, 0))
