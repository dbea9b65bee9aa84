"""Which site is near to the data of a kind of jobs, and how long a job waits for such a site. Pure.

A site reports what it is near to (URL prefixes with a measured cost) and which datasets its caches hold. Jobs whose
data are here go first; jobs whose data are clearly nearer to another site that could run them wait for it at most
`data_wait_s`. Where no site reports anything about the data, matching is as it would be without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Protocol

from tidemill.server.database.rows import JobKind, Site
from tidemill.server.hospital.datasets import DATASET_CHARACTERS_MAX, parents, spelled
from tidemill.wire.api import HOLDS_MAX, NEAR_MAX, Capacity
from tidemill.wire.far import HeldData, NearData

HELD_S_PER_GB = 10.0  #: of data that a cache holds in part, where the site has not measured the rest
COST_MAX = 1e6
CLEARLY = 2.0  #: another site is better if it costs less than half
NEGLIGIBLE_S = 1.0  #: a difference up to this many seconds per GB does not count
COSTS_KEPT = 200_000
SPELLINGS_KEPT = 1 << 16
PASSED_S = 5.0
"""A kind of which every job was too young is not read again for this time: there may be a million of them."""


class Tier(IntEnum):
    """How a site stands to the data of a kind: its jobs go in this order within one priority."""

    HERE = 0
    ANYWHERE = 1  #: it reads no data, or no site reports anything about them
    FAR = 2


def bounded(capacity: Capacity) -> None:
    """Drop what a site may not report: entries beyond the limits, invalid figures, texts that are not URLs."""
    near = [
        NearData(prefix, min(each.s_per_gb, COST_MAX))
        for each in capacity.near[:NEAR_MAX]
        if each.s_per_gb >= 0 and (prefix := _spelled(each.prefix)) is not None
    ]
    holds = [
        HeldData(dataset, min(each.share, 1.0))
        for each in capacity.holds[:HOLDS_MAX]
        if each.share > 0 and (dataset := _spelled(each.dataset)) is not None
    ]
    capacity.near, capacity.holds = near, holds


def _spelled(text: str) -> str | None:
    """`spelled`, remembered: sites say the same a thousand texts in each sync, which take 13 ms to spell."""
    return _known_spelling(text) if len(text) <= DATASET_CHARACTERS_MAX else spelled(text)


_known_spelling = lru_cache(SPELLINGS_KEPT)(spelled)


class NearbyData:
    """What one site said about data, prepared for look-ups."""

    def __init__(self, near: Sequence[NearData], holds: Sequence[HeldData]) -> None:
        self.said = (near, holds)
        self._near = {each.prefix: each.s_per_gb for each in near}
        self._held = {each.dataset: each.share for each in holds}
        self._known: dict[str, float | None] = {}

    def cost(self, kind: JobKind) -> float | None:
        """Seconds that a gigabyte of the kind's data takes here, the mean of its datasets; None = not known."""
        found = self._known.get(kind.data, math.nan)
        if found is None or found == found:
            return found
        if len(self._known) >= COSTS_KEPT:
            self._known.clear()
        costs = [each for dataset in kind.datasets if (each := self._cost(dataset)) is not None]
        cost = self._known[kind.data] = sum(costs) / len(costs) if costs else None
        return cost

    def _cost(self, dataset: str) -> float | None:
        near = next((self._near[each] for each in parents(dataset) if each in self._near), None)
        share = next((self._held[each] for each in parents(dataset) if each in self._held), 0.0)
        if not share:
            return near
        return (HELD_S_PER_GB if near is None else near) * (1.0 - share)


