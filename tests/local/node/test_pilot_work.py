"""A pilot with a real lead and real slots: work is done once, outputs are there, whatever its shape."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.worlds.node.pilot_fleet import field, grants, job, output, program

from tidemill.node.bundle import IndexTail, bundles, read_member
from tidemill.wire.node import Done, Ended, Failed, Returned, Started


def test_every_event_is_done_once_and_the_pilot_leaves_when_idle(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, ":", events=300)
        it.fleet.write_work(programs=[program()], jobs=[work], grants=grants(work))
        it.lead()
        pilot = it.pilot("--cores", "2")
        assert it.ended(pilot) == 0, it.tails()
        assert str(it.done(1)) == "0-299"
        records = it.read()
        assert isinstance(records[0], Started)
        assert records[0].cores == 2
        [last] = it.of(Ended)
        assert last is records[-1]
        assert last.reason == "idle"
        assert 0 < last.busy_us <= last.slot_us
        assert [record.s for record in records] == list(range(1, len(records) + 1))
        assert sum(isinstance(record, Done) for record in records) < 300  # neighbours share a record


def test_outputs_are_verified_members_of_a_plain_tar(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(7, "printf 'event %s\\n' {event} > out.txt; echo log {event} >&2", events=25)
        it.fleet.write_work(
            programs=[program(outputs=[output("hits", "out.txt")], event_s=0.01)],
            jobs=[work],
            grants=grants(work),
        )
        it.lead()
        assert it.ended(it.pilot("--cores", "2")) == 0, it.tails()
        assert str(it.done(7)) == "0-24"
        for record in it.of(Done):
            [ref] = record.outputs
            assert read_member(it.fleet.bundle, ref) == f"event {record.first}\n".encode()
        [bundle] = bundles(it.fleet.bundle)
        listed = subprocess.run(["tar", "-tf", bundle], check=True, capture_output=True, text=True)
        assert listed.stderr == ""
        names = listed.stdout.split()
        assert sorted(name for name in names if "/hits/" in name) == sorted(
            f"7/hits/{k}-{k}" for k in range(25)
        )
        one = subprocess.run(["tar", "-xOf", bundle, "7/hits/9-9"], check=True, capture_output=True)
        assert one.stdout == b"event 9\n"
        logs = [entry for entry in IndexTail(bundle).read() if entry.kind == "log"]
        assert {(entry.name, entry.first) for entry in logs} == {("stderr", k) for k in range(25)}


def test_a_large_bundle_is_continued_in_another_file(tmp_path: Path) -> None:
    with field(tmp_path, bundle_bytes_max=100_000, output_flush_s=0.05) as it:
        work = job(1, "head -c 60000 /dev/zero > out", events=6)
        it.fleet.write_work(
            programs=[program(outputs=[output("zeros", "out")])], jobs=[work], grants=grants(work)
        )
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        refs = [ref for record in it.of(Done) for ref in record.outputs]
        assert len(refs) == 6
        assert len({ref.bundle for ref in refs}) >= 2
        assert all(read_member(it.fleet.bundle, ref) == bytes(60000) for ref in refs)


def test_stdout_can_be_an_output(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "echo {seed}", events=5)
        it.fleet.write_work(programs=[program(stdout_output=True)], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        found = {
            record.first: read_member(it.fleet.bundle, record.outputs[0])
            for record in it.of(Done)
            if isinstance(record, Done)
        }
        assert found == {event: f"{event + 1}\n".encode() for event in range(5)}


def test_a_thousand_jobs_of_one_event(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        jobs = [job(number, ":", events=1) for number in range(1, 1001)]
        it.fleet.write_work(programs=[program()], jobs=jobs, grants=grants(*jobs))
        it.lead()
        assert it.ended(it.pilot("--cores", "2"), timeout_s=60) == 0, it.tails()
        done = [record.job for record in it.of(Done)]
        assert sorted(done) == list(range(1, 1001))


def test_shapes_share_the_node_and_devices_are_given_once(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        held = 'mkdir -p /dev/shm/x; echo "$CUDA_VISIBLE_DEVICES-$ROCR_VISIBLE_DEVICES"; sleep 0.05'
        jobs = [
            job(1, held, events=12, of=1),
            job(2, "sleep 0.02", events=10, of=2),
            job(3, 'echo "$CUDA_VISIBLE_DEVICES"', events=3, of=3),
        ]
        programs = [
            program(1, devices={"gpu": 1}, stdout_output=True),
            program(2, cores=3, memory_mb=128),
            program(3, devices={"gpu": 2}, stdout_output=True),
        ]
        it.fleet.write_work(programs=programs, jobs=jobs, grants=grants(*jobs))
        it.lead()
        pilot = it.pilot("--cores", "4", "--memory-mb", "512", env={"CUDA_VISIBLE_DEVICES": "4,6"})
        assert it.ended(pilot, timeout_s=60) == 0, it.tails()
        assert [str(it.done(number)) for number in (1, 2, 3)] == ["0-11", "0-9", "0-2"]
        seen: dict[int, set[bytes]] = {1: set(), 3: set()}
        by_slot: dict[int, set[bytes]] = {}
        for record in it.of(Done):
            if record.outputs:
                content = read_member(it.fleet.bundle, record.outputs[0])
                seen[record.job].add(content)
                by_slot.setdefault(record.slot, set()).add(content)
        assert seen[1] <= {b"4-\n", b"6-\n"}, "one variable for each vendor"
        assert seen[3] == {b"4,6\n"}
        assert all(len(contents) == 1 for contents in by_slot.values())


def lay_out(root: Path, machine: str) -> None:
    """The files of a machine of `crates/pilot/tests/machines`: PATH<tab>TEXT, `{0-3,8}` for each of these numbers."""
    text = (Path(__file__).parents[3] / "crates/pilot/tests/machines" / machine).read_text()
    for line in text.splitlines():
        path, _, content = line.partition("\t")
        if line.startswith("#"):
            continue
        head, _, rest = path.partition("{")
        numbers, _, tail = rest.partition("}")
        ends = [each.partition("-") for each in numbers.split(",") if each]
        each = [n for first, _, last in ends for n in range(int(first), int(last or first) + 1)]
        for name in [f"{head}{number}{tail}" for number in each] or [path]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content.replace("\\n", "\n").replace("\\t", "\t") + "\n")


def test_slots_get_gpus_of_the_machine_by_uuid_and_share_them_by_choice(tmp_path: Path) -> None:
    """No machine of ours has GPUs: the files of a DGX A100 stand for one."""
    machine = tmp_path / "machine"
    lay_out(machine, "dgx-a100.txt")
    with field(tmp_path) as it:
        held = 'echo "$CUDA_VISIBLE_DEVICES-$ROCR_VISIBLE_DEVICES"; sleep 0.1'
        jobs = [job(number, held, events=8, of=number) for number in (1, 2, 3)]
        programs = [
            program(1, devices={"gpu": 2}, stdout_output=True),
            program(2, devices={"gpu_percent": 50}, stdout_output=True),
            program(3, stdout_output=True),
        ]
        it.fleet.write_work(programs=programs, jobs=jobs, grants=grants(*jobs))
        it.lead()
        env = {"TIDEMILL_MACHINE_ROOT": str(machine), "CUDA_VISIBLE_DEVICES": "2,3"}
        pilot = it.pilot("--cores", "4", "--memory-mb", "512", env=env)
        assert it.ended(pilot, timeout_s=60) == 0, it.tails()
        seen: dict[int, set[bytes]] = {1: set(), 2: set(), 3: set()}
        for record in it.of(Done):
            if record.outputs:
                seen[record.job].add(read_member(it.fleet.bundle, record.outputs[0]))
        third, fourth = (b"GPU-%08x-0000-4000-8000-%012x" % (number, number + 1) for number in (2, 3))
        assert seen[1] == {third + b"," + fourth + b"-\n"}
        assert third + b"-\n" in seen[2]
        assert seen[2] <= {third + b"-\n", fourth + b"-\n"}
        assert seen[3] == {b"-\n"}, "without GPUs, none"


def test_work_that_no_node_of_this_size_can_run_is_returned(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        jobs = [job(1, ":", events=4, of=1), job(2, ":", events=4, of=2)]
        it.fleet.write_work(programs=[program(1), program(2, cores=64)], jobs=jobs, grants=grants(*jobs))
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        assert str(it.done(1)) == "0-3"
        assert not it.done(2)


def test_a_failing_event_is_reported_with_its_evidence(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "echo reason >&2; test {event} != 3", events=6)
        it.fleet.write_work(programs=[program()], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "2")) == 0, it.tails()
        assert str(it.done(1)) == "0-2,4-5"
        [failed] = it.of(Failed)
        assert (failed.first, failed.count, failed.failure, failed.exit_status) == (3, 1, "payload", 1)
        assert failed.stderr_tail == "reason\n"


def test_ranges_that_a_dead_payload_had_asked_for_ahead_run_again_on_the_same_node(tmp_path: Path) -> None:
    script = (
        "echo ready >&4; for k in 1 2 3; do echo next >&4; done; "
        "while read -r verb first rest <&3; do [ $verb = end ] && exit 0; [ $first = 4 ] && kill -SEGV $$; "
        "sleep 0.02; echo done $first 1 >&4; echo next >&4; done"
    )
    with field(tmp_path) as it:
        work = job(1, script, events=12)
        it.fleet.write_work(programs=[program(mode="range")], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot("--cores", "1")) == 0, it.tails()
        [failed] = it.of(Failed)
        assert (failed.first, failed.count, failed.signal) == (4, 1, 11)
        assert it.of(Returned) == []
        assert str(it.done(1)) == "0-3,5-11"
