"""Storage that fails or hangs below the bundle and the journals: each event counts once, and none fails for it."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.node.faulty_fs import FaultyFs, faulty_fs
from tests.worlds.node.pilot_fleet import Field, field, grants, job, output, program

from tidemill.node.bundle import read_member
from tidemill.node.fleet import WorkOrder
from tidemill.wire.node import Done, Ended, Failed, Grant, Share

pytestmark = pytest.mark.fault

EVENTS = 60
#: all events take seconds: storage fails while some are left, on a busy machine, too
SCRIPT = 'sleep 0.1; printf "%s" "$TIDEMILL_FIRST" > out'


@contextmanager
def storage(tmp_path: Path, **changes: Any) -> Iterator[tuple[Field, FaultyFs]]:
    """A fleet on a file system that fails on command."""
    quick: dict[str, Any] = {"output_flush_s": 0.2, "idle_s": 3.0, "store_mb": 64}
    with (
        faulty_fs(tmp_path / "backing", tmp_path / "mount") as fs,
        field(fs.path, **quick | changes) as it,
    ):
        yield it, fs


def give(it: Field, *, events: int = EVENTS, outputs: bool = True) -> None:
    """One job's events, each of which leaves a file."""
    work = job(1, SCRIPT, events=events)
    left = [output("hits", "out")] if outputs else []
    programs = [program(outputs=left, event_s=0.05)]
    it.fleet.write_work(programs=programs, jobs=[work], grants=grants(work))


def kept(it: Field) -> dict[int, bytes]:
    """What each done event has left, from the bundles."""
    found: dict[int, bytes] = {}
    for record in it.of(Done):
        for each in record.outputs:
            assert record.first not in found
            found[record.first] = read_member(it.fleet.bundle, each)
    return found


def all_are_kept(it: Field) -> bool:
    return str(it.done(1)) == f"0-{EVENTS - 1}"


def log_of(it: Field, name: str) -> str:
    return (it.fleet.directory.parent / "logs" / f"{name}.log").read_text()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EROFS, errno.ENOSPC])
def test_errors_of_a_bundle_are_waited_out_and_each_event_counts_once(tmp_path: Path, number: int) -> None:
    with storage(tmp_path) as (it, fs):
        give(it)
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: len(it.done(1)) >= 5, "some events are kept")
        fs.fail("*/bundle/*", number)
        it.until(lambda: bool(it.noted("storage")), "the pilot tells of it")
        time.sleep(1.0)
        before = len(it.done(1))
        assert before < EVENTS
        fs.heal()
        it.until(lambda: all_are_kept(it), "all events are kept", timeout_s=60)
        assert kept(it) == {k: b"%d" % k for k in range(EVENTS)}
        assert not it.of(Failed)
        first, *_, last = it.noted("storage")
        assert (first.mode, last.mode) == ("failed", "works")
        assert os.strerror(number) in first.message
        assert "/bundle" in first.message
        assert f"`faulty` at `{fs.path}`" in first.message
        assert it.ended(pilot) == 0, it.tails()


def test_a_next_bundle_that_is_half_made_stops_none_that_follow(tmp_path: Path) -> None:
    with storage(tmp_path, bundle_bytes_max=4096) as (it, fs):
        give(it)
        it.lead()
        fs.fail("*.2.idx", errno.EIO)
        it.pilot("--cores", "2")
        it.until(lambda: bool(it.noted("storage")), "the pilot tells of it")
        it.until(lambda: all_are_kept(it), "all events are kept", timeout_s=60)
        assert kept(it) == {k: b"%d" % k for k in range(EVENTS)}
        assert not it.of(Failed)


