"""Which moves start and which make way, so that one owner's slow files hold up no other's. Pure.

The slots of an endpoint go to the owner who has the fewest. Where several owners have moved files lately, none takes
the last slot; and where one waits in vain nevertheless, a move that hangs, or one of an owner who has more, makes way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

OWNERS_S = 3600.0
"""Owners who have moved something in this time count as there: a slot is left for them."""

YIELD_S = 10.0
"""An owner of whom nothing moves waits for this time for a slot before another's move makes way."""

HANG_S = 10.0
"""A move without a byte for this time hangs: it makes way first."""

HANG_GROWTH = 4
"""Each time that a move made way it may be idle for this multiple of the time before: servers that bring a file from
tape are silent for a minute, and a move that always had to make way would never end."""

YIELDS_MAX = 8
"""More are counted as this many: the limit is that of a stalled try by then."""


class WaitingMove(NamedTuple):
    """A move that may start. `since_s`: when it was wanted."""

    id: str
    endpoint: str
    owner: str = ""
    since_s: float = 0.0


class RunningMove(NamedTuple):
    """A move that has a slot. `idle_s`: for how long no byte has come; `bytes`: that have. `yields`: how often it made
    way before; `is_whole`: all its bytes are moved, and the other side works on them."""

    id: str
    endpoint: str
    owner: str = ""
    idle_s: float = 0.0
    bytes: int = 0
    yields: int = 0
    is_whole: bool = False

    def hangs(self, stall_s: float) -> bool:
        """Whether it makes way first. `stall_s`: after this time without a byte a try ends by itself."""
        limit_s = min(HANG_S * HANG_GROWTH ** min(self.yields, YIELDS_MAX), stall_s)
        return not self.is_whole and self.idle_s >= limit_s


class MoveLimits(NamedTuple):
    """How many may run. `endpoints`: at each, 1 where nothing is said; `total`: in all; `is_shared`: several owners
    have moved files lately; `stall_s`: after this time without a byte a try ends by itself."""

    endpoints: Mapping[str, int]
    total: int
    is_shared: bool = False
    stall_s: float = 120.0

    def at(self, endpoint: str) -> int:
        """The moves at once at an endpoint."""
        return self.endpoints.get(endpoint, 1)

    def own(self, limit: int) -> int:
        """The part of a limit that one owner may use."""
        return max(1, limit - 1) if self.is_shared else limit


def due(waiting: Sequence[WaitingMove], running: Sequence[RunningMove], limits: MoveLimits) -> list[str]:
    """Which may start now beside those that run, in the order in which they were wanted within an owner and endpoint:
    those of the owner who has the fewest slots first."""
    busy = Counter(each.endpoint for each in running)
    mine = Counter((each.endpoint, each.owner) for each in running)
    of_owner = Counter(each.owner for each in running)
    queues: dict[tuple[str, str], deque[tuple[int, str]]] = {}
    for number, each in enumerate(waiting):
        queues.setdefault((each.endpoint, each.owner), deque()).append((number, each.id))
    starts: list[str] = []
    while len(running) + len(starts) < limits.total:
        free = [
            key
            for key in queues
            if busy[key[0]] < limits.at(key[0])
            and mine[key] < limits.own(limits.at(key[0]))
            and of_owner[key[1]] < limits.own(limits.total)
        ]
        if not free:
            break
        key = min(free, key=lambda each: (of_owner[each[1]], mine[each], queues[each][0]))
        starts.append(queues[key].popleft()[1])
        busy[key[0]] += 1
        mine[key] += 1
        of_owner[key[1]] += 1
        if not queues[key]:
            del queues[key]
    return starts


def makes_way(
    waiting: Sequence[WaitingMove], running: Sequence[RunningMove], limits: MoveLimits, now_s: float
) -> str | None:
    """The move that makes way for an owner of whom nothing moves at an endpoint although it has waited; None = none
    does. What may start by itself is not among `waiting`, and the oldest of each endpoint and owner is enough."""
    busy = Counter(each.endpoint for each in running)
    mine = Counter((each.endpoint, each.owner) for each in running)
    for one in waiting:
        if mine[one.endpoint, one.owner] or now_s - one.since_s < YIELD_S:
            continue
        is_full = busy[one.endpoint] >= limits.at(one.endpoint)
        among = [each for each in running if each.owner != one.owner]
        if is_full:
            among = [each for each in among if each.endpoint == one.endpoint]
        elif len(running) < limits.total:
            continue  # it is bounded by what it has elsewhere
        hanging = [each for each in among if each.hangs(limits.stall_s)]
        more = [each for each in among if mine[each.endpoint, each.owner] > 1]
        if hanging:
            return max(hanging, key=lambda each: each.idle_s).id
        if more:
            return min(more, key=lambda each: each.bytes).id
    return None