class DataMap:
    """The data that all sites said they are near to, or hold."""

    def __init__(self) -> None:
        self._sites: dict[int, NearbyData] = {}

    def update(self, site: Site) -> None:
        """A site was heard: what it said before holds no longer."""
        capacity = site.capacity
        if capacity is None or not (capacity.near or capacity.holds):
            self._sites.pop(site.id, None)
        elif site.id not in self._sites or self._sites[site.id].said != (capacity.near, capacity.holds):
            self._sites[site.id] = NearbyData(capacity.near, capacity.holds)

    def tier(self, site: Site, kind: JobKind, is_fit: Callable[[int], bool]) -> Tier:
        """How a site stands to a kind's data. `is_fit`: whether another site could run the kind."""
        if not kind.data or not self._sites:
            return Tier.ANYWHERE
        mine = self._sites[site.id].cost(kind) if site.id in self._sites else None
        rivals = {
            number: cost
            for number, each in self._sites.items()
            if number != site.id and (cost := each.cost(kind)) is not None
        }
        if any(is_better(cost, mine) and is_fit(number) for number, cost in rivals.items()):
            return Tier.FAR
        return Tier.ANYWHERE if mine is None else Tier.HERE


def is_better(cost: float, mine: float | None) -> bool:
    """Whether a site of this cost is clearly nearer than one of the other (None = not known: far)."""
    return mine is None or (cost * CLEARLY < mine and mine - cost > NEGLIGIBLE_S)


TOP = 2**62

Place = tuple[int, int, int]
"""Of a job in the order of a campaign for one site: rank, tier, id."""


def leg_after(after: Place, tier: Tier) -> tuple[int, int]:
    """The rank and id after which the jobs of a tier go on, when everything up to `after` was read."""
    rank, reached, number = after
    if tier == reached:
        return rank, number
    return (rank, 0) if tier > reached else (rank, TOP)


class WaitingJob(Protocol):
    """What the gate asks of a job that waits."""

    kind: int
    rank: int
    created_us: int


class DataGate:
    """Jobs that wait for a nearer site, for one site in one sync. `passed`: kinds that are not read until then."""

    def __init__(self, passed: dict[int, int], *, now_us: int, wait_s: float) -> None:
        self._passed, self._now_us, self._wait_us = passed, now_us, int(wait_s * 1e6)
        self.tiers: dict[int, Tier] = {}
        self._seen: dict[int, tuple[int, int, int]] = {}  #: kind -> read, held, when the first is free

    def admits_kind(self, kind: int) -> bool:
        """Whether to read jobs of a kind at all."""
        return self._passed.get(kind, 0) <= self._now_us

    def admits(self, kind: int, *, since_us: int, is_bound: bool) -> bool:
        """Whether the site may have a job that waits since then. `is_bound`: no other site may have it."""
        if self.tiers.get(kind, Tier.ANYWHERE) is not Tier.FAR:
            return True
        free_us = since_us + self._wait_us
        is_held = not is_bound and free_us > self._now_us
        read, held, first_us = self._seen.get(kind, (0, 0, 2**62))
        self._seen[kind] = (read + 1, held + is_held, min(first_us, free_us) if is_held else first_us)
        return not is_held

    def after_young(self, after: Place | None, jobs: Sequence[WaitingJob]) -> Place | None:
        """Where to go on after jobs of a cut scan of which the last is too young to go far: behind its priority. Ids
        ascend with the time of creation, so that the jobs in between are younger still. None = go on as ever."""
        if after is None or not jobs or after[1] != Tier.FAR:
            return None
        last = jobs[-1]
        is_young = last.created_us + self._wait_us > self._now_us
        is_far = self.tiers.get(last.kind) is Tier.FAR
        return (last.rank, Tier.FAR, TOP) if is_young and is_far and last.rank == after[0] else None

    def close(self, open_kinds: Iterable[int]) -> None:
        """The sync is over: remember the kinds of which every job was too young."""
        known = set(open_kinds)
        for kind in [
            each for each, until in self._passed.items() if until <= self._now_us or each not in known
        ]:
            del self._passed[kind]
        for kind, (read, held, first_us) in self._seen.items():
            if read == held:
                self._passed[kind] = min(first_us, self._now_us + int(PASSED_S * 1e6))
