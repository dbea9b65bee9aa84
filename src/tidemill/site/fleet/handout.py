"""Who gets which events of a fleet that has no lead. Pure: from grants, records and endings to shares.

Knows no files and no clock. An event of a grant is *open* until a record settles it; an open event is *free* or held
by one allocation. Losing track costs a second execution, never an event: what an allocation held when it ended is
free again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from tidemill.model.intervals import IntervalSet
from tidemill.node.journal import allocation_of
from tidemill.site.applications.memory import has_room
from tidemill.wire.node import (
    Done,
    Ended,
    Failed,
    Grant,
    JobDef,
    Program,
    Record,
    Returned,
    Started,
    Withdrawn,
    job_of,
)

INTERVALS = 3.0
"""An allocation gets work for this many top-up intervals. The agent learns about one interval late what it runs (a
flush of the pilot's journal and a read), writes its next share up to one interval later, and the allocation sees that
share up to one interval after that."""

LEAST = 0.1
"""Work for less than this many intervals is not handed out: by the next round it is more."""

GRANTS_PER_FILE = 4000
SKIPPED_MAX = 4096
"""The most grants that one allocation passes over because they do not fit it."""

EVENT_S_MIN = 1e-4


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that could take work, on the node of its pilot. `remaining_s`: until its walltime ends."""

    allocation: str
    cores: int
    memory_mb: int
    devices: dict[str, int] = {}
    remaining_s: float | None = None


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a work file that one allocation gets."""

    allocation: str
    grants: list[Grant]


class _Pace(msgspec.Struct):
    wall_s: float = 0.0
    events: int = 0


class Book:
    """What is open, who holds it, how long its events take. Cost grows with grants and holders, not with events."""

    def __init__(self) -> None:
        self.grants: dict[int, Grant] = {}
        self.programs: dict[int, Program] = {}
        self.jobs: dict[int, JobDef] = {}
        self._free: dict[int, IntervalSet] = {}
        self._held: dict[str, dict[int, IntervalSet]] = {}
        self._holders: dict[int, set[str]] = {}
        self._paces: dict[int, _Pace] = {}
        self._grants_of: Counter[int] = Counter()  #: open ones, by job
        self._jobs_of: Counter[int] = Counter()  #: defined ones, by program

    # ---- what happened ----

    def define(self, programs: Iterable[Program], jobs: Iterable[JobDef]) -> None:
        """Take over definitions; a later one replaces an earlier one. The book forgets a job with its last grant, and a
        program with its last job: later grants bring their definitions with them."""
        self.programs.update((each.program, each) for each in programs)
        for each in jobs:
            self._jobs_of[each.program] += 1
            self._forget_job(each.job)
            self.jobs[each.job] = each

    def add(self, grant: Grant, events: Iterable[tuple[int, int]] | None = None) -> None:
        """A grant of which these events (default: all) are open and free."""
        spans = [(grant.first, grant.first + grant.count)] if events is None else events
        self.grants[grant.grant] = grant
        self._grants_of[grant.job] += 1
        self._free[grant.grant] = IntervalSet(spans)
        self._holders[grant.grant] = set()

    def give(self, allocation: str, piece: Grant) -> None:
        """The allocation holds what is free of these events."""
        free = self._free.get(piece.grant)
        if free is None:
            return
        mine = self._held.setdefault(allocation, {}).setdefault(piece.grant, IntervalSet())
        for first, end in free.within(piece.first, piece.first + piece.count):
            free.remove(first, end)
            mine.add(first, end)
        self._holders[piece.grant].add(allocation)

    def move(self, allocation: str, piece: Grant) -> None:
        """The allocation takes over what is open of these events from their earlier holders."""
        first, end = piece.first, piece.first + piece.count
        for holder in list(self._holders.get(piece.grant, ())):
            self._return(holder, piece.grant, first, end)
        self.give(allocation, piece)

    def on_record(self, record: Record) -> bool:
        """Learn from a record; whether an earlier start of its allocation may have left something to be revoked."""
        if isinstance(record, Done | Failed):
            # records have the number of the job, grants that of its form
            grant = self.grants.get(record.grant)
            if isinstance(record, Done) and record.count and grant is not None:
                pace = self._paces.setdefault(grant.job, _Pace())
                pace.wall_s += (record.wall_us - record.setup_us) / 1e6
                pace.events += record.count
            self._settle(record.grant, record.first, record.first + record.count)
        elif isinstance(record, Returned):
            self._return(allocation_of(record.p), record.grant, record.first, record.first + record.count)
        elif isinstance(record, Ended):
            self.take_back(allocation_of(record.p))
        elif isinstance(record, Started):
            is_again = not record.p.endswith(".i1")
            return is_again and bool(self.take_back(record.allocation))
        return False

    def take_back(self, allocation: str) -> int:
        """What an allocation holds becomes free: it has ended, or was started again. How many events that was."""
        events = 0
        for grant, mine in self._held.pop(allocation, {}).items():
            self._holders[grant].discard(allocation)
            for first, end in mine:
                events += self._free[grant].add(first, end)
        return events

    def cancel(self, jobs: Iterable[int]) -> None:
        """Forget all grants of these jobs."""
        doomed = set(jobs)
        for number in [number for number, grant in self.grants.items() if grant.job in doomed]:
            self._forget(number)
        for job in doomed:
            self._forget_job(job)

    def withdraw(self, parts: Iterable[Withdrawn]) -> None:
        """These events are not open any more, and no allocation holds them."""
        for part in parts:
            self._settle(part.grant, part.first, part.first + part.count)

    def forget_idle(self) -> None:
        """Drop the definitions of jobs without open grants."""
        for job in [each for each in self.jobs if each not in self._grants_of]:
            self._forget_job(job)

    def _settle(self, number: int, first: int, end: int) -> None:
        free = self._free.get(number)
        if free is None:
            return
        free.remove(first, end)
        for allocation in list(self._holders[number]):
            self._drop(allocation, number, first, end)
        if not free and not self._holders[number]:
            self._forget(number)

    def _return(self, allocation: str, number: int, first: int, end: int) -> None:
        mine = self._held.get(allocation, {}).get(number)
        if mine is None:
            return
        for span in mine.within(first, end):
            self._free[number].add(*span)
        self._drop(allocation, number, first, end)

    def _drop(self, allocation: str, number: int, first: int, end: int) -> None:
        held = self._held[allocation]
        held[number].remove(first, end)
        if not held[number]:
            del held[number]
            self._holders[number].discard(allocation)

    def _forget(self, number: int) -> None:
        job = self.grants.pop(number).job
        del self._free[number]
        for allocation in self._holders.pop(number):
            del self._held[allocation][number]
        self._grants_of[job] -= 1
        if not self._grants_of[job]:
            del self._grants_of[job]
            self._paces.pop(job, None)
            self._forget_job(job)

    def _forget_job(self, job: int) -> None:
        """Drop a job's definition, and that of its program if no other job uses it."""
        defined = self.jobs.pop(job, None)
        if defined is None:
            return
        self._jobs_of[defined.program] -= 1
        if not self._jobs_of[defined.program]:
            del self._jobs_of[defined.program]
            self.programs.pop(defined.program, None)

    # ---- what is there ----

    @property
    def free_events(self) -> int:
        """Open events that no allocation holds."""
        return sum(len(free) for free in self._free.values())

    @property
    def open_events(self) -> int:
        """Events that no record has settled."""
        return self.free_events + sum(len(e) for held in self._held.values() for e in held.values())

    @property
    def has_open(self) -> bool:
        """Whether there are such events. Cheaper than to count them: with the first that is found."""
        return any(self._held.values()) or any(self._free.values())

    def holds(self, allocation: str) -> dict[int, IntervalSet]:
        """What an allocation holds, by grant."""
        return self._held.get(allocation, {})

    def at_work(self, cores: Mapping[str, int]) -> set[int]:
        """The jobs that run, as far as records show, on the allocations in `cores`, the number of which their pilots
        found: of what an allocation holds, the oldest fills its cores. A job of which events have ended counts as
        running while an allocation holds more of it. The same rule as the lead's."""
        jobs = set()
        for allocation in self._held.keys() & cores.keys():
            left = cores[allocation]
            for number, events in sorted(self._held[allocation].items()):
                job = self.grants[number].job
                if left > 0 or job in self._paces:
                    jobs.add(job_of(job))
                program = self._program(job)
                left -= len(events) * max(1, program.cores if program else 1)
        return jobs

    def rooms(self) -> dict[int, int]:
        """How many more events of each job with `at_once` may be held now."""
        rooms = {number: each.at_once for number, each in self.jobs.items() if each.at_once is not None}
        if rooms:
            for held in self._held.values():
                for number, events in held.items():
                    job = self.grants[number].job
                    if job in rooms:
                        rooms[job] = max(0, rooms[job] - len(events))
        return rooms

    def idle(self, allocation: str, job: int, cores: int) -> int:
        """Slots for the job on `cores` cores, less the events that the allocation holds of any job."""
        program = self._program(job)
        held = sum(len(events) for events in self._held.get(allocation, {}).values())
        return max(0, cores // max(1, program.cores if program else 1) - held)

    def event_core_s(self, job: int) -> float:
        """Core-seconds of one event of a job: as measured, else as its program says."""
        pace = self._paces.get(job) or self._paces.get(job_of(job))
        program = self._program(job)
        measured = pace is not None and pace.events > 0
        event_s = pace.wall_s / pace.events if measured and pace else program.event_s if program else 0.0
        return max(event_s, EVENT_S_MIN) * (program.cores if program else 1)

    def held_core_s(self, allocation: str) -> float:
        """Core-seconds of work that an allocation holds, as far as its records have come."""
        held = self._held.get(allocation, {})
        return sum(len(events) * self.event_core_s(self.grants[n].job) for n, events in held.items())

    def needs(self, grants: Iterable[Grant]) -> tuple[list[Program], list[JobDef]]:
        """The definitions that a work file with these grants must contain."""
        jobs = {grant.job: self.jobs[grant.job] for grant in grants}
        programs = {job.program: self.programs[job.program] for job in jobs.values()}
        return list(programs.values()), list(jobs.values())

    def _program(self, job: int) -> Program | None:
        defined = self.jobs.get(job)
        return None if defined is None else self.programs.get(defined.program)

    def free(self) -> dict[int, IntervalSet]:
        """Free events by grant, the oldest grant first."""
        return {number: events for number, events in self._free.items() if events}

    def fits(self, job: int, seat: Seat) -> bool:
        """Whether an event of the job could run there in the time that is left."""
        program = self._program(job)
        return (
            program is not None
            and program.cores <= seat.cores
            and has_room(program, seat.memory_mb, spills=True)  # the node knows, and says `no_fit`
            and all(count <= seat.devices.get(kind, 0) for kind, count in program.devices.items())
            and (seat.remaining_s is None or self.event_core_s(job) / program.cores <= seat.remaining_s)
        )


def plan(book: Book, seats: Iterable[Seat], *, top_up_s: float) -> list[Given]:
    """The grants that each allocation needs now to have work for `INTERVALS` top-up intervals or to its end.

    The allocation with the least work comes first. If there is less work than all could take, each gets the same share
    of what it wants. The book is not changed. Cost: allocations times the grants that they pass over or take.
    """
    wanted = [(_wanted(book, seat, top_up_s), seat) for seat in seats]
    hungry = [(core_s, seat) for core_s, seat in wanted if core_s > LEAST * top_up_s * seat.cores]
    hungry.sort(key=lambda each: (-each[0] / each[1].cores, each[1].allocation))
    free = {number: IntervalSet(events) for number, events in book.free().items()}
    free_core_s = sum(len(events) * book.event_core_s(book.grants[n].job) for n, events in free.items())
    total_core_s = sum(core_s for core_s, _ in hungry)
    part = min(1.0, free_core_s / total_core_s) if total_core_s > 0 else 0.0
    rooms = book.rooms()
    given: list[Given] = []
    pieces = 0
    for core_s, seat in hungry:
        if not free or pieces >= GRANTS_PER_FILE:
            break
        grants = _fill(book, seat, core_s * part, free, rooms)
        if grants:
            pieces += len(grants)
            given.append(Given(allocation=seat.allocation, grants=grants))
    return given


def _wanted(book: Book, seat: Seat, top_up_s: float) -> float:
    span_s = INTERVALS * top_up_s
    if seat.remaining_s is not None:
        span_s = min(span_s, seat.remaining_s)
    return span_s * seat.cores - book.held_core_s(seat.allocation)


def _fill(
    book: Book, seat: Seat, core_s: float, free: dict[int, IntervalSet], rooms: dict[int, int]
) -> list[Grant]:
    """Take about `core_s` core-seconds out of `free`, at least an event for each core. Of a job in `rooms`, take at
    most its room, which shrinks accordingly, and no events to queue: these would count and not run."""
    grants: list[Grant] = []
    skipped = 0
    left_s, idle = core_s, seat.cores if not book.holds(seat.allocation) else 0
    for number in list(free):
        grant, events = book.grants[number], free[number]
        if skipped > SKIPPED_MAX or (left_s <= 0 and idle <= 0):
            break
        if not book.fits(grant.job, seat):
            skipped += 1
            continue
        event_core_s = book.event_core_s(grant.job)
        is_limited = grant.job in rooms
        for first, end in list(events):
            wanted = max(int(left_s / event_core_s), idle, 1 if left_s > 0 else 0)
            if is_limited:
                taken = sum(each.count for each in grants)
                slots = book.idle(seat.allocation, grant.job, seat.cores) - taken
                wanted = min(wanted, rooms[grant.job], slots)
            count = min(end - first, wanted)
            if count <= 0:
                break
            events.remove(first, first + count)
            piece = msgspec.structs.replace(grant, first=first, count=count)
            grants.append(msgspec.structs.replace(piece, chunk_max=1) if is_limited else piece)
            left_s -= count * event_core_s
            idle -= count
            if is_limited:
                rooms[grant.job] -= count
        if not events:
            del free[number]
    return grants


def shares_of(given: Iterable[Given]) -> tuple[list[Grant], Mapping[str, list[int]]]:
    """The grants of a work file and, for each allocation, the places of its own among them."""
    grants: list[Grant] = []
    places: dict[str, list[int]] = {}
    for each in given:
        places.setdefault(each.allocation, []).extend(range(len(grants), len(grants) + len(each.grants)))
        grants += each.grants
    return grants, places
