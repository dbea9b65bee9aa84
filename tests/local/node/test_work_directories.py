"""Work directories in memory: a hard cap with a named failure, a place elsewhere for large ones, clean environments."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from tests.squashfs.test_pilot_images import NOBODY, USER, as_root, place, processes
from tests.worlds.node.pilot_fleet import Field, field, grants, job, output, program

from tidemill.node.bundle import read_member
from tidemill.wire.node import Done, Failed, InputDef, JobDef, Program, Returned

MEMORY = ("--cores", "1", "--memory-mb", "400")


def run(it: Field, program_: Program, work: JobDef, *options: str, **how: object) -> None:
    it.fleet.write_work(programs=[program_], jobs=[work], grants=grants(work))
    it.lead()
    if "before" in how:
        for path in (it.fleet.directory, *it.fleet.directory.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    pilot = it.pilot(*(options or MEMORY), **how)  # type: ignore[arg-type]
    assert it.ended(pilot, timeout_s=60) == 0, it.tails()


def failure(it: Field) -> Failed:
    found = it.of(Failed)
    assert len(found) == 1, it.tails()
    return found[0]


FILLS = {
    "work directory": "head -c 60000000 /dev/zero > big",
    "tmp": "head -c 60000000 /dev/zero > /tmp/big",
    "home": "head -c 60000000 /dev/zero > $HOME/big",
    "dev shm": "head -c 60000000 /dev/zero > /dev/shm/big",
    "silently": "head -c 60000000 /dev/zero > big 2> /dev/null || exit 3",
}


@pytest.mark.parametrize(
    "user", [pytest.param(True, id="ordinary", marks=as_root), pytest.param(False, id="own")]
)
@pytest.mark.parametrize("where", list(FILLS))
def test_an_overrun_says_cap_use_and_key(where: str, user: bool) -> None:
    with place() as (_, it):
        how = {"before": f'exec {USER} "$0" "$@"'} if user else {}
        run(it, program(scratch_mb=40), job(1, FILLS[where], events=1), **how)
        found = failure(it)
        assert found.failure == "disk", found
        for part in ("40 MB", "resources.scratch_mb", "/dev/shm"):
            assert part in found.message, found.message


MAPPED = """
import mmap, os
f = os.open("/dev/shm/segment", os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 100 << 20)
m = mmap.mmap(f, 100 << 20)
for at in range(0, 100 << 20, 4096):
    m[at] = 1
