"""Which ranges a site gets: fair share between owners, then between an owner's campaigns, then priority, then age.
Pure: state in, ranges out.

Stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528, 1995) on core-seconds, twice: the owner that has had the least
per share goes first, and of its campaigns the one that has had the least per share. What each has had is what was
leased to it, corrected at settlement by what was used, and halves every `half_life_s`. A new campaign starts where the
others of its owner are, and an owner who had nothing open where the other owners are, so that neither starves the rest.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from tidemill.model.application import DEFAULT_CORES, DEFAULT_EVENT_S, DEFAULT_MEMORY_MB
from tidemill.model.devices import with_shares
from tidemill.model.fit import LargestSlot
from tidemill.model.job import rate_key
from tidemill.model.width import check_allowed, check_place
from tidemill.server.database.rows import JobKind, Site

EVENT_S_MIN = 1e-6
TURNS = 16  #: with several campaigns, one turn is at most this part of a fair slice of what the site wants
SHARES_MIN = 1e-6
CAMPAIGN_WINDOW_MIN = 16  #: fewest candidates that are read of one campaign
CAMPAIGNS_MIN = 64  #: campaigns that are read even in a small window


class Candidate(msgspec.Struct, gc=False):
    """A job that the site may have. `free`: its intervals to lease; `event_core_s`: estimated cost of one event."""

    job: int
    rank: int
    free: list[tuple[int, int]]
    event_core_s: float


class OwnerAccount(msgspec.Struct):
    """What an owner of campaigns has had; `used_core_s`: decayed to now. One record for all campaigns of an owner."""

    name: str = ""
    shares: float = 1.0
    used_core_s: float = 0.0

    @property
    def had(self) -> float:
        """Core-seconds per share."""
        return self.used_core_s / max(self.shares, SHARES_MIN)


class Claim(msgspec.Struct):
    """A campaign with work for the site. `used_core_s`: decayed to now. Candidates by (rank, job)."""

    campaign: int
    shares: float
    used_core_s: float
    candidates: Sequence[Candidate]
    owner: OwnerAccount = msgspec.field(default_factory=OwnerAccount)


class LeaseRange(msgspec.Struct, gc=False):
    """Lease these events."""

    job: int
    campaign: int
    first: int
    count: int
    core_s: float


class MatchResult(msgspec.Struct):
    """`dry`: campaigns whose candidates were all used up, so that more of their jobs may be read."""

    ranges: list[LeaseRange]
    core_s: float
    dry: set[int]


class Contender(msgspec.Struct):
    """A campaign that may have work for the site, before its jobs are read."""

    campaign: int
    shares: float
    used_core_s: float
    owner: OwnerAccount


def shortlist(contenders: Iterable[Contender], window: int) -> dict[int, int]:
    """The campaigns whose jobs are read next, with the number of candidates of each: about `window` in all.

    It is divided between owners, then between an owner's campaigns, so that many campaigns gain an owner nothing. Where
    they are too many for CAMPAIGN_WINDOW_MIN candidates each, those that have had the least per share are read now.
    """
    by_owner: dict[str, list[Contender]] = defaultdict(list)
    for each in contenders:
        by_owner[each.owner.name].append(each)
    most = max(CAMPAIGNS_MIN, window // CAMPAIGN_WINDOW_MIN)
    first = heapq.nsmallest(
        most, by_owner.values(), key=lambda those: (those[0].owner.had, those[0].owner.name)
    )
    chosen: dict[int, int] = {}
    for those in first:
        nearest = heapq.nsmallest(
            max(1, most // len(first)), those, key=lambda each: (_had(each), each.campaign)
        )
        for each in nearest:
            chosen[each.campaign] = max(CAMPAIGN_WINDOW_MIN, window // len(first) // len(nearest))
    return chosen


def _had(one: Claim | Contender) -> float:
    return one.used_core_s / max(one.shares, SHARES_MIN)


def match(claims: Sequence[Claim], *, want_core_s: float, ranges_max: int) -> MatchResult:
    """Ranges worth `want_core_s` (the last event may reach beyond it), at most `ranges_max` of them.

    Costs O(candidates (log owners + log campaigns)). Does not change its arguments.
    """
    turn_core_s = want_core_s / (TURNS * len(claims)) if len(claims) > 1 else want_core_s
    queues: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    accounts: dict[str, OwnerAccount] = {}
    for index, claim in enumerate(claims):
        if claim.candidates:
            queues[claim.owner.name].append((_had(claim), claim.campaign, index))
            accounts[claim.owner.name] = claim.owner
    for queue in queues.values():
        heapq.heapify(queue)
    owners = [(account.had, name) for name, account in accounts.items()]
    heapq.heapify(owners)
    hands = [_Hand(claim) for claim in claims]
    ranges: list[LeaseRange] = []
    given = 0.0
    dry = {claim.campaign for claim in claims if not claim.candidates}
    while owners and given < want_core_s and len(ranges) < ranges_max:
        had, name = owners[0]
        queue = queues[name]
        passed, campaign, index = queue[0]
        cost = hands[index].lease_next(ranges, min(turn_core_s, want_core_s - given))
        given += cost
        if hands[index].empty:
            heapq.heappop(queue)
            dry.add(campaign)
        else:
            heapq.heapreplace(queue, (passed + cost / max(claims[index].shares, SHARES_MIN), campaign, index))
        if queue:
            heapq.heapreplace(owners, (had + cost / max(accounts[name].shares, SHARES_MIN), name))
        else:
            heapq.heappop(owners)
    return MatchResult(ranges, given, dry)


class _Hand:
    """How far a campaign's candidates are used up."""

    __slots__ = ("_at", "_campaign", "_candidates", "_first", "_last", "_piece", "empty")

    def __init__(self, claim: Claim) -> None:
        self._campaign = claim.campaign
        self._candidates = claim.candidates
        self._at = 0
        self._piece = 0
        self._first = claim.candidates[0].free[0][0] if claim.candidates else 0
        self._last: LeaseRange | None = None
        self.empty = not claim.candidates

    def lease_next(self, ranges: list[LeaseRange], core_s: float) -> float:
        """Lease one piece of the next job; what it costs. One that goes on where the last ended makes that longer."""
        candidate = self._candidates[self._at]
        _, end = candidate.free[self._piece]
        first = self._first
        count = max(1, min(end - first, int(core_s / candidate.event_core_s)))
        cost = count * candidate.event_core_s
        last = self._last
        if last is not None and last.job == candidate.job and last.first + last.count == first:
            last.count += count
            last.core_s += cost
        else:
            self._last = LeaseRange(candidate.job, self._campaign, first, count, cost)
            ranges.append(self._last)
        self._first = first + count
        if self._first == end:
            self._next(candidate)
        return cost

    def _next(self, candidate: Candidate) -> None:
        self._piece += 1
        if self._piece == len(candidate.free):
            self._at += 1
            self._piece = 0
        if self._at == len(self._candidates):
            self.empty = True
        else:
            self._first = self._candidates[self._at].free[self._piece][0]


