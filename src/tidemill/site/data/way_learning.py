"""What a site learns from its payloads about the ways of far files: how much is read of them, and how long it takes.

A payload that is done says how long it ran and computed. The rest of its time is taken as waiting for what it read: an
upper bound, the same for all ways of one application. Traced payloads say how many bytes came over the network: an
upper bound of what was read of the inputs. A payload counts only where all its far inputs came by one way.

Works in the agent's thread and its helpers'. See `cache.routing.learned` for what is made of it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tidemill import clock
from tidemill.model.job import Input, JobSpec
from tidemill.routing.learned import SAMPLES_MIN, way_key
from tidemill.routing.links import RouteLinks
from tidemill.routing.routes import FarRoute, RouteWay
from tidemill.wire.node import Done, IndexEntry, Record

TAKEN_MAX = 20_000
"""Events of which the ways are known; of shared inputs, jobs."""
SHARED = -1
EVENTS_MAX = 100
"""A payload of more events than this teaches nothing about files of single events."""


class TakenWay(NamedTuple):
    """The way that an input came by. `key`: None = payloads read a copy."""

    app: str
    key: str | None
    size_bytes: int | None
    since_us: int
    owner: str = ""


class WayLearning:
    """The ways of inputs, and what their payloads show. Thread-safe."""

    def __init__(self, links: RouteLinks) -> None:
        self._links = links
        self._lock = threading.Lock()
        self._chosen_ways: dict[
            tuple[int, int], dict[str, TakenWay]
        ] = {}  #: (job, event or SHARED) -> by input
        self._counted: dict[tuple[int, str], int] = {}  #: (job, way) -> payloads that counted

    def note(
        self,
        job: int,
        one: Input,
        event: int | None,
        *,
        app: tuple[str, str],
        of: tuple[FarRoute, int | None],
    ) -> None:
        """An input of a job, or of one of its events, comes by this way; `app`: under which name its payloads teach,
        and whose they are; `of`: the way and the file's size."""
        name, owner = app
        route, size_bytes = of
        if not name or not one.is_opened:
            return
        key = None if route.way is RouteWay.STAGE else way_key(route.via, route.place)
        entry = (job, SHARED if event is None else event)
        with self._lock:
            ways = self._chosen_ways.pop(entry, {})
            while len(self._chosen_ways) >= TAKEN_MAX:
                del self._chosen_ways[next(iter(self._chosen_ways))]
            self._chosen_ways[entry] = ways
            before = ways.get(one.name)
            if before is None or before.key != key:
                ways[one.name] = TakenWay(name, key, size_bytes, clock.now_us(), owner)

    def on_records(self, records: Iterable[Record]) -> set[int]:
        """Learn from payloads that are done; jobs of which a way is known just now: their next payloads may be better
        off by another one."""
        changed = set()
        for record in records:
            if type(record) is not Done or record.count <= 0:
                continue
            waited_us = record.wall_us - record.setup_us - record.user_us - record.system_us
            if waited_us <= 0:
                continue  # several cores computed: how long they waited is unknown
            ways = self._ways(record.job, record.first, record.count)
            keys = {each.key for each in ways}
            key = next(iter(keys), None)
            if len(keys) != 1 or key is None or record.started_us < max(each.since_us for each in ways):
                continue
            seconds = waited_us / 1e6 / max(record.count, len(ways))
            self._links.note_waited(
                ways[0].app, _mean_size(ways), key=key, seconds=seconds, owner=ways[0].owner
            )
            if self._count(record.job, key) == SAMPLES_MIN:
                changed.add(record.job)
        return changed

    def traced(self, entry: IndexEntry, read_bytes: int) -> None:
        """Learn that a traced payload has read `read_bytes` from the network."""
        ways = self._ways(entry.job, entry.first, entry.count)
        if ways and all(each.key is not None for each in ways):
            self._links.note_read(
                ways[0].app, _mean_size(ways), read_bytes=read_bytes / len(ways), owner=ways[0].owner
            )

    def _ways(self, job: int, first: int, count: int) -> list[TakenWay]:
        """The ways of all inputs that a payload of these events opened; empty = not known."""
        with self._lock:
            found = list(self._chosen_ways.get((job, SHARED), {}).values())
            events = [
                self._chosen_ways.get((job, event)) for event in range(first, first + min(count, EVENTS_MAX))
            ]
        known = [each for each in events if each]
        if known and (len(known) < len(events) or count > EVENTS_MAX):
            return []
        return [*found, *(each for ways in known for each in ways.values())]

    def _count(self, job: int, key: str) -> int:
        with self._lock:
            count = self._counted.pop((job, key), 0) + 1
            while len(self._counted) >= TAKEN_MAX:
                del self._counted[next(iter(self._counted))]
            self._counted[job, key] = count
            return count


def learner(spec: JobSpec) -> str:
    """Under which name a job's payloads teach: the application, or the same command."""
    if spec.app is not None:
        return spec.app
    return f"command {hashlib.sha256(msgspec.json.encode(spec.command)).hexdigest()[:16]}"


def _mean_size(ways: list[TakenWay]) -> int | None:
    sizes = [each.size_bytes for each in ways if each.size_bytes is not None]
    return sum(sizes) // len(sizes) if sizes and len(sizes) == len(ways) else None
