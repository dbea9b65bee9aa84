"""What a sync reports of the site's capacity: how much more work to lease, and what slots and nodes there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tidemill import clock
from tidemill.config.transfer import Endpoint
from tidemill.model.state import AllocationState
from tidemill.model.trouble import Trouble
from tidemill.site import constants
from tidemill.site.applications.memory import largest_slot_mb
from tidemill.site.fleet.at_work import UnstartedJobs
from tidemill.site.nodes.harvesting import Harvesting
from tidemill.site.nodes.holdings import CacheHoldings
from tidemill.site.nodes.planning import is_at_work
from tidemill.site.state.served_site import ServedSite
from tidemill.wire.api import NEAR_MAX, Capacity
from tidemill.wire.far import NearData

SYNCS_AHEAD = 3
"""At least what is done in this number of syncs is kept leased ahead."""

LEASE_CORE_S_MAX = 1e7
"""Core-seconds of leased work at most: 2,800 cores for an hour. What a site that fails holds is late by its silence."""

WINDOW_S = 2.0
KEEP = 0.5


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """What decides it. `open_core_s`: leased and not done. `rate_core_s`: core-seconds of estimate done per second."""

    cores: int
    open_core_s: float
    open_ranges: int
    rate_core_s: float
    sync_s: float
    lease_ahead_s: float
    core_s_max: float
    ranges_max: int


def wanted(ahead: Ahead) -> tuple[float, int]:
    """Core-seconds and ranges to ask for; (0, 0) = none.

    Work for all cores for `lease_ahead_s`, and never less than what is used up in three syncs. It asks again only when
    an eighth of that is used up, so that the server does not cut leases to crumbs.
    """
    target = max(
        ahead.cores * ahead.lease_ahead_s,
        ahead.rate_core_s * ahead.sync_s * SYNCS_AHEAD,
    )
    missing = min(target, ahead.core_s_max) - ahead.open_core_s
    ranges = ahead.ranges_max - ahead.open_ranges
    if ranges <= 0 or missing < target / 8:
        return 0.0, 0
    return missing, ranges


class Throughput:
    """A fading average over windows of a few seconds of how the open work shrinks, deliveries of new work apart."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._eaten = 0.0
        self._last: float | None = None
        self.rate = 0.0

    def update(self, open_core_s: float, now_s: float) -> float:
        """Take the present amount of open work; the rate in core-seconds per second."""
        if self._last is not None and open_core_s < self._last:
            self._eaten += self._last - open_core_s
        self._last = open_core_s
        if self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - self._since_s
        if elapsed_s >= WINDOW_S:
            self.rate = KEEP * self.rate + (1 - KEEP) * self._eaten / elapsed_s
            self._since_s, self._eaten = now_s, 0.0
        return self.rate


def near(endpoints: Sequence[Endpoint]) -> list[NearData]:
    """What data the site is near to, by its own word. A pattern for hosts names no place."""
    told = [
        NearData(each.url, each.near_s_per_gb)
        for each in endpoints
        if each.near_s_per_gb is not None and "*" not in each.url
    ]
    return sorted(told, key=lambda each: each.s_per_gb)[:NEAR_MAX]


class CapacityMeter:
    """Measures what the site can take. Slots are those of the machine as it was when the agent started,
    with the memory that allocations get there, as far as is known now."""

    def __init__(
        self, site: ServedSite, harvesting: Harvesting, waiting: Callable[[], list[Trouble]]
    ) -> None:
        """`waiting`: why deliveries wait."""
        self._site = site
        self._waiting = waiting
        self._harvesting = harvesting
        self._shape = harvesting.machine.shape
        self._throughput = Throughput()
        self._holdings = CacheHoldings(site.config.caches)
        self._unstarted = UnstartedJobs(harvesting.fleets.at_work)

    def measure(self, *, sync_s: float, room: int, more: bool) -> Capacity:
        """The capacity now. `sync_s`: pause between two syncs; `room`: ranges that the agent accepts now; `more`: the
        server has more work for this site than what is leased."""
        config, machine = self._site.config, self._harvesting.machine
        workload, rates = self._harvesting.fleets.workload, self._site.state.rates
        want_core_s, want_ranges = self._wanted(sync_s, more=more)
        wide_core_s = self._wide_core_s()
        if wide_core_s > 0:
            want_ranges = max(0, constants.LEASE_RANGES_MAX - self._site.state.leases_open)
        awaits = self._harvesting.awaited()
        active = [a for a in self._harvesting.book.living if a.state is AllocationState.ACTIVE]
        return Capacity(
            want_core_s=want_core_s,
            want_ranges_max=min(want_ranges, room),
            slot_cores_max=self._shape.cores,
            slot_memory_mb_max=largest_slot_mb(machine.shape.memory_mb),
            devices=self._shape.devices,
            event_s=workload.measured(),
            nodes=machine.wide_nodes_max,
            busy_cores=sum(a.cores * a.nodes for a in active) if rates or active else 0,
            adhoc=config.allow_adhoc,
            wide_core_s=wide_core_s,
            wide_nodes_max=machine.wide_nodes_max if machine.launcher else 0,
            launcher=machine.launcher,
            troubles=[
                *self._harvesting.doubts.troubles(
                    jobs=0 if awaits is None else len(self._site.state.jobs),
                    next_us=self._harvesting.next_poll_us,
                ),
                *self._harvesting.fleets.granting.troubles.shown(),
                *self._waiting(),
            ],
            near=near(config.endpoints),
            holds=self._holdings.now(),
            awaits=awaits,
            more=None if awaits is not None else self._harvesting.more_awaited(),
            unstarted=self._unstarted_now(is_idle=awaits is not None),
        )

    def _unstarted_now(self, *, is_idle: bool) -> str:
        at_work = {a.fleet for a in self._harvesting.book.living if is_at_work(a)}
        return "" if is_idle else self._unstarted.text(self._site.state, at_work)

    def _wanted(self, sync_s: float, *, more: bool) -> tuple[float, int]:
        if not self._site.may_lease:
            return 0.0, 0
        machine = self._harvesting.machine
        core_s = self._harvesting.demand(more=more).core_s
        return wanted(
            Ahead(
                cores=machine.cores,
                open_core_s=core_s,
                open_ranges=self._site.state.leases_open,
                rate_core_s=self._throughput.update(core_s, clock.monotonic_s()),
                sync_s=sync_s,
                lease_ahead_s=constants.LEASE_AHEAD_S,
                core_s_max=LEASE_CORE_S_MAX,
                ranges_max=constants.LEASE_RANGES_MAX,
            )
        )

    def _wide_core_s(self) -> float:
        machine = self._harvesting.machine
        if not self._site.may_lease or not machine.launcher:
            return 0.0
        return self._harvesting.fleets.wide.wanted_core_s(
            nodes=machine.wide_nodes_max, cores=self._shape.cores, walltime_s=self._site.config.walltime_s
        )
