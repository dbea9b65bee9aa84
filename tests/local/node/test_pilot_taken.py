"""What a batch system does that takes an allocation away: TERM to every process of it, payloads among them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.worlds.home.processes import tree
from tests.worlds.node.pilot_fleet import field, grants, job, program

from tidemill.wire.node import Done, Failed, Returned

WALL_S = 0.4
EVENTS = 48


def take_away(pilot: int, order: str) -> None:
    """TERM to the pilot, its slots and their payloads, one after the other."""
    listed = tree(tree(pilot)[1])  # not unshare, which stands for the batch system
    with uninterrupted():
        for pid in listed if order == "parents" else reversed(listed):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ahead of what the signals wake, where we may: else a busy machine could run all of it between two signals, which
    a batch system sends within a moment."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


@pytest.mark.parametrize("order", ["parents", "children"])
@pytest.mark.parametrize("isolation", ["preferred", "off"])
def test_no_event_fails_or_is_done_by_the_term_that_takes_its_allocation(
    tmp_path: Path, isolation: str, order: str
) -> None:
    # a shell that ends with 0 before its slot has TERM cannot be told from one that is done
    fine = 0 if order == "parents" else 4
    script = (
        f"case $(({{event}} % 3)) in 0) trap 'exit 3' TERM;; 1) trap 'exit {fine}' TERM;; esac; "
        f"sleep {WALL_S} & wait $!"  # `wait` alone ends with 0 when the sleep is killed
    )
    with field(tmp_path, isolation=isolation, output_flush_s=0.1, idle_s=3.0) as it:
        work = job(1, script, events=EVENTS)
        it.fleet.write_work(programs=[program(event_s=WALL_S)], jobs=[work], grants=grants(work))
        it.lead()
        for number in range(2):
            before = len(it.of(Done))
            pilot = it.pilot("--cores", "4", allocation=f"tm-here-e1-{number + 1}")
            it.until(lambda before=before: len(it.of(Done)) > before + 3, "events are done")  # type: ignore[misc]
            take_away(pilot.pid, order)
            assert it.ended(pilot) == 0, it.tails()
            assert it.of(Failed) == [], it.tails()
        assert {each.reason for each in it.of(Returned)} == {"yield"}
        it.pilot("--cores", "6", allocation="tm-here-e1-3")
        it.until(lambda: len(it.done(1)) == EVENTS, "all is done", 60)
        assert it.of(Failed) == [], it.tails()
        short = [each for each in it.of(Done) if each.wall_us < WALL_S * 1e6 * each.payloads]
        assert short == [], "done, and had not ended by itself"


def test_a_payload_that_ends_itself_by_term_fails(tmp_path: Path) -> None:
    with field(tmp_path, idle_s=1.0) as it:
        work = job(1, "kill -TERM $$; sleep 10", events=2)
        it.fleet.write_work(programs=[program(event_s=WALL_S)], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "2")) == 0, it.tails()
        assert [(each.failure, each.signal) for each in it.of(Failed)] == [("payload", signal.SIGTERM)] * 2
        assert it.of(Returned) == []


def test_a_payload_without_namespaces_cannot_end_its_pilot(tmp_path: Path) -> None:
    with field(tmp_path, isolation="off", idle_s=1.0) as it:
        slot = "read -r _ _ _ pilot _ < /proc/$PPID/stat"
        work = job(1, f"{slot}; kill -TERM $pilot; kill -TERM $PPID; sleep 0.1; exit 3", events=3)
        it.fleet.write_work(programs=[program(event_s=WALL_S)], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "2")) == 0, it.tails()
        assert [each.exit_status for each in it.of(Failed)] == [3] * 3
        assert it.of(Returned) == []
        assert "signal.ignored" in it.tails()
