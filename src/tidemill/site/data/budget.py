"""Which jobs may bring their inputs to the stage, and what that takes. Pure: knows no files, threads or clocks.

A job asks for the bytes and files of all its missing inputs at once, and gets room for all of them or for none: two
jobs that each hold a part of what they need would wait for each other for ever. What does not fit waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

OVERTAKEN_S = 600.0
"""A need that does not fit is overtaken by later ones for this time, then room is held for it for this time, and so on
in turns; each time room is held twice as long as before. So neither large nor small inputs starve, whatever jobs that
hold the stage take to end."""

UNASKED_S = 120.0
"""A need that its job has not asked for again in this time holds no room."""

FULL_FIRST_S, FULL_MAX_S = 5.0, 300.0
"""Pauses after the file system refused a write although there seemed to be room, such as by a quota."""


class StageRoom(NamedTuple):
    """Space in the stage."""

    bytes: int
    files: int

    def holds(self, other: StageRoom) -> bool:
        """Whether the other one fits."""
        return other.bytes <= self.bytes and other.files <= self.files

    def less(self, other: StageRoom) -> StageRoom:
        """What is left beside the other one."""
        return StageRoom(self.bytes - other.bytes, self.files - other.files)


NO_ROOM = StageRoom(0, 0)


class SpaceNeed(NamedTuple):
    """What a job waits for. `since_s`: when it asked first."""

    job: int
    room: StageRoom
    since_s: float


class Reserved(msgspec.Struct):
    """Room for a content that is being brought. `is_written`: its bytes are on disk."""

    room: StageRoom
    jobs: set[int]
    is_written: bool = False


def is_held_for(waited_s: float) -> bool:
    """Whether a need that has waited this long is overtaken by no later one now. Pure."""
    held_s = OVERTAKEN_S
    while waited_s >= OVERTAKEN_S + held_s:
        waited_s -= OVERTAKEN_S + held_s
        held_s *= 2
    return waited_s >= OVERTAKEN_S


def admit(needs: Iterable[SpaceNeed], free: StageRoom, *, now_s: float) -> list[int]:
    """The jobs that get room now, in the order in which they asked. Pure; O(n log n)."""
    admitted: list[int] = []
    for need in sorted(needs, key=lambda each: (each.since_s, each.job)):
        if need.room == NO_ROOM or free.holds(need.room):
            free = free.less(need.room)
            admitted.append(need.job)
        elif is_held_for(now_s - need.since_s):
            # those that need nothing more are let through: what they use is held by others anyway
            free = StageRoom(-1, -1)
    return admitted


class StageBudget:
    """What is reserved, and who waits. Not thread-safe by itself: `staging` holds its lock."""

    def __init__(self, limit: StageRoom) -> None:
        self.limit = limit
        self.reserved: dict[str, Reserved] = {}  #: by content
        self.waiting: dict[int, SpaceNeed] = {}
        self._first_s: dict[int, float] = {}  #: when a job asked first, until it has all
        self._asked_s: dict[int, float] = {}
        self._full_until_s = 0.0
        self._full_pause_s = 0.0

    @property
    def taken(self) -> StageRoom:
        """Reserved for what is being brought."""
        rooms = [each.room for each in self.reserved.values()]
        return StageRoom(sum(room.bytes for room in rooms), sum(room.files for room in rooms))

    @property
    def unwritten(self) -> StageRoom:
        """Reserved for what is not on disk yet."""
        rooms = [each.room for each in self.reserved.values() if not each.is_written]
        return StageRoom(sum(room.bytes for room in rooms), sum(room.files for room in rooms))

    @property
    def waited_for(self) -> StageRoom:
        """What all that wait need."""
        rooms = [each.room for each in self.waiting.values()]
        return StageRoom(sum(room.bytes for room in rooms), sum(room.files for room in rooms))

    def asks(self, job: int, *, now_s: float) -> None:
        """The job still wants what it waits for."""
        if job in self.waiting:
            self._asked_s[job] = now_s

    def admitted(self, free: StageRoom, *, now_s: float) -> list[int]:
        """The jobs of those that wait that may try again. After a write failed for lack of space it is one at a time
        until another one succeeds."""
        if now_s < self._full_until_s:
            return []
        needs = [
            each
            for job, each in self.waiting.items()
            if now_s - self._asked_s.get(job, each.since_s) <= UNASKED_S
        ]
        jobs = admit(needs, free, now_s=now_s)
        return jobs[:1] if self._full_pause_s else jobs

    def reserve(
        self, job: int, contents: Mapping[str, StageRoom], *, more: StageRoom, free: StageRoom, now_s: float
    ) -> bool:
        """Reserve room for these contents, those that are reserved already only once, or have the job wait. `more`: for
        copies that are there, and that nothing else keeps from being deleted. `free` includes their room."""
        new = [room for key, room in contents.items() if key not in self.reserved]
        need = StageRoom(
            more.bytes + sum(each.bytes for each in new), more.files + sum(each.files for each in new)
        )
        self.waiting[job] = SpaceNeed(job, need, self._first_s.setdefault(job, now_s))
        self._asked_s[job] = now_s
        has_room = free.holds(need) and job in self.admitted(free, now_s=now_s)
        if need != NO_ROOM and not has_room:
            return False
        del self.waiting[job], self._asked_s[job]
        for key, room in contents.items():
            known = self.reserved.get(key)
            if known is None:
                self.reserved[key] = Reserved(room, {job})
            else:
                known.jobs.add(job)
        return True

    def put_back(self, job: int, *, now_s: float) -> list[str]:
        """What was reserved for the job could not be written: it waits again, and so do all others that want any of it.
        These contents."""
        keys = [key for key, each in self.reserved.items() if job in each.jobs]
        rooms = [self.reserved.pop(key).room for key in keys]
        need = StageRoom(max(1, sum(each.bytes for each in rooms)), len(rooms))
        self.waiting[job] = SpaceNeed(job, need, self._first_s.setdefault(job, now_s))
        self._asked_s[job] = now_s
        return keys

    def keep(self, job: int, key: str, room: StageRoom) -> None:
        """Count what is on disk already."""
        self.reserved[key] = Reserved(room, {job}, is_written=True)

    def withdraw(self, job: int) -> None:
        """The job waits for nothing any more: it has all, or wants nothing."""
        self.waiting.pop(job, None)
        self._first_s.pop(job, None)
        self._asked_s.pop(job, None)

    def release(self, job: int, *, but: str = "") -> list[str]:
        """Drop what is reserved for this job alone, except for the content `but`; those that no job wants any more."""
        gone: list[str] = []
        for key, each in list(self.reserved.items()):
            if key == but:
                continue
            each.jobs.discard(job)
            if not each.jobs:
                del self.reserved[key]
                gone.append(key)
        return gone

    def found_full(self, *, now_s: float) -> float:
        """The file system refused a write: nothing begins for a while; how long, twice as long each time."""
        if now_s >= self._full_until_s:
            self._full_pause_s = min(max(2 * self._full_pause_s, FULL_FIRST_S), FULL_MAX_S)
            self._full_until_s = now_s + self._full_pause_s
        return self._full_until_s - now_s

    def found_room(self) -> None:
        """Something was written whole."""
        self._full_pause_s = 0.0
