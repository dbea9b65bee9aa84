"""Which jobs may bring their inputs to the stage, and what that takes. Pure: knows no files, threads or clocks.

A job asks for the bytes and files of all its missing inputs at once, and gets room for all of them or for none: two
jobs that each hold a part of what they need would wait for each other for ever. What does not fit waits. Where several
owners are there, those who hold less than their part come first, none takes all, and one's large needs hold no room
against others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

OVERTAKEN_S = 600.0
"""Later needs overtake those that do not fit for this time; then room is held for the oldest of these, and so on in
turns, each twice as long as the one before. So neither large nor small inputs starve, however long the jobs run that
hold the stage."""

OVERTAKEN_MAX_S = 21600.0
"""The longest turn of those that overtake: room is held for twice that, longer than most allocations live."""

HELD_SHARE = 2
"""Room is held for this multiple of a turn of overtaking: at most two thirds of the time, for any number of needs."""

RECOUNT_S, RECOUNT_MAX_S = 60.0, 3600.0
"""A job that waits works out its need again after this time, twice as long each time: others may have brought what it
needs meanwhile, or may hold it no more."""

OWN_SHARE = 0.75
"""The part of the stage that one owner has at most while others are there, or lately were; a single job may need more.
So another one's first inputs find room although nothing ends."""

OWNERS_S = 86400.0
"""An owner who asked for room in this time counts as there."""

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

    def plus(self, other: StageRoom) -> StageRoom:
        """The sum of both rooms."""
        return StageRoom(self.bytes + other.bytes, self.files + other.files)

    def at_most(self, other: StageRoom) -> StageRoom:
        """The smaller of both rooms, in bytes and in files."""
        return StageRoom(min(self.bytes, other.bytes), min(self.files, other.files))


NO_ROOM = StageRoom(0, 0)


class StageSpace(NamedTuple):
    """How much there is. `capacity`: if no job held anything; what needs more waits for the disk, not for jobs."""

    free: StageRoom
    capacity: StageRoom


class SpaceNeed(NamedTuple):
    """What a job waits for. `since_s`: when it asked first."""

    job: int
    room: StageRoom
    since_s: float
    owner: str = ""


class OwnerShares(NamedTuple):
    """How the stage stands between owners. `held`: by each of them; `owners`: how many are there; `of_jobs`: held by
    each job that holds something."""

    held: Mapping[str, StageRoom] = {}
    owners: int = 1
    of_jobs: Mapping[int, StageRoom] = {}

    def has(self, owner: str) -> StageRoom:
        """The room that an owner holds."""
        return self.held.get(owner, NO_ROOM)

    def is_below(self, owner: str, limit: StageRoom) -> bool:
        """Whether an owner holds no more than its equal part."""
        return _part(limit, 1 / max(1, self.owners)).holds(self.has(owner))

    def may_have(self, need: SpaceNeed, limit: StageRoom) -> bool:
        """Whether that leaves something for others. A job whose owner holds nothing else may need more: it asks twice,
        for what all its events read and for what each does."""
        has = self.has(need.owner)
        is_all = self.of_jobs.get(need.job, NO_ROOM).holds(has)
        return self.owners < 2 or is_all or _part(limit, OWN_SHARE).holds(has.plus(need.room))

    def with_more(self, need: SpaceNeed) -> OwnerShares:
        """With a need that is met."""
        return self._replace(held={**self.held, need.owner: self.has(need.owner).plus(need.room)})


ALONE = OwnerShares()


