"""What holds for a fleet whichever way it is served: by a lead beside the agent, or by files alone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.worlds.node.fleet_way import WAYS, Served, Way, served
from tests.worlds.node.pilot_fleet import job, output, program

from tidemill import clock
from tidemill.node.bundle import read_member
from tidemill.node.fleet import WorkOrder
from tidemill.wire.node import Done, JobDef, Started

SLEEP_S = f"4{os.getpid() % 1000:03}.5"
LONG = f"exec sleep {SLEEP_S}"

pytestmark = pytest.mark.parametrize("way", WAYS)


def sleepers() -> int:
    """Payloads that sleep for ever."""
    found = subprocess.run(
        ["pgrep", "-fc", f"^sleep {SLEEP_S}$"], capture_output=True, check=False, text=True
    )
    return int(found.stdout or 0)


def work(it: Served, *, events: int = 200, event_s: float = 0.05) -> JobDef:
    made = job(1, f"sleep {event_s}", events=events)
    it.give(made, programs=[program(event_s=event_s)])
    return made


def two_pilots(it: Served) -> list[subprocess.Popen[bytes]]:
    """Two that both wait for work: a pilot that is alone for a moment is given seconds of it, all that there is."""
    it.lead()
    pilots = [it.pilot(k) for k in range(2)]
    it.until(lambda: len(it.it.of(Started)) == 2, "both have started")
    return pilots


def test_everything_is_done_once_and_the_pilots_leave(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way) as it:
        pilots = two_pilots(it)
        work(it, events=150)
        it.until(lambda: len(it.it.done(1)) == 150, "all is done")
        it.order(WorkOrder(close=True))
        assert it.left(*pilots) == [0, 0], it.it.tails()
        it.tick()
        assert {record.p.rsplit(".", 2)[0] for record in it.it.of(Done)} == {
            it.allocation(k) for k in range(2)
        }
        numbers = sorted((record.p, record.s) for record in it.it.read())
        assert len(numbers) == len(set(numbers))


def test_outputs_are_kept_before_their_record_is_told(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way) as it:
        made = job(1, "echo {event} > out", events=20)
        it.give(made, programs=[program(outputs=[output("o", "out")])])
        it.lead()
        pilot = it.pilot(0)
        it.until(lambda: len(it.it.done(1)) == 20, "all is done")
        for record in it.it.of(Done):
            [kept] = record.outputs
            assert read_member(it.it.fleet.bundle, kept) == f"{record.first}\n".encode()
        it.order(WorkOrder(close=True))
        assert it.left(pilot) == [0]


def test_the_work_of_a_pilot_that_is_killed_is_done_by_another(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way) as it:
        pilots = two_pilots(it)
        work(it, events=160)
        it.until(lambda: len({record.p for record in it.it.of(Done)}) == 2, "both work")
        pilots[1].kill()
        pilots[1].wait()
        it.end(1)
        it.until(lambda: len(it.events(1)) == 160, "all is done")
        it.order(WorkOrder(close=True))
        assert it.left(pilots[0]) == [0], it.it.tails()


def test_a_yield_waits_for_no_payload_and_gives_everything_back(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way) as it:
        it.give(job(1, LONG, events=8), programs=[program(event_s=1.0)])
        it.lead()
        pilot = it.pilot(0)
        it.until(lambda: sleepers() > 0, "a payload runs")
        it.it.signal(pilot, signal.SIGTERM)
        assert it.left(pilot) == [0], it.it.tails()
        it.until(lambda: bool(it.reasons()), "the records are there")
        assert set(it.reasons().values()) == {"yield"}
        assert len(it.returned()) >= 2
        assert sleepers() == 0


def test_an_agent_that_falls_silent_frees_all_nodes_and_nothing_is_lost(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way, dead_after_s=3.0, drain_s=1.0, idle_s=60.0) as it:
        it.give(job(1, LONG, events=4), job(2, "sleep 0.05", events=240), programs=[program(event_s=0.1)])
        lead = it.lead()
        pilots = [it.pilot(k) for k in range(2)]
        it.until(lambda: sleepers() > 0 and len(it.events(2)) > 5, "they work")
        it.agent_lives = False
        assert it.left(*pilots) == [0, 0], it.it.tails()  # long before their idle_s, and no payload has ended
        assert sleepers() == 0
        if lead is not None:
            it.until(lambda: lead.poll() == 0, "the lead leaves")
        it.agent_lives = True
        it.tick()
        assert set(it.reasons().values()) == {"dead_agent"}
        # whoever comes then does the rest
        it.running.clear()
        it.lead()
        for k in range(2):
            it.end(k)
        it.order(WorkOrder(cancel_jobs=[1]))
        next_pilots = [it.pilot(k, "--incarnation", "2") for k in range(2)]
        it.until(lambda: len(it.events(2)) == 240, "all is done")
        it.order(WorkOrder(close=True))
        assert it.left(*next_pilots) == [0, 0], it.it.tails()


def test_a_file_of_the_staff_empties_the_nodes(tmp_path: Path, way: Way) -> None:
    stop = tmp_path / "no-tidemill"
    with served(tmp_path, way, stop_files=[str(stop)], drain_s=1.0) as it:
        it.give(job(1, LONG, events=8), programs=[program(event_s=0.1)])
        it.lead()
        pilots = [it.pilot(k) for k in range(2)]
        it.until(lambda: sleepers() > 1, "they work")
        stop.write_text("maintenance")
        assert it.left(*pilots) == [0, 0], it.it.tails()
        it.tick()
        assert set(it.reasons().values()) == {"stop"}
        assert sleepers() == 0


def test_an_end_that_is_brought_forward_is_kept_by_finishing_what_fits(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way, queue_s=20.0) as it:
        work(it, events=400, event_s=0.4)
        it.lead()
        pilot = it.pilot(0, "--wall-s", "600")
        it.until(lambda: bool(it.events(1)), "it works")
        end_us = clock.now_us() + 6_000_000
        it.finish(0, end_us)
        assert it.left(pilot, timeout_s=15) == [0], it.it.tails()
        assert clock.now_us() < end_us
        it.tick()
        assert set(it.reasons().values()) == {"walltime"}
        assert not any(it.events(1).touches(first, end) for first, end in it.returned())


def test_an_allocation_that_is_to_leave_gives_its_work_to_the_others(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way) as it:
        pilots = two_pilots(it)
        work(it, events=200)
        it.until(lambda: len({record.p for record in it.it.of(Done)}) == 2, "both work")
        it.order(WorkOrder(leave=[it.allocation(1)]))
        assert it.left(pilots[1]) == [0], it.it.tails()
        it.until(lambda: len(it.it.done(1)) == 200, "all is done")
        it.order(WorkOrder(close=True))
        assert it.left(pilots[0]) == [0]


def test_an_allocation_that_is_started_again_goes_on_at_once(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way, pilot_grace_s=600.0) as it:
        work(it, events=120)
        it.lead()
        pilot = it.pilot(0)
        it.until(lambda: len(it.events(1)) > 5, "it works")
        pilot.kill()
        pilot.wait()
        again = it.pilot(0)
        it.until(lambda: len(it.events(1)) == 120, "all is done")
        assert {record.p[-3:] for record in it.it.of(Done)} == {".i1", ".i2"}
        it.order(WorkOrder(close=True))
        assert it.left(again) == [0], it.it.tails()


def test_a_canceled_job_is_stopped_and_the_others_go_on(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way) as it:
        it.give(job(1, LONG, events=2), job(2, "sleep 0.02", events=50), programs=[program(event_s=0.1)])
        it.lead()
        pilot = it.pilot(0)
        it.until(lambda: sleepers() > 0, "a payload runs")
        it.order(WorkOrder(cancel_jobs=[1]))
        it.until(lambda: len(it.it.done(2)) == 50, "the other job is done")
        assert sleepers() == 0
        it.order(WorkOrder(close=True))
        assert it.left(pilot) == [0], it.it.tails()


def test_a_pilot_that_starts_too_late_leaves_at_once(tmp_path: Path, way: Way) -> None:
    with served(tmp_path, way) as it:
        work(it)
        it.lead()
        start_by_s = clock.now_us() / 1e6 - 10
        assert it.left(it.pilot(0, "--start-by", f"{start_by_s:.0f}")) == [0]
        it.tick()
        assert set(it.reasons().values()) == {"late"}
        assert not it.it.of(Done)