def test_a_bundle_that_hangs_holds_up_neither_other_work_nor_the_pilot(tmp_path: Path) -> None:
    with storage(tmp_path) as (it, fs):
        jobs = [job(1, SCRIPT, events=EVENTS, of=1), job(2, "sleep 0.05", events=100, of=2)]
        programs = [program(1, outputs=[output("hits", "out")], event_s=0.05), program(2, event_s=0.05)]
        it.fleet.write_work(programs=programs, jobs=jobs, grants=grants(*jobs))
        it.lead()
        it.pilot("--cores", "2")
        it.until(lambda: len(it.done(1)) >= 3, "some events are kept")
        fs.hang("*/bundle/*")
        before = len(it.done(2))
        it.until(lambda: len(it.done(2)) > before + 20, "work without outputs goes on")
        fs.heal()
        it.until(lambda: all_are_kept(it), "all events are kept", timeout_s=60)
        assert kept(it) == {k: b"%d" % k for k in range(EVENTS)}
        assert not it.of(Failed)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_bundle_directory_that_hangs_for_two_minutes_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with storage(tmp_path, dead_after_s=600.0) as (it, fs):  # no agent shows that it lives
        give(it)
        it.lead()
        it.pilot("--cores", "2")
        it.until(lambda: len(it.done(1)) >= 5, "some events are kept")
        fs.hang("*/bundle/*")
        time.sleep(120)
        fs.heal()
        it.until(lambda: all_are_kept(it), "all events are kept", timeout_s=120)
        assert kept(it) == {k: b"%d" % k for k in range(EVENTS)}
        assert not it.of(Failed)


@pytest.mark.parametrize("number", [errno.EIO, None], ids=["EIO", "hang"])
def test_a_pilot_leaves_a_node_whose_storage_stays_bad_and_its_events_run_elsewhere(
    tmp_path: Path, number: int | None
) -> None:
    with storage(tmp_path, storage_patience_s=1.0) as (it, fs):
        give(it)
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: len(it.done(1)) >= 5, "some events are kept")
        if number is None:
            fs.hang("*/bundle/*")
        else:
            fs.fail("*/bundle/*", number)
        it.until(lambda: bool(it.of(Ended)), "the pilot leaves", timeout_s=60)
        (ended,) = it.of(Ended)
        assert ended.reason == "error"
        assert "outputs cannot be kept" in ended.message
        (failed,) = it.of(Failed)  # of each job one piece says why; it counts for nothing
        assert failed.failure == "node"
        for message in (ended.message, failed.message):
            assert "/bundle" in message
            assert f"`faulty` at `{fs.path}`" in message
            assert (os.strerror(number) if number else "has not answered") in message
        fs.heal()
        assert it.ended(pilot) in (0, 3), it.tails()
        returned = [(failed.first, failed.first + failed.count)]
        again = job(1, SCRIPT, events=EVENTS)
        more = [Grant(grant=2, job=1, first=a, count=b - a, chunk_max=None) for a, b in returned]
        programs = [program(outputs=[output("hits", "out")], event_s=0.05)]
        it.fleet.write_work(programs=programs, jobs=[again], grants=more)
        it.pilot("--cores", "2", allocation="tm-here-e1-2")
        it.until(lambda: all_are_kept(it), "all events are kept", timeout_s=60)
        assert kept(it) == {k: b"%d" % k for k in range(EVENTS)}


def test_a_pilot_leaves_a_node_where_only_a_log_hangs(tmp_path: Path) -> None:
    with storage(tmp_path, storage_patience_s=1.0) as (it, fs):
        work = job(1, "echo a line; sleep 0.05", events=2000)
        it.fleet.write_work(programs=[program(event_s=0.05)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: len(it.done(1)) >= 5, "some events are done")
        fs.hang("*/bundle/*")
        it.until(lambda: bool(it.of(Ended)), "the pilot leaves", timeout_s=60)
        (ended,) = it.of(Ended)
        assert ended.reason == "error"
        assert "has not answered" in ended.message
        assert not it.of(Failed)
        fs.heal()
        assert it.ended(pilot) in (0, 3), it.tails()


def test_a_pilot_that_is_told_to_go_leaves_a_hung_bundle_in_time_and_says_what_it_could_not_keep(
    tmp_path: Path,
) -> None:
    with storage(tmp_path) as (it, fs):
        give(it)
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: len(it.done(1)) >= 5, "some events are kept")
        fs.hang("*/bundle/*")
        time.sleep(0.5)
        it.signal(pilot, signal.SIGTERM)
        # the process itself ends later: the namespace that the test gave it waits for the child in the kernel
        it.until(lambda: "pilot.left" in log_of(it, "pilot-1"), "the pilot leaves", timeout_s=5)
        assert "storage.hangs" in log_of(it, "pilot-1")
        it.until(lambda: bool(it.of(Ended)), "its last record has come")
        fs.heal()
        it.ended(pilot)
        it.pilot("--cores", "2", allocation="tm-here-e1-2")
        it.until(lambda: all_are_kept(it), "all events are kept", timeout_s=60)
        assert kept(it) == {k: b"%d" % k for k in range(EVENTS)}