"""


def test_a_mapped_file_that_finds_no_room_is_an_overrun_too() -> None:
    with place() as (_, it):
        python = program(scratch_mb=30, executable=str(Path(sys.executable).resolve()), memory_mb=200)
        work = msgspec.structs.replace(job(1, "", events=1), argv=["-S", "-c", MAPPED])
        run(it, python, work)
        assert (failure(it).failure, failure(it).signal) == ("disk", signal.SIGBUS), it.tails()


def test_inputs_count_and_say_so(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(60_000_000))
    with field(tmp_path) as it:
        given = InputDef(
            name="large", kind="shared", path=str(large), lines=None, first=0, sha256=None, bytes=60_000_000
        )
        work = msgspec.structs.replace(job(1, ":", events=1), inputs=[given])
        run(it, program(scratch_mb=40), work)
        assert failure(it).failure == "disk"
        assert "input `large`" in failure(it).message
        assert "resources.scratch_mb" in failure(it).message


def test_a_work_directory_that_memory_cannot_hold_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        run(it, program(memory_mb=300, scratch_mb=200), job(1, ":", events=1))
        assert any(isinstance(record, Returned) and record.reason == "no_fit" for record in it.read())
        [why] = it.noted("memory")
        for part in ("300 MB of memory", "200 MB for its work directory", "400 MB", "fast_dir"):
            assert part in why.message


@pytest.mark.parametrize(
    "user", [pytest.param(True, id="ordinary", marks=as_root), pytest.param(False, id="own")]
)
def test_a_large_work_directory_goes_to_the_spill_directory(user: bool) -> None:
    with place() as (sw, it):
        spill = sw.base / "spill"
        spill.mkdir(mode=0o700)
        if user:
            os.chown(spill, NOBODY, NOBODY)
        manifest = it.fleet.directory / "manifest.json"
        told = msgspec.json.decode(manifest.read_bytes())
        told["settings"]["spill"] = str(spill)
        manifest.write_bytes(msgspec.json.encode(told))
        how = {"before": f'exec {USER} "$0" "$@"'} if user else {}
        script = f"head -c 50000000 /dev/zero > big; echo x > /dev/shm/y; ls {spill} | wc -l; stat -c %s big"
        large = program(memory_mb=300, scratch_mb=1000, stdout_output=True)
        run(it, large, job(1, script, events=3), **how)
        done = it.of(Done)
        assert str(it.done(1)) == "0-2", it.tails()
        assert read_member(it.fleet.bundle, done[0].outputs[0]) == b"1\n50000000\n"
        [why] = it.noted("spill")
        assert str(spill) in why.message
        assert why.numbers["scratch_mb"] == 1000
        assert list(spill.iterdir()) == []


def test_outputs_written_to_a_burst_buffer_are_brought_away_as_payloads_end() -> None:
    with place() as (sw, it):
        burst = sw.base / "burst"
        burst.mkdir(mode=0o700)
        manifest = it.fleet.directory / "manifest.json"
        told = msgspec.json.decode(manifest.read_bytes())
        told["settings"]["spill"] = "${BB_DIR}/mine"
        manifest.write_bytes(msgspec.json.encode(told))
        script = "head -c 30000000 /dev/zero > hits"
        made = program(memory_mb=300, scratch_mb=1000, outputs=[output("hits", "hits")])
        run(it, made, job(1, script, events=4), env={"BB_DIR": str(burst)})
        assert str(it.done(1)) == "0-3", it.tails()
        for record in it.read():
            if isinstance(record, Done):
                assert len(read_member(it.fleet.bundle, record.outputs[0])) == 30_000_000
        [why] = it.noted("spill")
        assert f"{burst}/mine" in why.message
        assert list((burst / "mine").iterdir()) == []


def test_an_overrun_in_the_spill_directory_is_killed_and_named() -> None:
    with place(spill="/var/tmp") as (_, it):
        script = "i=0; while [ $i -lt 100 ]; do head -c 30000000 /dev/zero > f$i; i=$((i+1)); sleep 0.1; done"
        run(it, program(memory_mb=300, scratch_mb=200), job(1, script, events=1))
        assert failure(it).failure == "disk", it.tails()
        assert "200 MB" in failure(it).message
        assert "resources.scratch_mb" in failure(it).message


@pytest.mark.parametrize("spill", ["/nonexistent/fast", "/dev/shm", "$NO_SUCH_BUFFER/x"])
def test_a_useless_spill_directory_is_told(tmp_path: Path, spill: str) -> None:
    with field(tmp_path, spill=spill) as it:
        run(it, program(memory_mb=300, scratch_mb=200), job(1, ":", events=1))
        [why] = it.noted("memory")
        assert f"`fast_dir` `{spill}`" in why.message


def test_what_a_killed_pilot_spilled_is_removed_by_the_next() -> None:
    with place() as (sw, it):
        spill = sw.base / "spill"
        spill.mkdir()
        manifest = it.fleet.directory / "manifest.json"
        told = msgspec.json.decode(manifest.read_bytes())
        told["settings"]["spill"] = str(spill)
        manifest.write_bytes(msgspec.json.encode(told))
        work = job(1, "echo x > x; sleep 600", events=1)
        it.fleet.write_work(
            programs=[program(memory_mb=300, scratch_mb=200)], jobs=[work], grants=grants(work)
        )
        it.lead()
        pilot = it.pilot(*MEMORY)
        it.until(lambda: bool(list(spill.glob("*/tmp/work/x"))), "the payload runs")
        for pid in sorted(processes(pilot.pid))[:1]:
            os.kill(pid, signal.SIGKILL)
        it.until(lambda: pilot.poll() is not None, "the pilot is dead")
        assert len(list(spill.iterdir())) == 1
        second = it.pilot("--cores", "1", "--memory-mb", "100", allocation="tm-here-e1-2")
        it.until(lambda: list(spill.iterdir()) == [], "the next pilot cleans up")
        second.terminate()


def test_slots_count_their_work_directories(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        work = job(1, "sleep 0.3", events=12)
        run(it, program(memory_mb=50, scratch_mb=50, event_s=0.3), work, "--cores", "8", "--memory-mb", "310")
        assert str(it.done(1)) == "0-11"
        assert len({record.slot for record in it.read() if isinstance(record, Done)}) == 3


def test_payloads_get_the_environment_that_was_declared_and_nothing_else(tmp_path: Path) -> None:
    with field(tmp_path) as it:
        declared = program(env={"FROM_APP": "1"}, stdout_output=True, pass_env=["PASSED_ON"])
        work = msgspec.structs.replace(job(1, "cat /proc/$$/environ", events=1), env={"FROM_JOB": "2"})
        batch = {
            "LD_LIBRARY_PATH": "/opt/batch/lib",
            "LD_PRELOAD": "",
            "PYTHONPATH": "/opt/batch/python",
            "PYTHONHOME": "",
            "MODULEPATH": "/opt/modules",
            "LOADEDMODULES": "gcc/12",
            "SLURM_JOB_ID": "7",
            "PASSED_ON": "3",
            "XDG_RUNTIME_DIR": "/run/user/0",
            "TMPDIR": "/tmp",
        }
        it.fleet.write_work(programs=[declared], jobs=[work], grants=grants(work))
        it.lead()
        assert it.ended(it.pilot(*MEMORY, env=batch)) == 0, it.tails()
        [done] = it.of(Done)
        text = read_member(it.fleet.bundle, done.outputs[0]).decode()
        seen = dict(each.split("=", 1) for each in text.split("\0") if each)
        assert {name for name in seen if not name.startswith("TIDEMILL_")} == {
            "PATH",
            "HOME",
            "TMPDIR",
            "PYTHONPATH",
            "FROM_APP",
            "FROM_JOB",
            "PASSED_ON",
        }
        assert seen["PYTHONPATH"] == "/tmp/.tidemill/lib"
        assert "/opt/batch" not in text