class OwnerRooms:
    """Which contents jobs of each owner hold: a content counts once for an owner. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}  #: of the jobs that asked
        self._asked_s: dict[str, float] = {}
        self._of_job: dict[int, dict[str, int | None]] = {}  #: contents, with the event of an `each` input
        self._jobs: dict[str, Counter[str]] = {}  #: by owner and content
        self._held: dict[str, StageRoom] = {}
        self._of_jobs: dict[int, StageRoom] = {}
        self._rooms: dict[str, StageRoom] = {}

    def owner_of(self, job: int) -> str:
        """Whose job it is; empty = not known."""
        return self._owners.get(job, "")

    def asks(self, job: int, owner: str, *, now_s: float) -> None:
        """A job of this owner's wants room."""
        self._owners[job] = owner
        self._asked_s[owner] = now_s

    def hold(self, job: int, contents: Mapping[str, tuple[StageRoom, int | None]]) -> None:
        """The job has these contents, each with its room and event, besides those that it had."""
        mine, owner = self._of_job.setdefault(job, {}), self.owner_of(job)
        jobs = self._jobs.setdefault(owner, Counter())
        for key, (wanted, event) in contents.items():
            if key not in mine:
                room = self._rooms.setdefault(key, wanted)  # the same for all, so that it adds up
                self._of_jobs[job] = self._of_jobs.get(job, NO_ROOM).plus(room)
                jobs[key] += 1
                if jobs[key] == 1:
                    self._held[owner] = self._held.get(owner, NO_ROOM).plus(room)
            if mine.get(key, 0) is not None:
                mine[key] = event

    def knows(self, job: int) -> bool:
        """Whether anything of it was counted since the agent's start."""
        return job in self._of_job

    def came(self, job: int, key: str, file: Mapping[str, tuple[StageRoom, int | None]]) -> None:
        """A content of the job's is there now: it counts as this file, by which it is known after a restart, too."""
        if key in self._of_job.get(job, ()):
            self.hold(job, file)
            self._drop(job, [key])

    def drop_events(self, job: int, is_needed: Callable[[int], bool]) -> None:
        """The files of events that are over are gone."""
        mine = self._of_job.get(job, {})
        self._drop(job, [key for key, event in mine.items() if event is not None and not is_needed(event)])

    def forget(self, job: int) -> None:
        """The job holds nothing any more."""
        self._drop(job, list(self._of_job.get(job, ())))
        self._of_job.pop(job, None)
        self._owners.pop(job, None)

    def shares(self, *, now_s: float) -> OwnerShares:
        """How owners stand now."""
        self._asked_s = {each: at_s for each, at_s in self._asked_s.items() if now_s - at_s < OWNERS_S}
        owners = len(self._asked_s.keys() | self._held.keys())
        return OwnerShares(dict(self._held), owners, self._of_jobs)

    def _drop(self, job: int, keys: list[str]) -> None:
        mine, owner = self._of_job.get(job, {}), self.owner_of(job)
        jobs = self._jobs.get(owner, Counter())
        for key in keys:
            del mine[key]
            self._of_jobs[job] = self._of_jobs[job].less(self._rooms[key])
            jobs[key] -= 1
            if not jobs[key]:
                del jobs[key]
                left = self._held[owner].less(self._rooms[key])
                self._held[owner] = left
                if not any(key in each for each in self._jobs.values()):
                    del self._rooms[key]
        if not mine:
            self._of_jobs.pop(job, None)
        if not jobs:
            self._jobs.pop(owner, None)
            self._held.pop(owner, None)


class Reserved(msgspec.Struct):
    """Room for a content that is being brought. `is_written`: its bytes are on disk."""

    room: StageRoom
    jobs: set[int]
    is_written: bool = False


class _Recount(NamedTuple):
    """When a job that waits works out its need again, and how long after the time before."""

    at_s: float
    pause_s: float


def is_held_for(scarce_s: float) -> bool:
    """Whether room is held for the oldest need now, where some have not fit for this long. Pure."""
    overtaken_s = OVERTAKEN_S
    while scarce_s >= (1 + HELD_SHARE) * overtaken_s:
        scarce_s -= (1 + HELD_SHARE) * overtaken_s
        overtaken_s = min(2 * overtaken_s, OVERTAKEN_MAX_S)
    return scarce_s >= overtaken_s


def admit(
    needs: Iterable[SpaceNeed], space: StageSpace, *, now_s: float, is_held: bool, shares: OwnerShares = ALONE
) -> list[int]:
    """The jobs that get room now: of owners below their part first, then in the order in which they asked. `is_held`:
    later ones do not overtake the oldest that does not fit, unless it fits nowhere; a need above an owner's part holds
    back only later ones of this owner. Pure; O(n log n)."""
    admitted: list[int] = []
    free, limit = space.free, space.capacity
    needs = list(needs)
    below = {owner: shares.is_below(owner, limit) for owner in {each.owner for each in needs}}
    part = _part(limit, 1 / max(1, shares.owners))
    held_back: set[str] = set()
    for need in sorted(needs, key=lambda each: (not below[each.owner], each.since_s, each.job)):
        if need.room == NO_ROOM:
            admitted.append(need.job)
        elif need.owner in held_back or not shares.may_have(need, limit):
            continue
        elif free.holds(need.room):
            free, shares = free.less(need.room), shares.with_more(need)
            admitted.append(need.job)
        elif is_held and now_s - need.since_s >= OVERTAKEN_S and space.capacity.holds(need.room):
            # those that need nothing more are let through: what they use is held by others anyway
            if part.holds(shares.has(need.owner).plus(need.room)):
                free = StageRoom(-1, -1)
            held_back.add(need.owner)
    return admitted


def _part(room: StageRoom, share: float) -> StageRoom:
    return StageRoom(int(room.bytes * share), int(room.files * share))