def test_a_pilot_obeys_its_signals_while_the_file_with_its_leads_address_hangs(tmp_path: Path) -> None:
    with storage(tmp_path) as (it, fs):
        give(it)
        it.lead()
        fs.hang("*/lead.json")
        pilot = it.pilot("--cores", "2")
        it.until(lambda: "pilot.started" in log_of(it, "pilot-1"), "the pilot starts")
        time.sleep(1.0)
        it.signal(pilot, signal.SIGTERM)
        # the process itself ends later: the namespace that the test gave it waits for the child in the kernel
        it.until(lambda: "pilot.left" in log_of(it, "pilot-1"), "the pilot leaves", timeout_s=10)
        fs.heal()
        it.ended(pilot)
        it.until(lambda: bool(it.of(Ended)), "its last record has come")
        (ended,) = it.of(Ended)
        assert ended.reason == "yield"
        it.pilot("--cores", "2", allocation="tm-here-e1-2")
        it.until(lambda: all_are_kept(it), "all events are kept", timeout_s=60)


def test_a_pilot_that_has_to_stop_while_its_lead_is_silent_saves_its_records_itself(tmp_path: Path) -> None:
    with field(tmp_path, output_flush_s=0.2, idle_s=3.0, store_mb=64) as it:
        give(it, outputs=False)
        lead = it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: len(it.done(1)) >= 5, "some events are done")
        it.signal(lead, signal.SIGSTOP)
        time.sleep(0.5)
        it.signal(pilot, signal.SIGTERM)
        it.ended(pilot, 10)
        assert "records.lost" not in log_of(it, "pilot-1")
        (ended,) = it.of(Ended)
        assert (ended.reason, pilot.returncode) == ("yield", 0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, None], ids=["EIO", "ESTALE", "hang"])
def test_trouble_of_a_pilots_own_journal_loses_and_doubles_nothing(
    tmp_path: Path, number: int | None
) -> None:
    with storage(tmp_path, lead="none", top_up_s=0.3, idle_s=1.0) as (it, fs):
        work = job(1, SCRIPT, events=EVENTS)
        order = WorkOrder(shares=[Share(allocation="tm-1", grants=[0])], close=True)
        it.fleet.write_work(
            programs=[program(outputs=[output("hits", "out")], event_s=0.05)],
            jobs=[work],
            grants=grants(work),
            order=order,
        )
        pilot = it.pilot("--cores", "2", "--work-from", "1", allocation="tm-1")
        it.until(lambda: len(it.done(1)) >= 3, "some events are recorded")
        if number is None:
            fs.hang("*/journal/*")
        else:
            fs.fail("*/journal/*", number)
        time.sleep(3.0)
        fs.heal()
        it.until(lambda: all_are_kept(it), "all events are recorded", timeout_s=60)
        assert kept(it) == {k: b"%d" % k for k in range(EVENTS)}
        assert it.ended(pilot) == 0, it.tails()
        if number is not None:
            assert "records.unsafe" in log_of(it, "pilot-0")


def test_a_leaving_pilot_pauses_between_its_tries_to_write_its_journal(tmp_path: Path) -> None:
    with storage(tmp_path, lead="none", top_up_s=0.3, idle_s=1.0) as (it, fs):
        work = job(1, SCRIPT, events=EVENTS)
        order = WorkOrder(shares=[Share(allocation="tm-1", grants=[0])], close=True)
        it.fleet.write_work(programs=[program(event_s=0.05)], jobs=[work], grants=grants(work), order=order)
        pilot = it.pilot("--cores", "2", "--work-from", "1", allocation="tm-1")
        it.until(lambda: len(it.done(1)) >= 3, "some events are recorded")
        fs.fail("*/journal/*", errno.EIO)
        it.signal(pilot, signal.SIGUSR1)
        time.sleep(4.0)
        tries = log_of(it, "pilot-0").count("records.unsafe")
        fs.heal()
        assert it.ended(pilot) == 0, it.tails()
        assert 2 <= tries <= 60
