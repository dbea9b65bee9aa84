"""How a pilot starts and leaves: yield, walltime, a lead that dies or never comes back, a full disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.worlds.home.processes import children_of, said_of
from tests.worlds.node.pilot_fleet import Field, field, grants, job, output, program

from tidemill.model.intervals import IntervalSet
from tidemill.node.fleet import WorkOrder
from tidemill.wire.node import Done, Ended, Failed, Returned


def ended_reason(it: Field) -> str:
    [ended] = it.of(Ended)
    return ended.reason


def returned(it: Field, number: int) -> tuple[IntervalSet, set[str]]:
    events, reasons = IntervalSet(), set()
    for record in it.of(Returned):
        if record.job == number:
            events.add(record.first, record.first + record.count)
            reasons.add(record.reason)
    return events, reasons


def busy(it: Field) -> bool:
    """Whether a payload runs: its command line is seen from outside."""
    return (
        subprocess.run(["pgrep", "-f", f"^sleep {SLEEP_S}$"], capture_output=True, check=False).returncode
        == 0
    )


def children(pid: int) -> list[int]:
    """Child processes, but for those that write files."""
    return [child for child in children_of(pid) if said_of(child, "comm") not in ("tidemill-files\n", "")]


SLEEP_S = f"3{os.getpid() % 1000:03}.5"


def test_a_yield_waits_for_no_payload_and_gives_everything_back(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, f"exec sleep {SLEEP_S}", events=8)
        it.fleet.write_work(programs=[program(event_s=1.0)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: busy(it), "a payload runs")
        it.signal(pilot, signal.SIGTERM)
        assert it.ended(pilot) == 0, it.tails()
        it.until(lambda: bool(it.of(Ended)), "the records are there")
        events, reasons = returned(it, 1)
        assert reasons == {"yield"}
        assert len(events) >= 2
        assert ended_reason(it) == "yield"
        assert not busy(it)


def test_walltime_notice_lets_the_running_events_finish(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "sleep 1", events=40)
        it.fleet.write_work(programs=[program(event_s=1.0)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: bool(it.done(1)), "an event is done")
        it.signal(pilot, signal.SIGUSR1)
        assert it.ended(pilot, timeout_s=10) == 0, it.tails()
        it.until(lambda: bool(it.of(Ended)), "the records are there")
        events, reasons = returned(it, 1)
        assert ended_reason(it) == "walltime"
        assert reasons == {"walltime"}
        assert len(it.done(1)) >= 2
        assert not any(it.done(1).touches(first, end) for first, end in events)


def test_a_range_of_90_seconds_never_starts_with_60_left(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, f"exec sleep {SLEEP_S}", events=4)
        it.fleet.write_work(programs=[program(event_s=90.0)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2", "--wall-s", "60")
        it.until(lambda: pilot.poll() is not None or busy(it), "it leaves or starts a payload")
        assert not busy(it)
        assert ended_reason(it) == "idle"
        assert not it.of(Done)
        assert not it.of(Failed)


def test_a_payload_that_runs_at_the_end_is_killed_and_given_back(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, f"exec sleep {SLEEP_S}", events=2)
        it.fleet.write_work(programs=[program(event_s=0.5)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2", "--wall-s", "5")
        assert it.ended(pilot) == 0, it.tails()
        assert ended_reason(it) == "walltime"
        assert returned(it, 1)[1] == {"walltime"}


def test_a_lead_that_is_killed_and_started_again_costs_nothing(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "sleep 0.02", events=300)
        it.fleet.write_work(programs=[program(event_s=0.02)], jobs=[work], grants=grants(work))
        lead = it.lead()
        pilot = it.pilot("--cores", "2")
        for _ in range(3):
            before = len(it.done(1))
            # all of them, where the pilot went on for long without the lead
            enough = min(before + 20, 299)
            it.until(lambda enough=enough: len(it.done(1)) > enough, "events are done")  # type: ignore[misc]
            lead.kill()
            lead.wait()
            lead = it.lead()
        assert it.ended(pilot, timeout_s=60) == 0, it.tails()
        assert str(it.done(1)) == "0-299"


def test_a_pilot_whose_lead_never_comes_back_leaves_a_journal_of_its_own(tmp_path: Path) -> None:
    with field(tmp_path, dead_after_s=3.0, queue_s=2.0) as it:
        work = job(1, "sleep 0.05", events=2000)
        it.fleet.write_work(programs=[program(event_s=0.05)], jobs=[work], grants=grants(work))
        lead = it.lead()
        pilot = it.pilot("--cores", "2")

        def is_at_work() -> bool:
            it.fleet.beat(1)  # an agent lives until then, however long it takes
            return len(it.done(1)) > 20

        it.until(is_at_work, "events are done")
        lead.kill()
        before = len(it.done(1))
        assert it.ended(pilot, timeout_s=30) == 0, it.tails()
        own = list(it.fleet.journal.glob("tm-here-e1-1.r0.i1.log"))
        assert own, it.tails()
        assert ended_reason(it) == "dead_lead"
        assert len(it.done(1)) > before
        numbers = [record.s for record in it.read()]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_a_pilot_without_any_lead_leaves(tmp_path: Path) -> None:
    with field(tmp_path, dead_after_s=1.0) as it:
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        assert ended_reason(it) == "dead_lead"


def test_patience_begins_when_the_last_work_ends(tmp_path: Path) -> None:
    with field(
        tmp_path, idle_s=2.0, dead_after_s=60.0
    ) as it:  # nothing but its work wakes this pilot for 10 s
        work = job(1, "sleep 3", events=1)
        it.fleet.write_work(programs=[program(event_s=1.0)], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0
        ended_us = time.time_ns() // 1000
        (done,) = it.of(Done)
        assert ended_us - done.ended_us > 1_900_000, it.tails()


def test_a_node_that_cannot_isolate_says_so_where_isolation_is_required(tmp_path: Path) -> None:
    with field(tmp_path, isolation="required") as it:
        forbid = "echo 0 > /proc/sys/user/max_pid_namespaces"
        if subprocess.run(
            ["unshare", "-Ur", "sh", "-c", forbid], capture_output=True, check=False
        ).returncode:
            pytest.skip("namespaces cannot be forbidden here")
        pilot = it.pilot("--cores", "1", before=forbid, user=True)
        assert it.ended(pilot) == 3, it.tails()
        assert ended_reason(it) == "error"


def test_the_same_allocation_started_again_is_another_pilot(tmp_path: Path) -> None:
    with field(tmp_path, dead_after_s=1.0) as it:
        pilots = [it.pilot("--cores", "1", "--rank", "3") for _ in range(2)]
        assert [it.ended(pilot) for pilot in pilots] == [0, 0], it.tails()
        assert {record.p for record in it.read()} == {"tm-here-e1-1.r3.i1", "tm-here-e1-1.r3.i2"}


def test_a_stop_file_makes_the_pilot_drain(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "sleep 0.2", events=500)
        it.fleet.write_work(programs=[program(event_s=0.2)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: bool(it.done(1)), "an event is done")
        it.fleet.stop("operator")
        assert it.ended(pilot, timeout_s=15) == 0, it.tails()
        assert ended_reason(it) in {"stop", "drain"}
        assert returned(it, 1)[1] <= {"drain"}


def test_a_canceled_job_is_stopped_and_not_returned(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        jobs = [job(1, f"exec sleep {SLEEP_S}", events=2), job(2, ":", events=50)]
        it.fleet.write_work(programs=[program(event_s=0.01)], jobs=jobs[:1], grants=grants(jobs[0]))
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: busy(it), "a payload runs")
        it.fleet.write_work(jobs=jobs[1:], grants=grants(jobs[1]), order=WorkOrder(cancel_jobs=[1]))
        assert it.ended(pilot) == 0, it.tails()
        assert not busy(it)
        assert str(it.done(2)) == "0-49"
        assert not returned(it, 1)[0]


def test_outputs_of_a_canceled_job_do_not_stay_in_the_slot(tmp_path: Path) -> None:
    script = (
        "echo ready >&4; echo next >&4; while read range i count seed <&3; do end=$((i+count)); while [ $i -lt $end ]; "
        "do sleep 0.02; echo x > out$i; echo done $i 1 o=out$i >&4; i=$((i+1)); done; echo next >&4; done"
    )
    with field(tmp_path, isolation="off", idle_s=20.0) as it:
        jobs = [job(1, script, events=500), job(2, ":", events=3, of=2)]
        ranges = program(mode="range", outputs=[output("o", "out")], chunk_max=500, event_s=0.001)
        it.fleet.write_work(programs=[ranges], jobs=jobs[:1], grants=grants(jobs[0]))
        it.lead()
        pilot = it.pilot("--cores", "1")
        it.until(lambda: len(it.done(1)) > 30, "its pace is known")
        [slot] = [
            pid
            for pid in children(children(pilot.pid)[0])
            if Path(f"/proc/{pid}/cwd").readlink().name == "work"
        ]
        waiting = Path(f"/proc/{slot}/cwd").readlink().parents[1] / "out"
        os.kill(slot, signal.SIGSTOP)  # its payload goes on
        it.fleet.write_work(
            programs=[program(2)], jobs=jobs[1:], grants=grants(jobs[1]), order=WorkOrder(cancel_jobs=[1])
        )
        it.until(lambda: "jobs.canceled" in it.tails(), "the job is canceled")
        time.sleep(0.3)
        os.kill(slot, signal.SIGCONT)
        it.until(lambda: len(it.done(2)) == 3, "the other job is done")
        it.until(lambda: not list(waiting.iterdir()), "what the canceled job left is removed", 5)
        it.signal(pilot, signal.SIGTERM)
        assert it.ended(pilot) == 0, it.tails()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_holds_what_has_outputs_and_nothing_else(tmp_path: Path) -> None:
    with field(tmp_path, output_flush_s=0.1, idle_s=3.0) as it:
        jobs = [
            job(1, "head -c 300000 /dev/zero > out", events=6, of=1),
            job(2, "sleep 0.1", events=80, of=2),
        ]
        programs = [program(1, outputs=[output("zeros", "out")], event_s=0.1), program(2, event_s=0.1)]
        it.fleet.write_work(programs=programs, jobs=jobs, grants=grants(*jobs))
        it.lead()
        small = f"mount -t tmpfs -o size=1m small {it.fleet.bundle}"
        pilot = it.pilot("--cores", "2", before=small)
        it.until(lambda: len(it.done(2)) == 80 and bool(it.noted("storage")), "the other job is done")
        assert not it.of(Failed)
        it.signal(pilot, signal.SIGTERM)
        assert it.ended(pilot) == 0, it.tails()
        (failed,) = it.of(Failed)  # says why, and counts for nothing
        assert (failed.job, failed.failure) == (1, "node")
        assert "No space left" in failed.message
        assert f"tmpfs `small` at `{it.fleet.bundle}`" in failed.message
        assert 1 <= len(it.done(1)) <= 3


def test_a_slot_that_is_killed_is_made_again_and_its_events_run_again(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "sleep 0.05", events=120)
        it.fleet.write_work(programs=[program(event_s=0.05)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2")
        for _ in range(2):
            before = len(it.done(1))
            it.until(lambda before=before: len(it.done(1)) > before, "an event is done")  # type: ignore[misc]
            slots = children(children(pilot.pid)[0])
            os.kill(slots[0], signal.SIGKILL)
        assert it.ended(pilot, timeout_s=60) == 0, it.tails()
        assert str(it.done(1)) == "0-119"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gets into the namespaces of a slot")
def test_a_slot_that_the_kernel_holds_does_not_hold_up_the_pilot(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "sleep 0.05", events=60)
        it.fleet.write_work(programs=[program(event_s=0.05)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2")
        it.until(lambda: bool(it.done(1)), "an event is done")
        slot = children(children(pilot.pid)[0])[0]
        # an init ends when its namespace is empty: this one holds a process that is waited for elsewhere, by nobody
        with subprocess.Popen(["nsenter", f"--target={slot}", "--pid", "sleep", "600"]) as guest:
            try:
                it.until(lambda: bool(children(guest.pid)), "the slot has a guest")
                guest.send_signal(signal.SIGSTOP)
                status = Path(f"/proc/{guest.pid}/status")  # until it stands still it may take its child yet
                it.until(lambda: "State:\tT" in status.read_text(), "nobody waits for the guest")
                os.kill(slot, signal.SIGKILL)
                it.until(lambda: str(it.done(1)) == "0-59", "all is done")
                assert Path(f"/proc/{slot}").exists()
            finally:
                guest.kill()
        it.until(lambda: not Path(f"/proc/{slot}").exists(), "it has been waited for")
        assert it.ended(pilot) == 0, it.tails()


def test_slots_that_die_again_and_again_end_the_pilot(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, f"exec sleep {SLEEP_S}", events=50)
        it.fleet.write_work(programs=[program(event_s=0.5)], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "1")
        it.until(lambda: busy(it), "a payload runs")
        inner = children(pilot.pid)[0]
        killed: set[int] = set()

        def kill_all() -> bool:
            for slot in set(children(inner)) - killed:
                with suppress(ProcessLookupError):  # the pilot left a moment ago, and its slots with it
                    os.kill(slot, signal.SIGKILL)
                killed.add(slot)
            return pilot.poll() is not None

        it.until(kill_all, "the pilot ends")
        assert pilot.returncode == 3
        assert ended_reason(it) == "error"
        assert {record.failure for record in it.of(Failed)} == {"node"}


def test_a_yield_does_not_wait_for_large_outputs(tmp_path: Path) -> None:
    with field(tmp_path, output_flush_s=30.0) as it:
        work = job(1, "head -c 700000000 /dev/zero > out", events=40)
        large = program(outputs=[output("zeros", "out")], event_s=0.5, scratch_mb=4000, memory_mb=4000)
        it.fleet.write_work(programs=[large], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2", "--memory-mb", "10000")
        bundle = it.fleet.bundle / "tm-here-e1-1.r0.i1.tar"
        it.until(lambda: bundle.exists() and bundle.stat().st_size > 100_000_000, "an output is copied")
        it.signal(pilot, signal.SIGTERM)
        assert it.ended(pilot) == 0, it.tails()
        assert ended_reason(it) == "yield"
        assert len(it.done(1)) + len(returned(it, 1)[0]) >= 1


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_start_needs_at_most_ten_look_ups_in_the_fleet_directory(tmp_path: Path) -> None:
    with field(tmp_path, idle_s=0.2) as it:
        it.lead()
        trace = tmp_path / "trace"
        directory = str(it.fleet.directory)
        command = ["strace", "-f", "-o", str(trace), "-e", "trace=%file", str(it.node), "run"]
        subprocess.run(
            [*command, "--fleet", directory, "--allocation", "a", "--cores", "1"],
            check=True,
            capture_output=True,
            timeout=30,
        )
        looked_up = [
            line for line in trace.read_text().splitlines() if directory in line and "execve" not in line
        ]
        assert 5 <= len(looked_up) <= 10, "\n".join(looked_up)


def test_nobody_reads_the_memory_of_a_pilot(tmp_path: Path) -> None:
    with field(tmp_path, idle_s=20.0) as it:
        it.lead()
        pilot = it.pilot("--cores", "1")
        it.until(lambda: bool(it.read()), "the pilot has started")
        inner = children(pilot.pid)[0]
        assert Path(f"/proc/{inner}/mem").stat().st_uid == 0  # not dumpable: owned by root, proc(5)
        status = Path(f"/proc/{inner}/status").read_text()
        assert re.search(r"^Threads:\s+1$", status, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--allocation", "a"], "--fleet"),
        (["--fleet", "/nowhere", "--allocation", "a"], "/nowhere/manifest.json"),
        (["--fleet", "/tmp", "--allocation", "a/b"], "a/b"),
        (["--fleet", "/tmp", "--allocation", "a", "--color", "red"], "--color"),
    ],
)
def test_a_wrong_start_names_what_is_wrong(tmp_path: Path, arguments: list[str], part: str) -> None:
    with field(tmp_path) as it:
        result = subprocess.run([it.node, "run", *arguments], check=False, capture_output=True, text=True)
        assert result.returncode in {2, 3}
        assert part in result.stderr
