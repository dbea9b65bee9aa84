"""How much work a site has open, by what was measured, else by what its applications say."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import msgspec

from tidemill.model.application import DEFAULT_EVENT_S
from tidemill.model.devices import asks_gpus
from tidemill.site.applications.catalogue import Applications
from tidemill.site.state.log import SiteLog
from tidemill.site.state.settlement import EventLoad

RANGE_S = 10.0
"""Aimed length of a range (`range_s` of an application): what a kill throws away, where events are shorter."""


EVENT_S_MIN = 1e-5


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What waits or runs, summed over jobs: events that are not done, their core-seconds, cores of the widest slot
    and of a node, seconds of a typical range. `more`: the server has more for us than what is leased. `behind_core_s`:
    besides, of events that run after others of their job (`at_once`): they need nodes for longer, not more of them."""

    events: int
    core_s: float
    slot_cores: int
    cores: int = 1
    range_s: float = 1.0
    more: bool = False
    behind_core_s: float = 0.0
    is_guessed: bool = False  #: no event of some application has ended here since work of it came
    on_gpus: Demand | None = None  #: the part of it that runs on nodes with GPUs only; None = there is none


class _Sum:
    """The events of some jobs while they are summed up."""

    def __init__(self) -> None:
        self.events = 0
        self.core_s = self.behind_core_s = 0.0
        self.widest = 1
        self.longest_s = 0.0
        self.is_guessed = False

    def add(self, count: int, behind: int, seconds: float, slot: int, *, is_guessed: bool) -> None:
        """Add `count` events of `seconds` on `slot` cores, and `behind` that run after others of their job."""
        self.events += count
        self.core_s += count * seconds * slot
        self.behind_core_s += behind * seconds * slot
        self.widest = max(self.widest, slot)
        self.longest_s = max(self.longest_s, seconds)
        self.is_guessed |= is_guessed

    def demand(self, *, cores: int, more: bool) -> Demand:
        """The sum, for nodes with `cores` cores."""
        return Demand(
            events=self.events,
            core_s=self.core_s,
            slot_cores=self.widest,
            cores=cores,
            range_s=max(self.longest_s, min(RANGE_S, self.core_s)) if self.events else 1.0,
            more=more,
            behind_core_s=self.behind_core_s,
            is_guessed=self.is_guessed,
        )


class WaitingLoad:
    """Open events of jobs that wait for the site's sake, in all: `total`, by the keys of `Settlement.load`."""

    def __init__(self) -> None:
        self.total: dict[Hashable, int] = {}
        self._jobs: dict[int, tuple[Hashable, int]] = {}

    def __contains__(self, job: int) -> bool:
        """Whether events of the job wait."""
        return job in self._jobs

    def note(self, job: int, key: Hashable, events: int) -> None:
        """So many events of the job wait now."""
        if self._jobs.get(job) == (key, events):
            return
        self.drop(job)
        if events > 0:
            self._jobs[job] = (key, events)
            self.total[key] = self.total.get(key, 0) + events

    def drop(self, job: int) -> None:
        """The job waits no more."""
        key, events = self._jobs.pop(job, (None, 0))
        if events:
            left = self.total[key] - events
            if left:
                self.total[key] = left
            else:
                del self.total[key]


class Workload:
    """The open work of the pool."""

    def __init__(self, log: SiteLog, applications: Applications, *waiting: Mapping[Hashable, int]) -> None:
        """`waiting`: open events that wait for the site's sake: they need no nodes now."""
        self._log = log
        self._applications = applications
        self._waiting = waiting
        self._rates_before: dict[str, tuple[float, float]] = {}
        """What was measured of each application with open work before that came: it may be of another command."""

    def demand(self, *, cores: int, more: bool) -> Demand:
        """The open work, for nodes with `cores` cores. Pilots of old fleets still work on some of it, so this is an
        upper bound. `more`: the server has more for this site."""
        whole, equipped = _Sum(), _Sum()
        behind = self._log.pool.settlement.behind
        before, self._rates_before = self._rates_before, {}
        for key, opened in self._log.pool.settlement.load.items():
            count = opened - sum(each.get(key, 0) for each in self._waiting)
            if count <= 0:
                continue
            slot = key.cores or self._cores(key.app)
            measured = self._measured_s(key.app)
            seconds = self._estimated_s(key.app) if measured is None else measured
            rate = self._rate(key.app)
            self._rates_before[key.app] = before.get(key.app, rate)
            is_guessed = self._rates_before[key.app] == rate
            sums = [whole, equipped] if self._needs_gpus(key) else [whole]
            for each in sums:
                each.add(count, behind.get(key, 0), seconds, slot, is_guessed=is_guessed)
        demand = whole.demand(cores=cores, more=more)
        if not equipped.events:
            return demand
        only = equipped.events == whole.events
        part = equipped.demand(cores=cores, more=more and only)
        return msgspec.structs.replace(demand, on_gpus=part)

    def estimate_s(self, app: str) -> float | None:
        """Seconds of an event by what the application says."""
        approved = self._applications.by_name.get(app)
        return approved.app.resources.event_s if approved else None

    def measured(self) -> dict[str, float]:
        """Seconds of an event, of the applications that have run here."""
        rates = self._log.pool.state.rates.items()
        found = {app: event_s(rate.wall_s, rate.events) for app, rate in rates}
        return {app: seconds for app, seconds in found.items() if seconds is not None}

    def _rate(self, app: str) -> tuple[float, float]:
        """Seconds and events measured of an application; it changes with each event that ends."""
        rate = self._log.pool.state.rates.get(app)
        return (rate.wall_s, rate.events) if rate else (0.0, 0.0)

    def _measured_s(self, app: str) -> float | None:
        return event_s(*self._rate(app))

    def _estimated_s(self, app: str) -> float:
        return self.estimate_s(app) or DEFAULT_EVENT_S

    def _needs_gpus(self, key: EventLoad) -> bool:
        if key.gpus is not None:
            return key.gpus
        approved = self._applications.by_name.get(key.app)
        return approved is not None and bool(asks_gpus(approved.app.resources.devices))

    def _cores(self, app: str) -> int:
        approved = self._applications.by_name.get(app)
        return (approved.app.resources.cores if approved else None) or 1


def event_s(measured_s: float, events: float) -> float | None:
    """Measured seconds per event, None before anything was measured."""
    return max(measured_s / events, EVENT_S_MIN) if events > 0 else None