class StageBudget:
    """What is reserved, and who waits. Not thread-safe by itself: `staging` holds its lock."""

    def __init__(self, limit: StageRoom) -> None:
        self.limit = limit
        self.rooms = OwnerRooms()
        self.reserved: dict[str, Reserved] = {}  #: by content
        self.waiting: dict[int, SpaceNeed] = {}
        self._first_s: dict[int, float] = {}  #: when a job asked first, until it has all
        self._asked_s: dict[int, float] = {}
        self._recounts: dict[int, _Recount] = {}
        self._scarce_since_s: float | None = None  #: since when something that could fit does not
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

    def admitted(self, space: StageSpace, *, now_s: float) -> list[int]:
        """The jobs of those that wait that may try again. After a write failed for lack of space it is one at a time
        until another one succeeds."""
        if now_s < self._full_until_s:
            return []
        needs = [
            each
            for job, each in self.waiting.items()
            if now_s - self._asked_s.get(job, each.since_s) <= UNASKED_S
        ]
        is_held, shares = self._is_held(needs, space, now_s), self.rooms.shares(now_s=now_s)
        jobs = admit(needs, space, now_s=now_s, is_held=is_held, shares=shares)
        return jobs[:1] if self._full_pause_s else jobs

    def recounts(self, *, now_s: float) -> list[int]:
        """The jobs of those that wait that work out their needs again now, whether these fit or not."""
        if now_s < self._full_until_s or self._full_pause_s:
            return []
        due = [job for job, each in self._recounts.items() if each.at_s <= now_s and job in self.waiting]
        for job in due:
            pause_s = min(2 * self._recounts[job].pause_s, RECOUNT_MAX_S)
            self._recounts[job] = _Recount(now_s + pause_s, pause_s)
        return due

    def late(self, wait_max_s: float, *, now_s: float) -> list[int]:
        """The jobs that have waited for longer than this."""
        return [job for job, each in self.waiting.items() if now_s - each.since_s >= wait_max_s]

    def reserve(
        self, job: int, contents: Mapping[str, StageRoom], *, more: StageRoom, space: StageSpace, now_s: float
    ) -> bool:
        """Reserve room for these contents, those that are reserved already only once, or have the job wait. `more`: for
        copies that are there, and that nothing else keeps from being deleted. `space` includes their room."""
        need = more
        for key, room in contents.items():
            need = need if key in self.reserved else need.plus(room)
        self._wait(job, need, now_s)
        has_room = space.free.holds(need) and job in self.admitted(space, now_s=now_s)
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
        self._wait(job, StageRoom(max(1, sum(each.bytes for each in rooms)), len(rooms)), now_s)
        return keys

    def give_up(self, job: int, held: StageRoom) -> list[str]:
        """The job holds nothing while it waits: its need grows by what it alone held, reserved things included. The
        contents that no job wants any more."""
        need = self.waiting.get(job)
        if need is not None:
            room = need.room.plus(held)
            for each in self.reserved.values():
                room = room.plus(each.room) if each.jobs == {job} else room
            self.waiting[job] = need._replace(room=room.at_most(self.limit))
        return self.release(job)

    def count_existing(self, job: int, key: str, room: StageRoom) -> None:
        """Count what is on disk already."""
        self.reserved[key] = Reserved(room, {job}, is_written=True)

    def withdraw(self, job: int) -> None:
        """The job waits for nothing any more: it has all, or wants nothing."""
        self.waiting.pop(job, None)
        self._first_s.pop(job, None)
        self._asked_s.pop(job, None)
        self._recounts.pop(job, None)

    def release(self, *jobs: int, but: str = "") -> list[str]:
        """Drop what is reserved for these jobs alone, except for the content `but`; what no job wants any more."""
        gone: list[str] = []
        for key, each in list(self.reserved.items()):
            if key == but:
                continue
            each.jobs.difference_update(jobs)
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

    def _wait(self, job: int, need: StageRoom, now_s: float) -> None:
        self.waiting[job] = SpaceNeed(
            job, need, self._first_s.setdefault(job, now_s), self.rooms.owner_of(job)
        )
        self._asked_s[job] = now_s
        self._recounts.setdefault(job, _Recount(now_s + RECOUNT_S, RECOUNT_S))

    def _is_held(self, needs: Iterable[SpaceNeed], space: StageSpace, now_s: float) -> bool:
        """Whether it is the turn of those that do not fit."""
        unmet = [
            each.since_s
            for each in needs
            if space.capacity.holds(each.room) and not space.free.holds(each.room)
        ]
        if not unmet:
            self._scarce_since_s = None
            return False
        if self._scarce_since_s is None:
            self._scarce_since_s = min(unmet)
        return is_held_for(now_s - self._scarce_since_s)
