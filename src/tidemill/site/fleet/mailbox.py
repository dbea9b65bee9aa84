"""The work of a fleet without a lead: keeps the book of its grants and writes shares into work files.

Stands where the lead stands otherwise: `grant` and `order` take what `granting` notes, `on_records` what the journals
bring, `step` writes at most one work file in `top_up_s`, sooner only for orders and for allocations about to be
submitted. Who gets what is decided in `handout` (pure).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from tidemill.log import Log
from tidemill.model.intervals import IntervalSet
from tidemill.node.fleet import Fleet, WorkOrder
from tidemill.node.journal import allocation_of, replay
from tidemill.site.fleet.handout import Book, Given, Seat, plan, shares_of
from tidemill.wire.node import End, Ended, Grant, JobDef, Program, Record, Share, Started, Withdrawn

LOOKS_PER_TOP_UP = 10
"""Where no pilot wants anything, checks in a top-up interval."""

_log = Log("mailbox")


class Mailbox:
    """One fleet without a lead."""

    def __init__(self, fleet: Fleet, book: Book | None = None) -> None:
        self.fleet = fleet
        self.book = book or Book()
        self._top_up_s = fleet.manifest.settings.top_up_s
        self._next_s = 0.0
        self._cancels: list[int] = []
        self._withdrawn: list[Withdrawn] = []
        self._ended: list[str] = []
        self._leave: list[str] = []
        self._ends: dict[str, int] = {}
        self._drain = False
        self._close = False
        self._told_over = False
        #: pilots whose first record has come: they read every work file that is written from now on
        self._listening: dict[str, Started] = {}

    def grant(self, grants: Iterable[Grant], programs: Iterable[Program], jobs: Iterable[JobDef]) -> None:
        """Work for this fleet; it goes out with the next shares."""
        self.book.define(programs, jobs)
        for grant in grants:
            self.book.add(grant)

    def order(self, order: WorkOrder) -> None:
        """Orders of the agent; they go out at the next step, those for a pilot once it listens."""
        self.book.cancel(order.cancel_jobs)
        self._cancels += order.cancel_jobs
        self.book.withdraw(order.withdrawn)
        self._withdrawn += order.withdrawn
        self._leave += [name for name in order.leave if name not in self._leave]
        self._ends.update((end.allocation, end.at_us) for end in order.ends)
        self._drain |= order.drain
        self._close |= order.close
        for allocation in order.ended:
            self.book.take_back(allocation)
            self._listening.pop(allocation, None)

    def on_records(self, records: Iterable[Record]) -> None:
        """What pilots have recorded, each record once."""
        for record in records:
            if self.book.on_record(record) and isinstance(record, Started):
                self._ended.append(
                    record.allocation
                )  # the new start may have taken what the old one was given
            if isinstance(record, Started):
                self._listening[record.allocation] = record
            elif isinstance(record, Ended):
                self._listening.pop(allocation_of(record.p), None)

    def first_shares(self, seats: Iterable[Seat]) -> int:
        """Give allocations that are about to be submitted their first work; the file that they start with.

        Raises SiteError: nothing is given then.
        """
        return self._write(plan(self.book, seats, top_up_s=self._top_up_s))

    def step(self, seats: Iterable[Seat], now_s: float, check: Callable[[], None] | None = None) -> bool:
        """Write orders, and when it is time shares of the allocations that run. Whether a file was written.

        `seats` are all that the batch system calls running; those whose pilot has not been heard get nothing more
        than their first share. `check` is called before anything is written. Raises SiteError: it is tried again
        with the next step.
        """
        given: list[Given] = []
        is_due = now_s >= self._next_s
        if is_due and not self._drain:
            self._next_s = now_s + self._top_up_s / LOOKS_PER_TOP_UP
            listening = [self._as_found(seat) for seat in seats if seat.allocation in self._listening]
            given = plan(self.book, listening, top_up_s=self._top_up_s)
        if not given and not self._has_orders():
            return False
        if check is not None:
            check()
        self._write(given)
        if given:
            self._next_s = now_s + self._top_up_s
        return True

    @property
    def has_work(self) -> bool:
        """Whether anything that could be handed out here has not been settled."""
        return self.book.has_open

    def at_work(self) -> set[int]:
        """The jobs that pilots run, as far as their records show."""
        return self.book.at_work({name: found.cores for name, found in self._listening.items()})

    def _as_found(self, seat: Seat) -> Seat:
        """The seat as its pilot found it."""
        found = self._listening[seat.allocation]
        return msgspec.structs.replace(seat, cores=found.cores, memory_mb=found.memory_mb)

    def _has_orders(self) -> bool:
        over = (self._drain or self._close) and not self._told_over
        told = any(name in self._listening for name in (*self._ends, *self._leave))
        return bool(self._cancels or self._withdrawn or self._ended or over or told)

    def _write(self, given: list[Given]) -> int:
        grants, places = shares_of(given)
        programs, jobs = self.book.needs(grants)
        ends = {name: at_us for name, at_us in self._ends.items() if name in self._listening}
        leave = [name for name in self._leave if name in self._listening]
        order = WorkOrder(
            cancel_jobs=self._cancels,
            withdrawn=self._withdrawn,
            shares=[Share(allocation=name, grants=mine) for name, mine in places.items()],
            ended=self._ended,
            ends=[End(allocation=name, at_us=at_us) for name, at_us in ends.items()],
            leave=leave,
            drain=self._drain,  # repeated: a pilot that starts later reads the last file only
            close=self._close,
        )
        number = self.fleet.write_work(programs=programs, jobs=jobs, grants=grants, order=order)
        for each in given:
            for piece in each.grants:
                self.book.give(each.allocation, piece)
        self._cancels, self._withdrawn, self._ended = [], [], []
        self._leave = [name for name in self._leave if name not in leave]
        self._ends = {name: at_us for name, at_us in self._ends.items() if name not in ends}
        self._told_over = self._drain or self._close
        return number


def adopt(
    fleet: Fleet, open_events: Iterable[tuple[Grant, IntervalSet]], offsets: Mapping[str, int]
) -> Mailbox:
    """The mailbox of a fleet of an earlier agent: what is open comes from the site's log, who holds it from the work
    files, what was returned from the journals up to these `offsets`, each read once; `on_records` takes later ones.

    What no work file defines is left out: the site takes it back when the fleet is over. Raises SiteError,
    ProtocolError. Cost: all work files and journals of the fleet.
    """
    mailbox = Mailbox(fleet)
    book = mailbox.book
    works = [fleet.read_work(number) for number in range(1, fleet.next_number)]
    for work in works:
        book.define(work.programs, work.jobs)
    chunks = {grant.grant: grant.chunk_max for work in works for grant in work.grants}
    for grant, events in open_events:
        if grant.job in book.jobs:
            chunk_max = chunks.get(grant.grant)
            book.add(msgspec.structs.replace(grant, chunk_max=chunk_max), list(events))
    for work in works:
        for allocation in work.ended:
            book.take_back(allocation)
        for share in work.shares:
            for place in share.grants:
                book.move(share.allocation, work.grants[place])
        mailbox._drain |= work.drain
        mailbox._close |= work.close
    book.forget_idle()
    for records in replay(fleet.journal, offsets):
        mailbox.on_records(records)
    mailbox._told_over = mailbox._drain or mailbox._close
    _log.info("mailbox.adopted", fleet=fleet.directory.name, open_events=book.open_events)
    return mailbox
