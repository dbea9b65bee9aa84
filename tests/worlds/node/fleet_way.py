"""A fleet served in one of two ways, behind one handle: a lead beside the agent, no lead at all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.worlds.node.pilot_fleet import Field, field, grants, program

from tidemill import clock
from tidemill.model.intervals import IntervalSet
from tidemill.node.fleet import WorkOrder
from tidemill.site.fleet.handout import Seat
from tidemill.site.fleet.mailbox import Mailbox
from tidemill.wire.node import End, Ended, JobDef, Program, Returned

Way = Literal["beside", "none"]
WAYS: tuple[Way, ...] = ("beside", "none")
CORES = 2


class Served:
    """The agent's side of one fleet, and its pilots. Pilot k is allocation NAME.k."""

    def __init__(self, it: Field, way: Way) -> None:
        self.it = it
        self.way = way
        self.mailbox = Mailbox(it.fleet) if way == "none" else None
        self.agent_lives = True
        self.running: set[str] = set()
        self._taken = 0

    def allocation(self, k: int) -> str:
        return f"tm-here-e1-1.{k}"

    def give(self, *jobs: JobDef, programs: list[Program] | None = None) -> None:
        known = programs or [program()]
        if self.mailbox is None:
            self.it.fleet.write_work(programs=known, jobs=list(jobs), grants=grants(*jobs))
        else:
            self.mailbox.grant(grants(*jobs), known, jobs)

    def order(self, order: WorkOrder) -> None:
        if self.mailbox is None:
            self.it.fleet.write_work(order=order)
        else:
            self.mailbox.order(order)
        self.running.difference_update(order.ended)

    def lead(self) -> subprocess.Popen[bytes] | None:
        return self.it.lead() if self.way == "beside" else None

    def pilot(self, k: int, *options: str) -> subprocess.Popen[bytes]:
        name = self.allocation(k)
        arguments = ["--cores", str(CORES), *options]
        if self.mailbox is not None and name not in self.running:
            arguments += ["--work-from", str(self.mailbox.first_shares([self.seat(name)]))]
        self.running.add(name)
        return self.it.pilot(*arguments, allocation=name, env={"PMI_RANK": "0"})

    def seat(self, name: str) -> Seat:
        return Seat(allocation=name, cores=CORES, memory_mb=1000)

    def tick(self) -> None:
        """What the agent does in a tick."""
        records = self.it.read()
        if not self.agent_lives:
            return
        self.it.fleet.beat(1)
        if self.mailbox is not None:
            self.mailbox.on_records(records[self._taken :])
            self._taken = len(records)
            self.mailbox.step([self.seat(name) for name in sorted(self.running)], clock.monotonic_s())

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
        def ticked() -> bool:
            self.tick()
            return holds()

        self.it.until(ticked, what, timeout_s)

    def left(self, *pilots: subprocess.Popen[bytes], timeout_s: float = 30) -> list[int]:
        """Exit codes of pilots that leave by themselves."""
        self.until(lambda: all(pilot.poll() is not None for pilot in pilots), "the pilots leave", timeout_s)
        return [pilot.returncode for pilot in pilots]

    def end(self, k: int) -> None:
        """The batch system says that the allocation is over."""
        self.order(WorkOrder(ended=[self.allocation(k)]))

    def finish(self, k: int, at_us: int) -> None:
        self.order(WorkOrder(ends=[End(allocation=self.allocation(k), at_us=at_us)]))

    def events(self, number: int) -> IntervalSet:
        """Done events of a job, however often each was run."""
        events = IntervalSet()
        for record in self.it.read():
            if record.__class__.__name__ == "Done" and record.job == number:  # type: ignore[union-attr]
                events.add(record.first, record.first + record.count)  # type: ignore[union-attr]
        return events

    def reasons(self) -> dict[str, str]:
        """Why each pilot left."""
        return {record.p: record.reason for record in self.it.of(Ended) if isinstance(record, Ended)}

    def returned(self) -> IntervalSet:
        events = IntervalSet()
        for record in self.it.of(Returned):
            if isinstance(record, Returned):
                events.add(record.first, record.first + record.count)
        return events


@contextmanager
def served(tmp_path: Path, way: Way, **changes: object) -> Iterator[Served]:
    quick: dict[str, object] = {"top_up_s": 0.5, "output_flush_s": 0.2, "pilot_grace_s": 0.5, "idle_s": 5.0}
    with field(tmp_path, lead=way, **(quick | changes)) as it:
        yield Served(it, way)
