"""How entries about allocations and the site's stop change the state. Pure.

What an allocation used is booked to its account when it ends: node-seconds between the start and the end that the batch
system reports, and for one that was lost up to its limit, as nothing better is known; one that comes back is booked
again.
"""

from __future__ import annotations

from tidemill.batch.contract import Ending, element_name
from tidemill.model.state import ALLOCATION_FINAL, AllocationState
from tidemill.site.state import site_state
from tidemill.site.state.settlement import Settlement
from tidemill.wire.api import AllocationReport

FOREIGN_KEPT = 100
"""Cancellations that we did not order are remembered up to this number."""

CLOCKS_US_MAX = 60_000_000
"""By which the batch system's clock may be ahead; an end that is later than that is not believed."""


class Bookings:
    """Applies such entries to a state."""

    def __init__(self, settlement: Settlement) -> None:
        self._settlement = settlement
        self._state = settlement.state

    def intended(self, entry: site_state.Intended) -> None:
        """Allocations are about to be asked for."""
        self._state.next_allocation += 1
        for index in range(entry.count):
            name = element_name(entry.allocation, index, entry.count)
            self._state.allocations[name] = site_state.Allocation(
                name=name,
                fleet=entry.fleet,
                nodes=entry.nodes,
                cores=entry.cores,
                state=AllocationState.INTENDED,
                intended_us=entry.at_us,
                submission=entry.allocation,
                pool=entry.pool,
                account=entry.account,
                walltime_s=entry.walltime_s,
                without_gpus=entry.without_gpus,
            )

    def ordered(self, entry: site_state.Ordered) -> None:
        """We end allocations, or let them end earlier."""
        allocations = self._state.allocations
        for name in entry.cancel:
            if name in allocations:
                allocations[name].canceled_us = entry.at_us
        for name, end_us in entry.ends_us.items():
            if name in allocations:
                allocations[name].shortened_us = end_us
        for name in entry.leave:
            if name in allocations:
                allocations[name].leaves = True

    def observed(self, entry: site_state.Observed) -> None:
        """The batch system reported something new."""
        allocation = self._state.allocations.get(entry.allocation)
        if allocation is None:
            return
        was_final = allocation.state in ALLOCATION_FINAL
        was_waiting = not (was_final or allocation.started_us or allocation.pilots or entry.hosts)
        allocation.state = entry.state
        allocation.batch_id = entry.batch_id or allocation.batch_id
        allocation.reason = entry.reason
        allocation.ending = entry.ending
        if not (allocation.hosts and entry.state in ALLOCATION_FINAL and not entry.started_us):
            # An end without a start comes from the allocation's script, which knows its first node alone, and that by
            # `uname -n`: the names that the batch system gave stay.
            allocation.hosts = entry.hosts or allocation.hosts
        allocation.requeued = max(allocation.requeued, entry.requeued)
        allocation.started_us = entry.started_us or allocation.started_us
        allocation.ends_us = entry.ends_us or allocation.ends_us
        if entry.state is AllocationState.QUEUED:
            allocation.started_us = allocation.ends_us = 0
        allocation.held_cores = entry.cores or allocation.held_cores
        allocation.held_gpus = entry.gpus or allocation.held_gpus
        if entry.state in ALLOCATION_FINAL:
            is_told = allocation.started_us <= entry.ended_us <= entry.at_us + CLOCKS_US_MAX
            allocation.ended_us = entry.ended_us if entry.ended_us and is_told else entry.at_us
            self._charge(allocation)
            if entry.ending == Ending.CANCELED and not allocation.canceled_us and not was_final:
                self._state.foreign_us = [*self._state.foreign_us, entry.at_us][-FOREIGN_KEPT:]
                self._state.foreign_by = [*self._state.foreign_by, entry.by][-FOREIGN_KEPT:]
                if was_waiting:
                    self._state.withdrawn_us = [*self._state.withdrawn_us, entry.at_us][-FOREIGN_KEPT:]
        elif was_final:  # it was lost and is back
            allocation.ended_us = 0
            allocation.told_lead = False
            self._refund(allocation)
        self._report(allocation, entry.at_us)

    def stopped(self, entry: site_state.Stopped) -> None:
        """The site drains."""
        self._state.stop = site_state.Stop(cause=entry.cause, reason=entry.reason, at_us=entry.at_us)

    def resumed(self, entry: site_state.Resumed) -> None:
        """An operator lets it work again."""
        self._state.stop = None
        self._state.foreign_us, self._state.foreign_by = [], []
        self._state.withdrawn_us = []

    def instructed(self, entry: site_state.Granted) -> None:
        """A fleet is sent what has ended, what ends earlier and what is to leave."""
        allocations = self._state.allocations
        for name in entry.ended:
            allocations[name].told_lead = True
        for end in entry.ends:
            if end.allocation in allocations:
                allocations[end.allocation].told_end_us = end.at_us
        for name in entry.leave:
            if name in allocations:
                allocations[name].told_leave = True

    def _charge(self, allocation: site_state.Allocation) -> None:
        self._refund(allocation)
        used_s = used_node_s(allocation, allocation.ended_us)
        if used_s:
            used = self._state.used_node_s
            used[allocation.account] = used.get(allocation.account, 0.0) + used_s
            allocation.charged_s = used_s

    def _refund(self, allocation: site_state.Allocation) -> None:
        if allocation.charged_s:
            self._state.used_node_s[allocation.account] -= allocation.charged_s
            allocation.charged_s = 0.0

    def _report(self, allocation: site_state.Allocation, at_us: int) -> None:
        self._settlement.report(
            AllocationReport(
                n=0,
                name=allocation.name,
                batch_id=allocation.batch_id,
                state=allocation.reported,
                nodes=allocation.nodes,
                cores=allocation.cores,
                at_us=at_us,
                reason=allocation.reason,
                busy_us=allocation.busy_us,
                slot_us=allocation.slot_us,
                hosts=allocation.hosts,
                started_us=allocation.started_us,
                ended_us=allocation.ended_us,
                held_cores=allocation.held_cores or allocation.nodes * allocation.cores,
                held_gpus=allocation.held_gpus,
            )
        )


def used_node_s(allocation: site_state.Allocation, now_us: int) -> float:
    """Node-seconds that an allocation has used until now, at most until its limit."""
    if not allocation.started_us:
        return 0.0
    limits_us = [end_us for end_us in (now_us, allocation.ends_us) if end_us]
    return allocation.nodes * max(0, min(limits_us) - allocation.started_us) / 1e6