def decayed(used_core_s: float, *, since_us: int, now_us: int, half_life_s: float) -> float:
    """What is left of core-seconds had at `since_us`. A clock that went back decays nothing."""
    age_s = max(0, now_us - since_us) / 1e6
    return float(used_core_s * 0.5 ** (age_s / half_life_s))


def event_s(site: Site, kind: JobKind, estimate_s: float | None) -> float:
    """Seconds of one event on one slot: measured at the site, else the job's estimate, the offer's, a default."""
    measured = None
    if site.capacity is not None:
        measured = site.capacity.event_s.get(rate_key(kind.app, kind.width))
    if measured is not None and measured > 0:
        return max(measured, EVENT_S_MIN)
    if estimate_s is not None and estimate_s > 0:
        return max(estimate_s, EVENT_S_MIN)
    offer = site.offers.get(kind.app)
    return max(offer.event_s, EVENT_S_MIN) if offer is not None and offer.event_s > 0 else DEFAULT_EVENT_S


def slot_cores(site: Site, kind: JobKind) -> int:
    """Cores that a payload of the kind takes at the site: of its slot, or of all its nodes."""
    if kind.nodes and site.capacity is not None:
        return kind.nodes * max(1, site.capacity.slot_cores_max)
    return _cores(site, kind)


def _cores(site: Site, kind: JobKind) -> int:
    offer = site.offers.get(kind.app)
    return kind.cores or (offer.cores if offer is not None else DEFAULT_CORES)


def slots_of(sites: Iterable[Site]) -> list[LargestSlot]:
    """The largest slot of each of these sites that has joined."""
    return [
        LargestSlot(
            each.name, each.capacity.slot_cores_max, each.capacity.slot_memory_mb_max,
            with_shares(each.capacity.devices), each.capacity.wide_nodes_max, each.capacity.launcher,
        )
        for each in sites
        if each.capacity is not None
    ]  # fmt: skip


def obstacle(site: Site, kind: JobKind) -> str | None:
    """Why a site cannot run a kind of jobs: a cause of the closed list, or None if it can."""
    capacity = site.capacity
    if capacity is None:
        return "no_site"
    if site.lost:
        return "site_silent"
    offer = site.offers.get(kind.app)
    if kind.app and offer is None:
        return "app_not_offered"
    if not kind.app and not capacity.adhoc:
        return "adhoc_not_allowed"
    memory_mb = kind.memory_mb or (offer.memory_mb if offer is not None else DEFAULT_MEMORY_MB)
    if _cores(site, kind) > capacity.slot_cores_max or memory_mb > capacity.slot_memory_mb_max:
        return "resources_too_large"
    if any(capacity.devices.get(name, 0) < number for name, number in kind.devices.items()):
        return "resources_too_large"
    too_wide = width_obstacle(site, kind)
    if too_wide is not None:
        return too_wide[0]
    if site.down_us:
        return "site_downtime"
    return "site_drained" if site.drained else None


def fits(site: Site, kind: JobKind) -> bool:
    """Whether a site could run a kind of jobs now."""
    return obstacle(site, kind) is None


def width_obstacle(site: Site, kind: JobKind) -> tuple[str, str] | None:
    """Why a site cannot run a payload that spans nodes: the cause, and what is asked for next to what there is."""
    width, capacity, offer = kind.width, site.capacity, site.offers.get(kind.app)
    if width is None or capacity is None:
        return None
    if offer is not None:
        why = check_allowed(width, app=kind.app, nodes_max=offer.nodes_max, ranks_max=offer.ranks_max)
        if why is not None:
            return "width_not_allowed", why
    if not capacity.launcher:
        return "no_launcher", ""
    why = check_place(
        width,
        cores=_cores(site, kind),
        nodes=capacity.wide_nodes_max,
        cores_per_node=capacity.slot_cores_max,
        launcher=capacity.launcher,
    )
    return None if why is None else ("too_few_nodes", why)


def wanted_core_s(site: Site, *, wide: bool) -> float:
    """Core-seconds of payloads that span nodes, or of others, that the site wants more of."""
    if site.capacity is None:
        return 0.0
    return site.capacity.wide_core_s if wide else site.capacity.want_core_s
